"""
The private native module of `headway`.
"""

from _typeshed import Incomplete, SupportsGetItem
from os import PathLike
from typing import Any, SupportsFloat, SupportsIndex, final

__all__ = ["FileLoad", "FlowReport", "Machine", "NativeFlow", "NativeFlowTicket", "PinnedMemory", "Plan", "Ticket", "Workload", "commit", "copy", "doctor", "explain_copy", "finish_copies", "finish_flows", "flow_bounds", "guest_environment", "leave_copies", "node_file", "open_flow", "open_machine", "open_workload", "parse_size", "parse_time", "parse_workload", "plan", "shipped_machines", "strategies", "version"]

@final
class FileLoad:
    """
    Parts of files that are read into one GPU's memory, once.
    """
    def __new__(cls, /, gpu: SupportsIndex | None, files: SupportsGetItem[int, tuple[str, SupportsIndex]], parts: SupportsGetItem[int, tuple[SupportsIndex, SupportsIndex, SupportsIndex, SupportsIndex]], threads: SupportsIndex, slot_bytes: SupportsIndex) -> FileLoad:
        """
        `files` are paths with open descriptors, which stay the caller's. Each of `parts` is a file's position, where the part begins in it,
        the address in GPU memory and the number of bytes. Nobody else uses that memory until `run` has returned.
        """
    @property
    def moved_bytes(self, /) -> int:
        """
        Bytes that are on their way or in place.
        """
    def run(self, /) -> tuple[int, int] | None:
        """
        Reads all parts. Other threads run meanwhile. The answer is how many bytes were read from the page cache and past it; `None` if
        it was stopped.
        """
    def stop(self, /) -> None:
        """
        Ends it soon: `run` returns `None` then.
        """

@final
class FlowReport:
    """
    What one copy of a flow did.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def blame(self, /) -> list[str]:
        """
        What the time went into; of a copy beyond its bound, first what broke the promise. A sentence each.
        """
    @property
    def bound_ns(self, /) -> int:
        """
        The longest response that was promised then, in nanoseconds.
        """
    @property
    def given_up(self, /) -> bool:
        """
        Whether it was given up, since it could not begin before its deadline and the flow has `on_miss="skip"`.
        """
    @property
    def held_ns(self, /) -> int:
        """
        Nanoseconds for which it was held, since it came earlier than the period allows. The response begins after that.
        """
    @property
    def missed(self, /) -> bool:
        """
        Whether the deadline was missed.
        """
    @property
    def response_ns(self, /) -> int:
        """
        Nanoseconds from its release until the bytes were there.
        """

@final
class Machine:
    """
    A machine: memories, GPUs, links, engines and what they carry.
    """
    def beside(self, /, others: SupportsIndex) -> Machine:
        """
        The machine as a program has it beside `others` programs that copy over its engines.
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
class NativeFlow:
    """
    A flow with the arrays that its copies move where none are given.
    """
    @property
    def assumptions(self, /) -> list[str]:
        """
        What the promise rests on, a sentence each.
        """
    @property
    def bound_ns(self, /) -> int:
        """
        Nanoseconds that no copy's response exceeds, as promised now.
        """
    @property
    def chunk_bytes(self, /) -> int:
        """
        Bytes that an engine gets at once while this flow is open.
        """
    def close(self, /) -> None:
        """
        Closes the flow: waits for the copies that were submitted. One that is held until the period allows it is not made.
        """
    def copy(self, /, dst: Any | None, src: Any | None, stream: Any | None) -> FlowReport:
        """
        Makes one copy, and returns when the bytes are there.
        """
    def submit(self, /, dst: Any | None, src: Any | None, stream: Any | None) -> NativeFlowTicket:
        """
        Has the flow's thread make one copy.
        """

@final
class NativeFlowTicket:
    """
    A copy that was submitted.
    """
    @property
    def done(self, /) -> bool:
        """
        Whether the copy has ended.
        """
    def wait(self, /, timeout: str | SupportsFloat | SupportsIndex | None) -> FlowReport:
        """
        Waits for the copy's end: what it did.
        """

