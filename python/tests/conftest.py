"""The driver library that has no GPU behind it, for the tests that copy."""

from __future__ import annotations

import os
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
