"""Flows: copies of a program's own arrays with deadlines that are promised before the first of them."""

from __future__ import annotations

import atexit
import os
import unicodedata
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, cast

from headway import _native
from headway._errors import OptionError
from headway._native import FlowReport
from headway._tickets import until_done
from headway._units import Size, Time, nanoseconds, nbytes, path_text

if TYPE_CHECKING:
    from headway._machine import Machine

atexit.register(_native.finish_flows)


@dataclass(frozen=True)
class FlowContract:
    """What a flow asks for, for `Machine.flow`, `Machine.flow_bounds` and `headway.ray`.

    Attributes:
        name: For people; each flow of a GPU has another one.
        direction: `"in"`, into the GPU, or `"out"`, out of it.
        size: The most that one copy moves.
        period: The least time between two copies.
        deadline: From the call until the bytes are there.
        gpu: Which GPU: of the machine for `Machine.flow_bounds`, else of those that the program has.
    """

    name: str
    direction: str
    size: Size
    period: Time
    deadline: Time
    gpu: int = 0


_NAME_MAX = 255


def checked(contract: object) -> FlowContract:
    """The contract in ns and bytes.

    Raises:
        OptionError: It cannot be asked for. The text names the field.
    """
    if not isinstance(contract, FlowContract):
        raise OptionError(f"`{contract!r}` is no contract; give a `headway.FlowContract`")
    name, direction, gpu = contract.name, contract.direction, contract.gpu
    _check_name(name)
    if direction not in ("in", "out"):
        raise OptionError(f'`direction={direction!r}` of `{name}` is neither "in" nor "out"')
    if type(gpu) is not int or not 0 <= gpu < 1 << 32:
        raise OptionError(f"`gpu={gpu!r}` of `{name}` is no number of a GPU; they count from 0")
    size = _number(nbytes, contract.size, f"`size` of `{name}`")
    period, deadline = _times(contract.period, contract.deadline, name)
    return replace(contract, size=size, period=period, deadline=deadline)


def _times(period: Time, deadline: Time, name: str) -> tuple[int, int]:
    """Period and deadline of a flow, in ns."""
    return _number(nanoseconds, period, f"`period` of `{name}`"), _number(nanoseconds, deadline, f"`deadline` of `{name}`")


def _number(count: Callable[[str | int], int], value: str | int, what: str) -> int:
    try:
        return count(value)
    except OptionError as error:
        raise OptionError(f"{what}: {error.message}", help=error.help) from error


def _check_name(name: object) -> None:
    if type(name) is not str:
        raise OptionError(f"`name={name!r}` of a flow is no text")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise OptionError(f"`name={name!r}` of a flow is no text that UTF-8 has; leave out what is half of a character") from error
    if not 1 <= size <= _NAME_MAX or any(unicodedata.category(character) == "Cc" for character in name):
        raise OptionError(f"`name={name!r}` of a flow has {size} bytes; give one of 1 to {_NAME_MAX} bytes without control characters")


class _NativeContract:
    def __init__(self, of: object) -> None:
        exact = checked(of)
        self.name, self.direction, self.gpu = exact.name, exact.direction, exact.gpu
        self.nbytes, self.period_ns, self.deadline_ns = exact.size, exact.period, exact.deadline


def bounds(machine: Machine, contracts: object) -> list[int]:
    if isinstance(contracts, FlowContract) or not isinstance(contracts, Iterable):
        raise OptionError(f"`contracts={contracts!r}` is not several contracts; give a list of them")
    native = [_NativeContract(contract) for contract in cast("Iterable[object]", contracts)]
    names = [contract.name for contract in native]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"{names.count(name)} contracts are called `{name}`; give each its own name")
    return _native.flow_bounds(machine._native, native)  # pyright: ignore


