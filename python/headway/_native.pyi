"""
The private native module of `headway`.
"""

from _typeshed import SupportsGetItem
from os import PathLike
from typing import SupportsIndex, final

__all__ = ["Machine", "Plan", "Workload", "commit", "doctor", "guest_environment", "node_file", "open_machine", "open_workload", "parse_time", "parse_workload", "plan", "shipped_machines", "strategies", "version"]

@final
class Machine:
    """
    A machine: memories, GPUs, links, engines and what they carry.
    """
    @property
    def confidence(self, /) -> str:
        """
        What stands behind its figures, as a sentence.
        """
    @property
    def description(self, /) -> str:
        """
        One line for people.
        """
    @property
    def gpus(self, /) -> int:
        """
        Number of GPUs.
        """
    @property
    def name(self, /) -> str:
        """
        Name of the machine, quoted in every result.
        """
    def with_gpus(self, /, gpus: SupportsIndex) -> Machine:
        """
        The machine with its first `gpus` GPUs only.
        """

@final
class Plan:
    """
    A plan: windows for every copy and kernel, with a verdict.
    """
    def bounds(self, /) -> list[tuple[str, int | None, int]]:
        """
        For each stream, message and demand its name, the longest response that the plan allows and the deadline, in nanoseconds.
        """
    def json(self, /) -> str:
        """
        The plan as JSON, as `headway plan --format json` prints it.
        """
    def simulate(self, /, seeds: SupportsGetItem[int, SupportsIndex], duration_ns: SupportsIndex | None, kernel_ppm_min: SupportsIndex | None, data_late_ns: SupportsIndex, driver_late_ns: SupportsIndex) -> list[str]:
        """
        The summary of one simulated run for each seed, as JSON.
        """
    def text(self, /) -> str:
        """
        The plan for people, as `headway plan` prints it.
        """

@final
class Workload:
    """
    A workload that was read and checked.
    """
    @property
    def name(self, /) -> str:
        """
        Name of the workload, quoted in every result.
        """
    @property
    def text(self, /) -> str:
        """
        The TOML text that was read.
        """
    def usual_text(self, /) -> str:
        """
        The TOML text that says the same in the usual form.
        """

def commit() -> str:
    """
    Commit that this module was built from, or `unknown`.
    """

def doctor(machine: str, watch_ns: SupportsIndex) -> str:
    """
    What this computer has and lacks, as JSON.
    """

def guest_environment(folder: str | PathLike[str], before: str, *, fast: str, aside: str, piece: str, machine: str | None, stats: bool, lint: bool, verify: bool, log: str | PathLike[str] | None, alone: bool, no_cache: bool) -> dict[str, str | None]:
    """
    The variables that `headway exec` sets; `None` = the variable must not be there.

    `folder` has the library, and `before` is what `LD_PRELOAD` says already.
    """

def node_file() -> str:
    """
    The name of the machine file that `headway measure` writes.
    """

def open_machine(name: str) -> Machine:
    """
    The machine of a shipped name, or of a machine file.
    """

def open_workload(path: str | PathLike[str]) -> Workload:
    """
    Reads a workload file.
    """

def parse_time(text: str) -> int:
    """
    Nanoseconds that a text such as `33 ms` says.
    """

def parse_workload(name: str, text: str) -> Workload:
    """
    Reads the text of a workload file called `name`.
    """

def plan(machine: Machine, workload: Workload, strategy: str | None) -> Plan:
    """
    Plans a workload on a machine, by all strategies that apply or by one.
    """

def shipped_machines() -> list[str]:
    """
    Names of the machines that are shipped.
    """

def strategies() -> list[str]:
    """
    Names of the strategies that plans can be made by.
    """

def version() -> str:
    """
    Version of Headway.
    """
