"""What the demos have in common: each runs itself in processes of its own, plain, under `headway exec`, and with the Python package.

A case is a process that prints one line of JSON with what it measured; the row compares cases. A process that fails is a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASE_SECONDS_MAX = 300


@dataclass
class Case:
    """One way to run the program: under `headway exec` with `options`, unless these are `None`."""

    name: str
    options: list[str] | None = None


@dataclass
class Demo:
    """A demo: what it shows, in which unit, and its cases, of which the first is what others are compared with."""

    what: str
    unit: str
    cases: list[Case]
    work: Callable[[argparse.Namespace, str], dict[str, Any]]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    description: str

    def main(self) -> None:
        parser = argparse.ArgumentParser(description=self.description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_arguments(parser)
        parser.add_argument("--device", default="cuda")
        parser.add_argument("--quick", action="store_true", help="less data, less than a minute")
        parser.add_argument("--json", type=Path, help="also write a line for each case there")
        parser.add_argument("--headway", help="path of the program `headway`; by default the one of the package, or of PATH")
        parser.add_argument("--only", help="cases, with commas between them")
        parser.add_argument("--case", help=argparse.SUPPRESS)
        args = parser.parse_args()
        if args.case:
            print(json.dumps(self.work(args, args.case)))
            return
        wanted = None if args.only is None else args.only.split(",")
        lines = [self.run(args, case) for case in self.cases if wanted is None or case.name in wanted]
        self.show(lines)
        if args.json:
            with args.json.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def run(self, args: argparse.Namespace, case: Case) -> dict[str, Any]:
        """What a case measured."""
        line: dict[str, Any] = {"demo": self.what, "case": case.name, "unit": self.unit}
        command = [sys.executable, sys.argv[0], *sys.argv[1:], "--case", case.name]
        if case.options is not None:
            program = headway(args.headway)
            if program is None:
                return {**line, "left_out": "there is no program `headway`; `pip install ./python`, or give --headway"}
            command = [*program, "exec", *case.options, "--", *command]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=CASE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return {**line, "left_out": f"it took more than {CASE_SECONDS_MAX} s"}
        found = [text for text in done.stdout.splitlines() if text.startswith("{")]
        if done.returncode != 0 or not found:
            reason = (done.stderr.strip().splitlines() or ["nothing on standard error"])[-1]
            return {**line, "left_out": f"status {done.returncode}: {reason}"}
        return {**line, **json.loads(found[-1])}

    def show(self, lines: list[dict[str, Any]]) -> None:
        """The row of the table."""
        first = next((line for line in lines if "value" in line), None)
        print(self.what)
        for line in lines:
            if "value" not in line:
                print(f"  {line['case']:<10} left out: {line['left_out']}")
                continue
            ratio = "" if line is first or first is None or not line["value"] else f"  {first['value'] / line['value']:5.1f} times"
            wrong = "" if line.get("equal", True) else "  WRONG BYTES"
            more = "".join(f", {name} {value}" for name, value in line.get("more", {}).items())
            print(f"  {line['case']:<10} {line['value']:10.3f} {self.unit}{ratio:<14} {line['cpus']:5.2f} CPUs{more}{wrong}")


def headway(given: str | None) -> list[str] | None:
    """The command of the program."""
    if given:
        return [given]
    here = Path(sys.executable).parent / "headway"
    if here.exists():
        return [str(here)]
    found = shutil.which("headway")
    return None if found is None else [found]


class Cpus:
    """CPU time of this process while it is open, divided by the time."""

    def __enter__(self) -> Cpus:
        self._begun, self._cpu = time.perf_counter(), self._used()
        return self

    def __exit__(self, *_given: object) -> None:
        self.seconds = time.perf_counter() - self._begun
        self.value = (self._used() - self._cpu) / self.seconds

    def _used(self) -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system


def synchronize(device: str) -> None:
    """Waits for the GPU."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def percentile(values: list[float], part: float) -> float:
    """The smallest value that is not exceeded by that part of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
