"""Finds the node of a cluster that takes an actor with a contract, and decides which nodes are asked. This module does not use Ray."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway._errors import OptionError
from headway._ray_node import Admitted, Answer, Ask, NodeRefusal

GPUS_LABEL = "headway-gpus"
MACHINE_LABEL = "headway-machine"
# As many node actors start at a time, the first time that nodes are asked.
_AT_ONCE_MAX = 64


@dataclass(frozen=True)
class Candidate:
    """What the cluster knows of a node without asking it.

    Attributes:
        gpus: Those that Ray may give to actors.
        gpus_free: Those that no actor has now, whole ones and parts.
        has_headway: Whether it was started with Headway's labels.
    """

    node: str
    gpus: float
    gpus_free: float
    has_headway: bool


class Nodes(Protocol):
    """A cluster's nodes, which answer."""

    def try_ask(self, nodes: Sequence[str], ask: Ask) -> Iterable[tuple[str, Answer]]:
        """Asks all of them at once whether they would take the actor. Each answers once, the fastest first."""
        ...

    def reserve(self, node: str, ask: Ask) -> Answer:
        """Has a node keep GPUs for the actor."""
        ...


def find(candidates: Iterable[Candidate], ask: Ask, nodes: Nodes) -> tuple[str, Admitted] | dict[str, str]:
    """Reserves on one node, or says why each refuses.

    Nodes whose GPUs are given to others, by Ray's count, are not asked. Of the rest, those with the fewest free GPUs come first, so that actors
    with many GPUs still find room. One is asked, then two, then four: most of the time the first takes it. Each asker has its own order among
    equals, so that many askers do not all go to one node.

    Raises:
        OptionError: The contract is none.
    """
    reasons: dict[str, str] = {}
    fitting: list[Candidate] = []
    for each in candidates:
        if not each.has_headway:
            reasons[each.node] = (
                f"it has no label `{GPUS_LABEL}`: install Headway there, and start Ray with `--labels \"$(headway ray labels)\"`"
            )
        elif each.gpus_free < ask.gpus:
            reasons[each.node] = f"by Ray's count, {each.gpus_free:g} of its {each.gpus:g} GPUs are free, and the actor needs {ask.gpus}"
        else:
            fitting.append(each)
    random.shuffle(fitting)
    fitting.sort(key=lambda each: each.gpus_free)
    to_ask, at_once = [each.node for each in fitting], 1
    while to_ask:
        batch, to_ask = to_ask[:at_once], to_ask[at_once:]
        at_once = min(2 * at_once, _AT_ONCE_MAX)
        for node, answer in nodes.try_ask(batch, ask):
            # Between both questions somebody else may have been faster.
            final = nodes.reserve(node, ask) if isinstance(answer, Admitted) else answer
            if isinstance(final, Admitted):
                return node, final
            if isinstance(final, OptionError):
                raise final
            reasons[node] = str(final)
    return reasons


def silent(seconds: float) -> NodeRefusal:
    """The answer of a node that gives none."""
    return NodeRefusal(f"it did not answer within {seconds:g} s")
