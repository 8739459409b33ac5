"""Workloads: what is to be moved and computed, and by when."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from headway import _native
from headway._errors import OptionError
from headway._units import Size, Time, path_text, size_text, time_text

_Part = TypeVar("_Part")

Value = str | int | bool | Sequence["Value"] | Mapping[str, "Value"]
"""What a workload file can say."""


@dataclass(frozen=True)
class Step:
    """One step of a stream; `copy_in`, `copy_out` and `compute` make the usual ones.

    Attributes:
        copy: From where to where, such as `"host -> gpu"`.
        compute: Name of a kernel whose cost the machine file has.
    """

    copy: str | None = None
    compute: str | None = None

    def _table(self) -> dict[str, Value]:
        given = {"copy": self.copy, "compute": self.compute}
        return {key: value for key, value in given.items() if value is not None}


def copy_in() -> Step:
    """Copies a packet into the stream's GPU."""
    return Step(copy="host -> gpu")


def copy_out() -> Step:
    """Copies a packet out of the stream's GPU."""
    return Step(copy="gpu -> host")


def compute(kernel: str) -> Step:
    """Runs a kernel on a packet; `"spin"` stands for any."""
    return Step(compute=kernel)


@dataclass(frozen=True)
class Stream:
    """A packet every period, to be done with all its steps by its deadline.

    Attributes:
        id: Name, unlike that of others.
        packet: Size of a packet, such as `"4 MiB"`, or bytes.
        period: Time between packets, such as `"33 ms"`, or nanoseconds.
        deadline: From a packet's arrival to the end of its last step.
        steps: What is done with a packet, in order.
        start: When the first packet arrives.
        gpu: `"auto"`, or the name of a GPU of the machine.
        on_miss: `"finish"`, `"skip"` or `"stop"`: what happens with what is late.
        more: Further keys of a `[[stream]]` in a workload file, such as `{"processor": "auto"}`.
    """

    id: str
    packet: Size
    period: Time
    deadline: Time
    steps: Sequence[Step]
    start: Time = 0
    gpu: str = "auto"
    on_miss: str = "finish"
    more: Mapping[str, Value] = field(default_factory=dict[str, Value])

    def _table(self) -> dict[str, Value]:
        table: dict[str, Value] = {
            "id": self.id,
            "packet": size_text(self.packet),
            "period": time_text(self.period),
            "deadline": time_text(self.deadline),
            "start": time_text(self.start),
            "on_miss": self.on_miss,
            "steps": [step._table() for step in _all(self.steps, Step, f"`steps` of stream `{self.id}`")],  # pyright: ignore[reportPrivateUsage]
        }
        # Streams that a CPU may serve have none.
        if "processor" not in self.more:
            table["gpu"] = self.gpu
        return {**table, **self.more}


@dataclass(frozen=True)
class Block:
    """What a message moves from one place to another.

    Attributes:
        source: Name of the memory it comes from, such as `"host"`.
        target: Name of the memory it goes to, such as `"gpu0"`.
        size: Its size, such as `"48 MB"`, or bytes.
    """

    source: str
    target: str
    size: Size


@dataclass(frozen=True)
class Message:
    """Blocks that move together once a period; they must arrive before it ends.

    Attributes:
        id: Name, unlike that of others.
        period: Time between two, such as `"10 ms"`, or nanoseconds.
        blocks: What is moved.
        start: When the first one may go.
    """

    id: str
    period: Time
    blocks: Sequence[Block]
    start: Time = 0

    def _table(self) -> dict[str, Value]:
        blocks: list[Value] = [
            {"from": block.source, "to": block.target, "bytes": size_text(block.size)} for block in _all(self.blocks, Block, f"`blocks` of message `{self.id}`")
        ]
        return {"id": self.id, "period": time_text(self.period), "start": time_text(self.start), "blocks": blocks}


