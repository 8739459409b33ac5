"""What one node of a Ray cluster has promised, and to whom. Ray itself is not needed here."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from headway._errors import HeadwayError, MachineError, OptionError
from headway._flow import FlowContract
from headway._flow import checked as checked_contract
from headway._machine import Machine, machine
from headway._preload import preload_env

MACHINE = "HEADWAY_MACHINE"
"""The variable that says what a node's copies cost: a machine file's absolute path, or a shipped machine's name."""


@dataclass(frozen=True)
class Ask:
    """What an actor asks of a node.

    Attributes:
        id: Another one for each reservation.
        contracts: The flows that it will open. Their `gpu` counts the actor's own GPUs.
        gpus: How many GPUs it gets, whole ones.
        lease_ns: How long it may take to start.
    """

    id: str
    contracts: tuple[FlowContract, ...]
    gpus: int
    lease_ns: int

    @property
    def title(self) -> str:
        return ", ".join(f"`{contract.name}`" for contract in self.contracts)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_dict(given: dict[str, Any]) -> Ask:
        contracts = tuple(FlowContract(**contract) for contract in given["contracts"])
        return Ask(given["id"], contracts, int(given["gpus"]), int(given["lease_ns"]))


@dataclass(frozen=True)
class Admitted:
    """A yes.

    Attributes:
        bounds_ns: The longest response of each contract.
        machine: What the node's `HEADWAY_MACHINE` says.
    """

    bounds_ns: tuple[int, ...]
    machine: str


class NodeRefusal(HeadwayError):
    """A no of one node, for another reason than the contract itself."""


Answer = Admitted | HeadwayError
"""A no is an answer, not a failure of the node."""


@dataclass(frozen=True)
class Process:
    """A process of this node. Its number may be used again; not with the same start."""

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> Process | None:
        """The process, or `None` where it has ended or is not seen here."""
        try:
            # The name before the last parenthesis may have any character.
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        state, threads, started = fields[0], int(fields[17]), int(fields[19])
        # Other threads may outlive the first one.
        has_ended = state in (b"Z", b"X") and threads <= 1
        return None if has_ended else Process(pid, started)

    @property
    def is_alive(self) -> bool:
        return Process.of(self.pid) == self


@dataclass(frozen=True)
class Reserved:
    """GPUs that somebody has, until the lease ends or, once confirmed, until the process does.

    Attributes:
        lease_ends_ns: By this node's monotonic clock.
        holder: Who confirmed it.
    """

    ask: Ask
    lease_ends_ns: int
    holder: Process | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_dict(given: dict[str, Any]) -> Reserved:
        holder = given["holder"]
        process = None if holder is None else Process(int(holder["pid"]), int(holder["started"]))
        return Reserved(Ask.of_dict(given["ask"]), int(given["lease_ends_ns"]), process)


