"""The soak, for seconds instead of an hour: it runs through, and something that is left over is found."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from headway._programs_folder import FOLDER

SOAK = Path(__file__).resolve().parents[2] / "bench/soak.py"


def soak(headway: Path, out: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("cc") is None:
        pytest.skip("no compiler named `cc`")
    options = ["--backend", "emu", "--seed", "4", "--seconds", "8", "--every", "1", "--sample", "1", "--out", str(out)]
    return subprocess.run([sys.executable, str(SOAK), str(headway), *options], check=False, capture_output=True, text=True)


def test_clients_of_a_broker_are_killed_and_stopped_at_random_and_nothing_is_left_or_wrong(tmp_path: Path) -> None:
    done = soak(FOLDER / "headway", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 4\n") and "| not met |" not in done.stdout
    with (tmp_path / "out/samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["part"] for row in rows} >= {"broker", "guest 1", "guest 5", "flow 1", "flow 2", "run", "system"}
    with (tmp_path / "out/events.csv").open() as file:
        assert sum(1 for _ in csv.DictReader(file)) > 0


def test_a_soak_fails_and_names_a_file_that_a_broker_leaves(tmp_path: Path) -> None:
    left = Path("/dev/shm") / f"headway-soak-test-{os.getpid()}"
    leaks = tmp_path / "headway"
    leaks.write_text(f'#!/bin/sh\n[ "$1" != broker ] || touch {left}\nexec {FOLDER / "headway"} "$@"\n')
    leaks.chmod(0o755)
    try:
        done = soak(leaks, tmp_path / "out")
    finally:
        left.unlink(missing_ok=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert left.name in done.stderr and "/dev/shm" in done.stderr