@dataclass(frozen=True)
class Demand:
    """Work on a server of any name, for questions of schedulability without a machine.

    Attributes:
        id: Name, unlike that of others.
        cost: Time that one job takes.
        period: Time between jobs.
        deadline: From a job's release to its end; `None` = the period.
        server: Whose time it takes.
        start: When the first job is released.
    """

    id: str
    cost: Time
    period: Time
    deadline: Time | None = None
    server: str = "engine"
    start: Time = 0

    def _table(self) -> dict[str, Value]:
        return {
            "id": self.id,
            "server": self.server,
            "start": time_text(self.start),
            "cost": time_text(self.cost),
            "period": time_text(self.period),
            "deadline": time_text(self.period if self.deadline is None else self.deadline),
        }


class Workload:
    """What is to be moved and computed, checked as a workload file is.

    Errors of one that was made here show the line that a file would have had.
    """

    def __init__(
        self,
        name: str,
        *,
        streams: Sequence[Stream] = (),
        messages: Sequence[Message] = (),
        demands: Sequence[Demand] = (),
        description: str = "",
        duration: Time = "1 s",
        seed: int = 1,
    ) -> None:
        """Makes a workload.

        Args:
            name: Name, quoted in every result.
            streams: Packets with deadlines and steps.
            messages: Blocks that move together.
            demands: Work on abstract servers.
            description: One line for people.
            duration: How long a simulation lasts where it is not told.
            seed: Seed of what is drawn at random.

        Raises:
            WorkloadError: It says what no workload file may say, at a `place` in `Workload.text`.
            OptionError: A time or size is neither a text nor a whole number, or a list has something else than its parts.
        """
        lines = [f"name = {_toml(name)}", f"description = {_toml(description)}", "", "[run]"]
        lines += [f"duration = {_toml(time_text(duration))}", f"seed = {_toml(seed)}"]
        parts: list[tuple[str, Stream | Message | Demand]] = []
        parts += [("stream", part) for part in _all(streams, Stream, "`streams`")]
        parts += [("message", part) for part in _all(messages, Message, "`messages`")]
        parts += [("demand", part) for part in _all(demands, Demand, "`demands`")]
        for kind, part in parts:
            lines += ["", f"[[{kind}]]"]
            table = part._table()  # pyright: ignore[reportPrivateUsage]
            lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
        self._native = _native.parse_workload(f"{name}.toml", "\n".join(lines) + "\n")

    @classmethod
    def _of(cls, native: _native.Workload) -> Workload:
        made = cls.__new__(cls)
        made._native = native
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Workload:
        """Reads a workload file.

        Raises:
            NotFound: There is no such file.
            WorkloadError: It is wrong, at a `place`.
        """
        return cls._of(_native.open_workload(path_text(path, "path")))

    @classmethod
    def from_toml(cls, text: str, name: str = "workload.toml") -> Workload:
        """Reads the text of a workload file; `name` stands for the file in errors.

        Raises:
            WorkloadError: It is wrong, at a `place`.
        """
        return cls._of(_native.parse_workload(name, text))

    @property
    def name(self) -> str:
        """Name, quoted in every result."""
        return self._native.name

    @property
    def text(self) -> str:
        """The TOML text that was read, or that was made of what was given."""
        return self._native.text

    def to_toml(self) -> str:
        """The TOML text that says the same in the usual form."""
        return self._native.usual_text()

    def __repr__(self) -> str:
        return f"<headway.Workload {self.name}>"


def _all(parts: object, kind: type[_Part], what: str) -> list[_Part]:
    """The parts of a workload, if each is of this kind."""
    help = f"give a list of `headway.{kind.__name__}`, also for one"
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise OptionError(f"{what} is no list, but `{parts!r}`", help=help)
    given = list(cast("Iterable[object]", parts))
    for part in given:
        if not isinstance(part, kind):
            raise OptionError(f"{what} has `{part!r}`", help=help)
    return cast("list[_Part]", given)


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _toml(value: Value) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, str):
        escaped = (_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
        return f'"{"".join(escaped)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return "[" + ", ".join(_toml(inner) for inner in value) + "]"
