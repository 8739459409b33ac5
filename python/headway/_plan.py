"""Plans: whether every deadline holds, with what margin, and what limits it."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from numbers import Integral, Real
from typing import Any

from headway import _native
from headway._errors import OptionError
from headway._machine import Machine
from headway._simulation import Simulation
from headway._units import Time, is_a, nanoseconds
from headway._workload import Workload

_PPM = 1_000_000
_MOST_SEEDS = 1_000_000


@dataclass(frozen=True)
class Bound:
    """How long a stream, message or demand can take, beside what it may take.

    Attributes:
        bound_ns: The longest response that the plan allows, or `None` where it proves none.
        deadline_ns: From the arrival of a packet to its deadline.
    """

    bound_ns: int | None
    deadline_ns: int


class Plan:
    """Windows for every copy and kernel of a workload on a machine, with a verdict."""

    def __init__(self, native: _native.Plan, machine: Machine, workload: Workload) -> None:
        self._native = native
        self._facts: dict[str, Any] = json.loads(native.json())
        self.machine = machine
        self.workload = workload

    @property
    def verdict(self) -> str:
        """`"schedulable"`, `"not-schedulable"` or `"undecided"`."""
        return str(self._facts["verdict"]["outcome"])

    @property
    def accepted(self) -> bool:
        """Whether every deadline holds, which is proved."""
        return self.verdict == "schedulable"

    @property
    def exact(self) -> bool:
        """Whether, for these costs, a no would be a proof, too."""
        return bool(self._facts["verdict"]["strength"] == "exact")

    @property
    def margin(self) -> float | None:
        """The largest factor on all costs for which the answer is yes; below 1 for a no. `None` where it is not known."""
        margin: int | None = self._facts["verdict"]["margin_ppm"]
        return None if margin is None else margin / _PPM

    @property
    def utilisation(self) -> float:
        """The largest share of a server's time that is asked for; above 1 no plan can be accepted."""
        return float(self._facts["verdict"]["utilisation_ppm"] / _PPM)

    @property
    def strategy(self) -> str:
        """How copies are kept apart."""
        return str(self._facts["strategy"])

    @property
    def holds_for(self) -> str:
        """The model that the verdict holds for."""
        return str(self._facts["verdict"]["model"])

    @property
    def notes(self) -> list[str]:
        """Restrictions and warnings, a sentence each."""
        return list(self._facts["verdict"]["notes"])

    @property
    def limits(self) -> dict[str, float | None]:
        """The margin of every server, the least first: what would fail next. `None` where it is not known."""
        found = {server["name"]: server["verdict"]["margin_ppm"] for server in self._facts["servers"]}
        ordered = sorted(found.items(), key=lambda item: item[1] or 0)
        return {name: None if margin is None else margin / _PPM for name, margin in ordered}

    @property
    def bounds(self) -> dict[str, Bound]:
        """For each stream, message and demand by name, how long it can take and may take, in nanoseconds."""
        return {name: Bound(bound_ns, deadline_ns) for name, bound_ns, deadline_ns in self._native.bounds()}

    def explain(self) -> str:
        """The plan for people, as `headway plan` prints it."""
        return self._native.text()

    def to_dict(self) -> dict[str, Any]:
        """All of the plan, as `headway plan --format json` prints it; docs/json.md describes the fields."""
        return dict(self._facts)

    def simulate(
        self,
        seeds: int | Iterable[int] = 1,
        duration: Time | None = None,
        *,
        kernel_min: float | None = None,
        data_late: Time = 0,
        driver_late: Time = 0,
    ) -> Simulation:
        """Simulates the times of the plan, once for each seed, whatever its verdict.

        Every figure is one of the model. Without the options that vary something and without urgent requests, every seed gives the
        same times. The interpreter's lock is released meanwhile, all CPUs are used, and Ctrl-C ends it.

        Args:
            seeds: How many seeds, from 1 on, or the seeds themselves; at most a million.
            duration: How long packets arrive, such as `"2 s"`, or nanoseconds; `None` = what the workload says.
            kernel_min: Kernels take between this share of their worst case and all of it, as the seed draws; `None` = all of it.
            data_late: Packets come late by up to this time.
            driver_late: The program that submits copies is late by up to this time.

        Raises:
            OptionError: Nothing arrives in that time, or there is no seed or too many.
        """
        if is_a(seeds, str) or not is_a(seeds, Integral, Iterable):
            raise OptionError(f"`seeds` is a number of seeds, or the seeds themselves, not `{seeds!r}`")
        given = seeds if isinstance(seeds, Iterable) else range(1, int(seeds) + 1)
        chosen = list(islice(given, _MOST_SEEDS + 1))
        if len(chosen) > _MOST_SEEDS:
            raise OptionError(f"`seeds` are more than {_MOST_SEEDS}; simulate some at a time", help="give ranges, such as `range(1, 1001)`")
        if not chosen:
            raise OptionError("there is no seed to simulate with; give at least one")
        if any(not is_a(seed, Integral) or not 0 <= seed < 2**64 for seed in chosen):
            raise OptionError("a seed is a whole number from 0 to 2**64 - 1")
        if kernel_min is not None and (not is_a(kernel_min, Real) or not 0 <= kernel_min <= 1):
            raise OptionError(f"`kernel_min` is a share from 0 to 1, not `{kernel_min!r}`")
        texts = self._native.simulate(
            chosen,
            None if duration is None else nanoseconds(duration),
            None if kernel_min is None else round(kernel_min * _PPM),
            nanoseconds(data_late),
            nanoseconds(driver_late),
        )
        return Simulation([json.loads(text) for text in texts])

    def __repr__(self) -> str:
        margin = "" if self.margin is None else f", margin {self.margin:.2f}"
        return f"<headway.Plan {self.workload.name} on {self.machine.name}: {self.verdict}{margin}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.explain())}</pre>"


def strategies() -> list[str]:
    """Names of the ways to keep copies apart, for `Machine.plan`."""
    return _native.strategies()


def make(machine: Machine, workload: Workload | str | os.PathLike[str], strategy: str | None) -> Plan:
    """Plans `workload` on `machine`."""
    loaded = workload if isinstance(workload, Workload) else Workload.load(workload)
    native = _native.plan(machine._native, loaded._native, strategy)  # pyright: ignore[reportPrivateUsage]
    return Plan(native, machine, loaded)
