"""What simulations of a plan gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Response:
    """Times of several packets. Each of them occurred: median and 99th percentile are by nearest rank.

    Attributes:
        min_ns: The shortest.
        median_ns: The median.
        p99_ns: The 99th percentile; `None` of fewer than 100.
        max_ns: The longest.
    """

    min_ns: int
    median_ns: int
    p99_ns: int | None
    max_ns: int


@dataclass(frozen=True)
class StreamResult:
    """What one stream, message or demand experienced with one seed.

    Attributes:
        seed: The seed.
        name: The stream, message or demand.
        kind: `"stream"`, `"message"` or `"demand"`.
        expected: Packets or jobs that were expected.
        delivered: Those that were delivered.
        misses: Those that were delivered late.
        lost: Those that were never delivered.
        deadline_ns: From arrival to deadline.
        bound_ns: The longest response that the plan allows, or `None` where it proves none.
        response: From arrival to delivery, or `None` where nothing was delivered.
    """

    seed: int
    name: str
    kind: str
    expected: int
    delivered: int
    misses: int
    lost: int
    deadline_ns: int
    bound_ns: int | None
    response: Response | None


class Simulation:
    """Simulated runs of a plan, one for each seed. Every figure is one of the model."""

    def __init__(self, summaries: list[dict[str, Any]]) -> None:
        self.summaries = summaries
        """The summary of each run as `headway report --format json` prints it; docs/json.md describes the fields."""
        self.streams = [result for summary in summaries for result in _results(summary)]
        """What each stream, message and demand experienced with each seed."""

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order of `summaries`."""
        return [summary["seed"] for summary in self.summaries]

    @property
    def misses(self) -> int:
        """Deadlines that were missed, with all seeds together: late deliveries and those that never came."""
        return sum(summary["verdict"]["misses"] + summary["verdict"]["lost"] for summary in self.summaries)

    @property
    def deadlines(self) -> int:
        """Deadlines there were, with all seeds together."""
        return sum(summary["verdict"]["deadlines"] for summary in self.summaries)

    @property
    def held(self) -> bool:
        """Whether every deadline held with every seed."""
        return all(summary["verdict"]["held"] for summary in self.summaries)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A flat row for each stream and seed; times are nanoseconds."""
        rows: list[dict[str, Any]] = []
        for result in self.streams:
            row = asdict(result)
            response = row.pop("response") or dict.fromkeys(Response.__dataclass_fields__)
            rows.append({**row, **response})
        return rows

    def to_pandas(self) -> pandas.DataFrame:
        """The rows of `to_dicts` as a table of pandas.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            help = "pandas is not installed; `pip install pandas`, or install Headway with the extra: `pip install './python[pandas]'`"
            raise ModuleNotFoundError(help, name="pandas") from error
        return pandas.DataFrame(self.to_dicts())

    def __repr__(self) -> str:
        seeds = len(self.summaries)
        runs = "1 seed" if seeds == 1 else f"{seeds} seeds"
        return f"<headway.Simulation of {runs}: {self.misses} of {self.deadlines} deadlines missed>"


def _results(summary: dict[str, Any]) -> list[StreamResult]:
    results = [_result(summary["seed"], "stream", stream) for stream in summary["streams"]]
    for kind, key in (("message", "messages"), ("demand", "demands")):
        results += [_result(summary["seed"], kind, jobs) for jobs in summary.get(key, [])]
    return results


def _result(seed: int, kind: str, found: dict[str, Any]) -> StreamResult:
    times = found["response"]
    response = None if times is None else Response(times["min"], times["median"], times["p99"], times["max"])
    return StreamResult(
        seed=seed,
        name=found["id"],
        kind=kind,
        expected=found["packets" if kind == "stream" else "jobs"],
        delivered=found["delivered"],
        misses=found["misses"],
        lost=found["lost"],
        deadline_ns=found["deadline"],
        bound_ns=found["bound"],
        response=response,
    )