class NodeBook:
    """Admits contracts to whole GPUs of one node.

    A promise of a flow assumes that no other process copies on its engine, so each GPU is one process's. An engine's rate, as flows count with it,
    is what it keeps while all others of the node run: what other GPUs have promised changes nothing, and it does not matter which GPUs
    Ray gives to the actor, since the contracts must hold on each.
    """

    def __init__(
        self, of: Machine, gpus: int, record: Path | None, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._machine = of
        self.gpus = min(gpus, of.gpus)
        self._record = record
        self._now_ns = now_ns
        self._reserved: dict[str, Reserved] = {}
        if record is not None and record.exists():
            # Written by the process before this one, by the same clock.
            try:
                kept = [Reserved.of_dict(each) for each in json.loads(_read(record))]
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is damaged: {error}"
                raise NodeRefusal(
                    f"the record of what this node has promised, `{record}`, {what}",
                    help="restart the node; or remove the file once no actor with a contract runs here",
                ) from error
            self._reserved = {each.ask.id: each for each in kept}

    def reserved(self) -> list[Reserved]:
        """What holds now."""
        now = self._now_ns()
        for id, each in list(self._reserved.items()):
            if not (each.holder.is_alive if each.holder else now < each.lease_ends_ns):
                del self._reserved[id]
        return list(self._reserved.values())

    def try_ask(self, ask: Ask) -> tuple[int, ...]:
        """The longest response of each contract. Changes nothing.

        Raises:
            HeadwayError: It cannot be promised here.
        """
        held = [each for each in self.reserved() if each.ask.id != ask.id]
        free = self.gpus - sum(each.ask.gpus for each in held)
        if ask.gpus > self.gpus:
            raise NodeRefusal(f"it has {gpus_text(self.gpus)} with figures in its machine file, not {ask.gpus}")
        if ask.gpus > free:
            holders = "; ".join(map(self._told, held))
            raise NodeRefusal(f"{free} of its {gpus_text(self.gpus)} are free of contracts, and the actor needs {ask.gpus}; {holders}")
        longest = [0] * len(ask.contracts)
        for first in range(self._machine.gpus):
            there = [replace(each, gpu=(first + each.gpu) % self._machine.gpus) for each in ask.contracts]
            longest = list(map(max, longest, self._machine.flow_bounds(there)))
        return tuple(longest)

    def reserve(self, ask: Ask) -> tuple[int, ...]:
        """Keeps GPUs for who will confirm, until the lease ends. Asked again, it answers the same.

        Raises:
            HeadwayError: It cannot be promised here.
        """
        bounds_ns = self.try_ask(ask)
        if ask.id not in self._reserved:
            self._keep(Reserved(ask, self._now_ns() + ask.lease_ns, None))
        return bounds_ns

    def confirm(self, ask: Ask, holder: Process) -> tuple[int, ...]:
        """Keeps GPUs until `holder` ends. Without a reservation, or after its lease, it is admitted as if it had just asked.

        Raises:
            HeadwayError: It cannot be promised here, or somebody else has it.
        """
        if not holder.is_alive:
            raise NodeRefusal(
                f"the node does not see process {holder.pid}",
                help="run actors with a contract in the PID namespace of their node's Ray",
            )
        bounds_ns = self.try_ask(ask)
        known = self._reserved.get(ask.id)
        if known and known.holder not in (None, holder):
            raise NodeRefusal(
                f"process {known.holder.pid} has this reservation already" if known.holder else "",
                help="call `headway.ray.options` for each actor, or `headway.ray.admit_here` in each replica",
            )
        self._keep(Reserved(ask, known.lease_ends_ns if known else self._now_ns(), holder))
        return bounds_ns

    def give_back(self, ask: Ask) -> tuple[int, ...]:
        """Ends a reservation before its lease does. One that is not there any more is no error.

        Raises:
            NodeRefusal: A process has confirmed it, and has it until it ends.
        """
        known = next((each for each in self.reserved() if each.ask.id == ask.id), None)
        if known and known.holder:
            raise NodeRefusal(f"process {known.holder.pid} has it until it ends", help="end that actor: `ray.kill(actor)`")
        self._store({id: each for id, each in self._reserved.items() if id != ask.id})
        return ()

    def told(self) -> dict[str, Any]:
        """Facts for people."""
        now, held = self._now_ns(), self.reserved()
        return {
            "machine": self._machine.name,
            "gpus": self.gpus,
            "gpus_free": self.gpus - sum(each.ask.gpus for each in held),
            "reservations": [
                {
                    "contracts": [asdict(contract) for contract in each.ask.contracts],
                    "gpus": each.ask.gpus,
                    "pid": each.holder.pid if each.holder else None,
                    "lease_left_ns": None if each.holder else each.lease_ends_ns - now,
                }
                for each in held
            ],
        }

    def _told(self, of: Reserved) -> str:
        left_s = (of.lease_ends_ns - self._now_ns()) / 1e9
        by = f"process {of.holder.pid}" if of.holder else f"an actor that has {left_s:.0f} s more to start"
        return f"{of.ask.title} of {by} has {of.ask.gpus}"

    def _keep(self, new: Reserved) -> None:
        """Remembers it on disk first: an answer that is given must outlive this process."""
        self._store({**self._reserved, new.ask.id: new})

    def _store(self, every: dict[str, Reserved]) -> None:
        if self._record is not None:
            try:
                beside = self._record.with_suffix(".new")
                beside.write_text(json.dumps([each.to_dict() for each in every.values()]))
                os.replace(beside, self._record)
            except OSError as error:
                raise NodeRefusal(f"it cannot write `{self._record}`, what it has promised: {error.strerror}") from error
        self._reserved = every


def _read(record: Path) -> bytes:
    # A pipe or a device in place of the file would have no end.
    with open(record, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read()


def gpus_text(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"


def machine_of_node() -> tuple[str, Machine]:
    """What `HEADWAY_MACHINE` says, and the machine.

    Raises:
        HeadwayError: It says nothing, or not what a machine is.
    """
    name = os.environ.get(MACHINE, "")
    help = f"`export {MACHINE}=/absolute/path/machine.toml` before `ray start`; `headway measure` writes that file"
    if not name:
        raise MachineError(f"the variable {MACHINE} is not set", help=help)
    if "/" in name and not os.path.isabs(name):
        raise MachineError(f"{MACHINE}={name} is not absolute", help=help)
    return name, machine(name)


# The same for most actors; to make it reads the machine file.
@lru_cache(maxsize=16)
def _guest(preload: str, name: str) -> dict[str, str]:
    with preload_env(env={"LD_PRELOAD": preload}, machine=name) as env:
        return env


class NodeActor:
    """The actor of a node: one asker after the other.

    Args:
        gpus: How many GPUs Ray gives to actors there.
        record: Where it keeps what it has promised, for the process that Ray starts after this one.
    """

    def __init__(self, gpus: int, record: str) -> None:
        self._gpus = gpus
        self._record = Path(record)
        self._opened: tuple[str, NodeBook] | None = None

    def _open(self) -> tuple[str, NodeBook]:
        # Not when it starts: a machine file that is put right counts at once.
        if self._opened is None:
            name, found = machine_of_node()
            self._opened = name, NodeBook(found, self._gpus, self._record)
        return self._opened

    def _answer(self, decide: Callable[[NodeBook], tuple[int, ...]]) -> Answer:
        try:
            name, book = self._open()
            return Admitted(decide(book), name)
        except HeadwayError as refusal:
            return refusal

    def try_ask(self, ask: Ask) -> Answer:
        return self._answer(lambda book: book.try_ask(ask))

    def reserve(self, ask: Ask) -> Answer:
        return self._answer(lambda book: book.reserve(ask))

    def give_back(self, ask: Ask) -> Answer:
        return self._answer(lambda book: book.give_back(ask))

    def confirm(self, ask: Ask, holder: Process) -> Answer:
        return self._answer(lambda book: book.confirm(ask, holder))

    def environment(self, preload: str) -> dict[str, str] | HeadwayError:
        """The variables with which programs of this node are guests, behind what `LD_PRELOAD` would say else."""
        try:
            return dict(_guest(preload, self._open()[0]))
        except HeadwayError as error:
            return error

    def told(self) -> dict[str, Any] | HeadwayError:
        try:
            return self._open()[1].told()
        except HeadwayError as error:
            return error


def checked(contract: object, gpus: int) -> FlowContract:
    """The contract in ns and bytes, for an actor with so many GPUs.

    Raises:
        OptionError: It cannot be asked for.
    """
    exact = checked_contract(contract)
    if exact.gpu >= gpus:
        raise OptionError(f"`{exact.name}` is for GPU {exact.gpu} of an actor that has {gpus_text(gpus)}, counted from 0")
    return exact