class FlowTicket:
    """A copy of a flow that was submitted: `wait` waits for its end, and so does `await`. Its arrays are kept until then, also when the ticket is
    dropped."""

    def __init__(self, native: _native.NativeFlowTicket) -> None:
        self._native = native

    @property
    def done(self) -> bool:
        """Whether the copy has ended, well or not."""
        return self._native.done

    def wait(self, timeout: float | str | None = 60.0) -> FlowReport:
        """Waits until the bytes are there. Other threads run meanwhile, and Ctrl-C ends the wait.

        Args:
            timeout: Seconds, or a text such as `"20 ms"`; `None` = as long as it takes.

        Raises:
            CopyTimeout: Time is up. The copy goes on, and can be waited for again.
            CopyError: It failed. Nothing is known of the bytes of the target then.
        """
        return self._native.wait(timeout)

    def __await__(self) -> Generator[object, None, FlowReport]:
        return self._ended().__await__()

    async def _ended(self) -> FlowReport:
        # The thread that makes the copies of a flow calls nobody: it would wait for the interpreter's lock while the next copy is due. No
        # thread waits here either, so that whoever gives up leaves nothing behind.
        await until_done(self)
        return self.wait()

    def __repr__(self) -> str:
        return f"<headway.FlowTicket {'done' if self.done else 'under way'}>"


class Flow:
    """Copies with a period and a deadline that was promised. `Machine.flow` opens it; `close`, or the end of a `with` block, closes it."""

    def __init__(self, native: _native.NativeFlow, name: str) -> None:
        self._native = native
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def bound_ns(self) -> int:
        """The longest response that is promised now. It grows when other flows are opened, and never beyond the deadline."""
        return self._native.bound_ns

    @property
    def chunk_bytes(self) -> int:
        """What an engine gets at once while the flow is open: other copies are cut into chunks of this size."""
        return self._native.chunk_bytes

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the promise rests on, a sentence each."""
        return tuple(self._native.assumptions)

    def copy(self, *, dst: object = None, src: object = None, stream: object = None) -> FlowReport:
        """Makes one copy and returns when the bytes are there. One that comes earlier than the period allows waits until then.

        Ctrl-C ends a copy that waits for its period. One that the GPU has begun ends first, since its arrays must stay; `submit` and `wait` leave it alone.

        Args:
            dst: Another target than the flow's.
            src: Another source than the flow's.
            stream: The copy begins behind all that this stream was given; `None` = the stream that the GPU array's package uses now.

        Raises:
            ArrayError: An array cannot be copied as it is.
            CopyError: The copy was refused, or failed. A missed deadline is no error: the report says so.
        """
        return self._native.copy(dst, src, stream)

    def submit(self, *, dst: object = None, src: object = None, stream: object = None) -> FlowTicket:
        """Has the flow's own thread make one copy, and returns at once. What `stream` is given later does not wait for the copy: wait for the
        ticket first. While 64 copies wait for the thread, another one is refused.

        Args:
            dst: Another target than the flow's.
            src: Another source than the flow's.
            stream: As for `copy`.
        """
        return FlowTicket(self._native.submit(dst, src, stream))

    def close(self) -> None:
        """Waits for the copies that were submitted, and gives the flow's capacity back. A copy that is held until the period allows it is not made."""
        self._native.close()

    def __enter__(self) -> Flow:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<headway.Flow {self._name}>"


def open_flow(
    machine: Machine,
    flow: str | FlowContract,
    *,
    dst: object,
    src: object,
    period: Time | None,
    deadline: Time | None,
    on_miss: str,
    broker: str | os.PathLike[str] | bool | None,
) -> Flow:
    if isinstance(flow, FlowContract):
        if period is not None or deadline is not None:
            raise OptionError(f"the contract of flow `{flow.name}` says period and deadline; do not give them again")
        promised, name, period, deadline = _NativeContract(flow), flow.name, flow.period, flow.deadline
    else:
        _check_name(flow)
        promised, name = None, flow
        if period is None or deadline is None:
            raise OptionError(f"flow `{name}` needs a period and a deadline, or a `FlowContract` in place of its name")
    period_ns, deadline_ns = _times(period, deadline, name)
    native = _native.open_flow(
        machine._native,  # pyright: ignore[reportPrivateUsage]
        name,
        dst,
        src,
        period_ns,
        deadline_ns,
        on_miss,
        promised,
        None if broker is None or broker is False else "" if broker is True else path_text(broker, "broker"),
    )
    return Flow(native, name)
