"""The environment of unmodified programs that get Headway's library in front of them."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Literal

from headway import _native
from headway._programs_folder import FOLDER
from headway._units import Size, path_text, size_text


@contextmanager
def preload_env(
    *,
    fast: bool | Literal["always"] = True,
    pin_once: bool | Size = False,
    aside: bool | Literal["auto", "always", "never"] = False,
    flow: Literal["auto", "bulk", "normal"] = "auto",
    chunk: Size | Literal["auto", "never"] = "auto",
    machine: str | os.PathLike[str] | None = None,
    stats: bool = False,
    lint: bool = False,
    verify: bool = False,
    log: str | os.PathLike[str] | None = None,
    alone: bool = False,
    depth: int | None = None,
    no_cache: bool = False,
    env: Mapping[str, str] | None = None,
) -> Generator[dict[str, str], None, None]:
    """The environment in which a CUDA program copies as under `headway exec`; docs/exec.md describes the options.

    This process's own environment stays as it is. Other libraries of `LD_PRELOAD` stay, behind Headway's.

        with hw.preload_env(aside=True) as env:
            subprocess.run(["python3", "train.py"], env=env, check=True)

    Args:
        fast: Large copies of ordinary memory are made by several threads; `"always"` = whatever it costs.
        pin_once: Ordinary memory that is copied again and again is page-locked, this much at a time; `True` = a quarter of the memory.
            docs/exec.md says what a program must not do meanwhile.
        aside: Small copies out of a GPU are made by a kernel; `True` = `"auto"`, `False` = `"never"`.
        flow: The class of all copies out of a GPU; `"auto"` = each is as its CUDA stream is (docs/exec.md).
        chunk: Bulk copies out of a GPU are queued in chunks of this size (`--yield`).
        machine: What `headway measure` found on this node, for `chunk="auto"`.
        stats: Count copies, and print the counts on standard error at exit.
        lint: Print at exit where the program's copies lose time.
        verify: Make each accelerated copy again by the driver, and compare.
        log: A line for each copy is written to this file; in its name, `%p` is the process.
        alone: Exchange nothing with other guests.
        depth: At most this many launches of kernels are under way, and none begins while `headway run` has a kernel on the GPU.
        no_cache: Neither use nor keep what is learnt of copies on this node.
        env: What the environment is made of; `None` = this process's.

    Raises:
        GuestError: The library is missing, or the log cannot be written.
        NotFound: There is no such machine.
        OptionError: An option is none of those above.
    """
    made = dict(os.environ if env is None else env)
    words = {True: "on", False: "off"}
    variables = _native.guest_environment(
        FOLDER,
        made.get("LD_PRELOAD", ""),
        fast=words[fast] if isinstance(fast, bool) else fast,
        pin_once=("auto" if pin_once else None) if isinstance(pin_once, bool) else size_text(pin_once),
        aside=("auto" if aside else "never") if isinstance(aside, bool) else aside,
        flow=flow,
        chunk=size_text(chunk),
        machine=None if machine is None else path_text(machine, "machine"),
        stats=stats,
        lint=lint,
        verify=verify,
        log=None if log is None else path_text(log, "log"),
        alone=alone,
        depth=depth,
        no_cache=no_cache,
    )
    for name, value in variables.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = value
    yield made
