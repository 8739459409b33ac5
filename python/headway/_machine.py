"""Machines: what a node's memories, GPUs, links and engines are, and what they carry."""

from __future__ import annotations

import os
from numbers import Integral
from typing import TYPE_CHECKING

from headway import _native
from headway._errors import NotFound, OptionError
from headway._units import is_a, path_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway._flow import Flow, FlowContract
    from headway._plan import Plan
    from headway._units import Time
    from headway._workload import Workload


class Machine:
    """A node that plans are made for. `headway.node()` and `headway.machine()` give it."""

    def __init__(self, native: _native.Machine) -> None:
        self._native = native

    @property
    def name(self) -> str:
        """Name, quoted in every result."""
        return self._native.name

    @property
    def description(self) -> str:
        """One line for people."""
        return self._native.description

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self._native.gpus

    @property
    def confidence(self) -> str:
        """What stands behind its figures, as a sentence."""
        return self._native.confidence

    def with_gpus(self, gpus: int) -> Machine:
        """The machine with its first `gpus` GPUs only.

        Raises:
            MachineError: It has fewer.
        """
        return Machine(self._native.with_gpus(gpus))

    def beside(self, others: int) -> Machine:
        """The machine as a program has it beside `others` programs that copy over its engines, and compute nothing on its GPUs.

        What takes `T` alone takes at most `T + others * (turn + T)` there: plans of it hold beside them. `turn` is how long an engine stays with
        another process, which `headway measure` finds out.

        Raises:
            MachineError: Nobody measured it.
            OptionError: `others` is not a number of programs.
        """
        if not is_a(others, Integral) or not 0 <= others < 1 << 32:
            raise OptionError(f"`others` is a number of programs, from 0 on, not `{others!r}`")
        return Machine(self._native.beside(others))

    def plan(self, workload: Workload | str | os.PathLike[str], strategy: str | None = None) -> Plan:
        """Windows for every copy and kernel of a workload, and whether every deadline holds.

        The interpreter's lock is released meanwhile, and Ctrl-C ends the wait.

        Args:
            workload: A workload, or what `Workload.load` takes.
            strategy: How copies are kept apart, such as `"partitioned"`; `None` tries all that apply.

        Raises:
            WorkloadError: The workload names something that the machine does not have, or has tasks, which are not planned here.
            OptionError: There is no such strategy.
        """
        from headway._plan import make

        return make(self, workload, strategy)

    def flow(
        self,
        flow: str | FlowContract,
        *,
        dst: object,
        src: object,
        period: Time | None = None,
        deadline: Time | None = None,
        on_miss: str = "finish",
        broker: str | os.PathLike[str] | bool | None = None,
    ) -> Flow:
        """Promises that each copy of `src` to `dst` ends within its deadline, on this computer, by this machine's figures.

        One array is in a GPU's memory, and the other in pinned host memory, such as `headway.pinned_empty` gives. Copies of the flow go before
        all other copies of this process that Headway makes, and those are cut into chunks that the promise allows for.

        Args:
            flow: A name for people, another one for each flow of a GPU; or a contract, which says name, size, period and deadline.
            dst: Where to.
            src: From where. Without a contract, as large as any copy of the flow.
            period: The least time between two copies.
            deadline: From the call, or from when the stream has come to it, until the bytes are there.
            on_miss: `"finish"` completes a copy that is late, `"skip"` gives up one that has not begun by its deadline, `"stop"` takes no
                copies any more after one that was late.
            broker: The socket of a broker, or `True` for the one at the usual place: it admits the flow beside those of other programs. The same
                for all flows of a GPU. When it ends, flows are lost: each copy then raises `CopyError`, until the flow is opened again.

        Raises:
            Refused: It cannot be promised: whose deadline would suffer, and what would help.
            ArrayError: An array cannot be copied as it is, or the contract is not for such arrays.
            OptionError: A time is none or missing, the name is taken, or `broker` is no path.
            GpuError: There is no driver, or no GPU.
            HeadwayError: There is no such broker.
        """
        from headway._flow import open_flow

        return open_flow(self, flow, dst=dst, src=src, period=period, deadline=deadline, on_miss=on_miss, broker=broker)

    def flow_bounds(self, contracts: Sequence[FlowContract]) -> list[int]:
        """The longest response of each flow in nanoseconds, if all of them were open on this machine. Needs no GPU.

        Raises:
            Refused: One of them cannot be promised beside those before it.
            OptionError: A time, size or direction is none, a name comes twice, or there is no such GPU.
        """
        from headway._flow import bounds

        return bounds(self, contracts)

    def __repr__(self) -> str:
        return f"<headway.Machine {self.name}: {self.gpus} GPU{'' if self.gpus == 1 else 's'}>"


def machines() -> list[str]:
    """Names of the machines that are shipped, for `headway.machine`."""
    return _native.shipped_machines()


def machine(name: str | os.PathLike[str]) -> Machine:
    """The machine of a shipped name, such as `"h200-x4"`, or of a machine file.

    Raises:
        NotFound: There is neither; the text names the nearest.
        OptionError: `name` is neither a text nor a path.
        MachineError: The file is wrong, at a `place`.
    """
    return Machine(_native.open_machine(path_text(name, "name")))


def node(path: str | os.PathLike[str] | None = None) -> Machine:
    """This machine, as `headway measure` has found it: the file `machine.toml` of the current folder, or the file at `path`.

    Raises:
        NotFound: This machine was not measured yet.
        OptionError: `path` is no path.
        MachineError: The file is wrong, at a `place`.
    """
    file = _native.node_file() if path is None else path_text(path, "path")
    if not os.path.exists(file):
        raise NotFound(
            f"this machine was not measured: there is no `{file}`",
            kind="not-found",
            help='call `headway measure`, which writes it, or plan for another machine: `headway.machine("h200-x4")`',
        )
    return machine(file)
