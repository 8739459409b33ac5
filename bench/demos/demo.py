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
        parser.add_argument("--device", default="cuda", help="the GPU, such as `cuda:1`")
        parser.add_argument("--quick", action="store_true", help="less data, less than a minute")
        parser.add_argument("--json", type=Path, help="also write a line for each case there")
        parser.add_argument("--headway", help="path of the program `headway`; by default the one of the package, or of PATH")
        parser.add_argument("--only", help="cases, with commas between them")
        parser.add_argument("--case", help=argparse.SUPPRESS)
        args = parser.parse_args()
        if args.case:
            print(json.dumps(self.work(args, args.case)))
            return
        names = [case.name for case in self.cases]
        wanted = names if args.only is None else args.only.split(",")
        if unknown := set(wanted) - set(names):
            parser.error(f"there is no case `{sorted(unknown)[0]}`; the cases are {', '.join(f'`{name}`' for name in names)}")
        if not args.device.startswith("cuda"):
            parser.error(f"`--device {args.device}` is no GPU; give `cuda` or `cuda:1`, for example")
        lines = [self.run(args, case) for case in self.cases if case.name in wanted]
        self.show(lines)
        if args.json:
            with args.json.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        if not any("value" in line for line in lines):
            sys.exit(1)

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
            return {**line, "left_out": f"status {done.returncode}: {last_error(done.stderr)}"}
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


def last_error(printed: str) -> str:
    """The last error of a program of Python on one line: all of it, as those of Headway end with what to do."""
    lines = printed.strip().splitlines() or ["nothing on standard error"]
    # What is indented is of a traceback.
    begins = max((at for at, line in enumerate(lines) if line.startswith((" ", "Traceback"))), default=len(lines) - 2) + 1
    return " ".join(line.strip() for line in lines[begins:])


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
