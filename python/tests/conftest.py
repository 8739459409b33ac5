"""The driver library that has no GPU behind it, for the tests that copy, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_gpu import Driver, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = build(tmp_path_factory.mktemp("fake"))
    if library is None:
        pytest.skip("no compiler named `cc`")
    return library


@pytest.fixture(scope="module")
def driver(library: Path) -> Iterator[Driver]:
    before = {name: os.environ.get(name) for name in ("HEADWAY_LIBCUDA", "HEADWAY_CACHE")}
    # What copies of this driver teach says nothing of a GPU.
    os.environ["HEADWAY_CACHE"] = "off"
    yield Driver(library)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def ctrl_c() -> Iterator[threading.Timer]:
    """Presses Ctrl-C soon after it is started, and not after the test.

    A shell without job control starts what runs in the background with SIGINT ignored. Python then leaves it so, and nothing is raised.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
    yield timer
    timer.cancel()
    if timer.is_alive():
        timer.join()
    signal.signal(signal.SIGINT, before)