@final
class PinnedMemory:
    """
    Page-locked memory. It is given back when nothing refers to this any more.
    """
    @property
    def __array_interface__(self, /) -> Any:
        """
        For NumPy, whose arrays keep this.
        """
    def __new__(cls, /, bytes: SupportsIndex, gpu: SupportsIndex | None) -> PinnedMemory:
        """
        So many bytes, zeroed, for copies to and from GPU number `gpu`; `None` = the GPU that was used first.
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
class Ticket:
    """
    A copy: whether it has ended, how it was made, and how long it took.

    `wait` waits for its end, and so does `await`. Both arrays are kept until then, also when the ticket is dropped.
    """
    def __await__(self, /) -> Any: ...
    def __repr__(self, /) -> str: ...
    def _when_done(self, /, then: Any) -> bool:
        """
        Calls `then` on a thread of the library's when the copy has ended: with nothing, or with the exception. `False` = nobody will, since the
        interpreter ends, or that thread is the caller.
        """
    @property
    def done(self, /) -> bool:
        """
        Whether the copy has ended.

        Raises:
            CopyError: It failed. Nothing is known of the bytes of the target then.
        """
    @property
    def method(self, /) -> str | None:
        """
        How the copy is made, as `headway explain` names methods; `None` for one of no bytes.
        """
    @property
    def nbytes(self, /) -> int:
        """
        Bytes that are copied.
        """
    @property
    def took_ns(self, /) -> int | None:
        """
        Nanoseconds from the call until the end was seen, with what the stream was given before; `None` until then. Of a copy in a stream,
        `done`, `wait` and `await` see the end.
        """
    def wait(self, /, timeout: str | SupportsFloat | SupportsIndex | None = ...) -> None:
        """
        Waits until the bytes are there. Other threads run meanwhile, and Ctrl-C ends the wait.

        Args:
            timeout: Seconds, as everywhere in Python, or a text such as `"20 ms"`; `None` = as long as it takes.

        Raises:
            CopyTimeout: Time is up. The copy goes on, and can be waited for again.
            CopyError: It failed. Nothing is known of the bytes of the target then.
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

def copy(dst: Any, src: Any, stream: Any | None, bulk: bool) -> Ticket:
    """
    Copies `src` to `dst`. Without a stream, the bytes are there when this returns. `bulk`: in a stream, with short turns.
    """

def doctor(machine: str, watch_ns: SupportsIndex) -> str:
    """
    What this computer has and lacks, as JSON.
    """

def explain_copy(dst: Any, src: Any, machine: str) -> tuple[str, int, str, str]:
    """
    How `copy` would make such a copy now: the method, its threads, and what that choice is based on. Then what all methods cost on
    `machine`, as the JSON of `headway explain`.
    """

def finish_copies() -> None:
    """
    At the interpreter's end: waits for copies that are under way and threads that tell of them, and closes the copiers.
    """

def finish_flows() -> None:
    """
    At the interpreter's end: flows that are open end with it.
    """

def flow_bounds(machine: Machine, contracts: SupportsGetItem[int, Incomplete]) -> list[int]:
    """
    The longest response of each flow on a machine, if all of them were open.
    """

def guest_environment(folder: str | PathLike[str], before: str, *, fast: str, pin_once: str | None, aside: str, flow: str, chunk: str, machine: str | None, stats: bool, lint: bool, verify: bool, log: str | PathLike[str] | None, alone: bool, depth: SupportsIndex | None, no_cache: bool) -> dict[str, str | None]:
    """
    The variables that `headway exec` sets; `None` = the variable must not be there.

    `folder` has the library, and `before` is what `LD_PRELOAD` says already.
    """

def leave_copies() -> None:
    """
    In a forked child: leaves what belongs to the parent as it is.
    """

def node_file() -> str:
    """
    The name of the machine file that `headway measure` writes.
    """

def open_flow(machine: Machine, name: str, dst: Any, src: Any, period_ns: SupportsIndex, deadline_ns: SupportsIndex, on_miss: str, promised: Incomplete | None = None, broker: str | PathLike[str] | None = None) -> NativeFlow:
    """
    Opens a flow on the GPU that has one of both arrays; with `promised`, for all that this contract allows for. A broker at `broker`, or for an
    empty text at the usual place, counts other programs.
    """

def open_machine(name: str) -> Machine:
    """
    The machine of a shipped name, or of a machine file.
    """

def open_workload(path: str | PathLike[str]) -> Workload:
    """
    Reads a workload file.
    """

def parse_size(text: str) -> int:
    """
    Bytes that a text such as `4 MiB` says.
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
