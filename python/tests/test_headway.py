"""The package as its users see it, without a GPU."""

from __future__ import annotations

import itertools
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headway as hw
import numpy as np
import pytest
from headway import _native
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]


def camera(deadline: str = "66 ms") -> hw.Stream:
    steps = [hw.copy_in(), hw.compute("spin"), hw.copy_out()]
    return hw.Stream("camera", packet="6 MiB", period="33 ms", deadline=deadline, steps=steps)


def robot(deadline: str = "66 ms") -> hw.Workload:
    results = hw.Message("results", "2 ms", [hw.Block("gpu0", "host", "1 MB")])
    return hw.Workload("robot", streams=[camera(deadline)], messages=[results])


def test_a_plan_says_whether_deadlines_hold_and_why() -> None:
    plan = hw.machine("h200-x1").plan(robot())
    assert plan.verdict == "schedulable" and plan.accepted and plan.exact
    assert plan.margin is not None and plan.margin > 1
    assert 0 < plan.utilisation < 1
    assert list(plan.bounds) == ["camera", "results"]
    bound = plan.bounds["camera"]
    assert bound.bound_ns is not None and bound.bound_ns < bound.deadline_ns == 66_000_000
    assert "verdict   schedulable" in plan.explain()
    assert "schedulable" in repr(plan) and "<pre>" in plan._repr_html_()  # pyright: ignore[reportPrivateUsage]
    margins = [margin for margin in plan.limits.values() if margin is not None]
    assert margins == sorted(margins) and margins


def test_a_plan_is_the_one_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "robot.toml"
    file.write_text(robot().text)
    said = subprocess.run(
        ["headway", "plan", str(file), "--machine", "h200-x1"], check=True, capture_output=True, text=True
    )
    assert hw.machine("h200-x1").plan(file).explain() == said.stdout


def test_a_no_is_an_answer_and_can_be_simulated() -> None:
    plan = hw.machine("h200-x1").plan(robot("700 us"))
    assert not plan.accepted and plan.verdict != "schedulable"
    assert plan.simulate(duration="100 ms").deadlines > 0


def test_simulations_are_rows_and_the_same_seed_gives_them_again() -> None:
    plan = hw.machine("h200-x1").plan(robot())
    simulation = plan.simulate(seeds=3, duration="1 s", kernel_min=0.2, driver_late="50 us")
    assert simulation.seeds == [1, 2, 3]
    assert simulation.held and simulation.misses == 0
    rows = simulation.to_dicts()
    assert [row["name"] for row in rows] == ["camera", "results"] * 3
    assert all(row["max_ns"] <= row["bound_ns"] <= row["deadline_ns"] for row in rows)
    assert rows[2:4] == plan.simulate(seeds=[2], duration="1 s", kernel_min=0.2, driver_late="50 us").to_dicts()
    assert rows[0]["max_ns"] != rows[2]["max_ns"]


def test_pandas_gets_a_row_for_each_stream_and_seed() -> None:
    pytest.importorskip("pandas")
    table = hw.machine("h200-x1").plan(robot()).simulate(seeds=2, duration="1 s").to_pandas()
    assert list(table["seed"]) == [1, 1, 2, 2]
    assert {"median_ns", "p99_ns", "max_ns", "misses", "bound_ns"} <= set(table.columns)


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    simulation = hw.machine("h200-x1").plan(robot()).simulate(duration="100 ms")
    with pytest.raises(ModuleNotFoundError, match=r"\[pandas\]"):
        simulation.to_pandas()


def test_an_error_of_a_workload_shows_its_place() -> None:
    with pytest.raises(hw.WorkloadError) as caught:
        hw.Workload("robot", streams=[hw.Stream("camera", "6", "33 ms", "66 ms", [hw.copy_in()])])
    error = caught.value
    assert isinstance(error, ValueError) and error.kind == "file"
    assert error.message == '`packet = "6"` has no unit' and error.help == 'write `packet = "6 B"`'
    assert error.place is not None
    assert error.place.source_line == 'packet = "6"' and error.place.column == 10
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.place == error.place and type(again) is type(error)


def test_a_machine_beside_others(tmp_path: Path) -> None:
    shipped = hw.machine("h200-x1")
    with pytest.raises(hw.MachineError, match="how long another process keeps a copy engine"):
        shipped.beside(1)
    turns = """
[[arbitration]]
direction = "{}"
time = "20 ms"
whole = [1073741824, 1000000, 100, 20000000]
process = [200, 1055181, 1062854, 1080704]
"""
    shown = subprocess.run(["headway", "machines", "h200-x1"], check=True, capture_output=True, text=True).stdout
    file = tmp_path / "node.toml"
    file.write_text(shown + turns.format("h2d") + turns.format("d2h"))
    machine = hw.machine(str(file))
    alone, beside = machine.plan(robot()), machine.beside(1).plan(robot())
    assert alone.margin is not None and (beside.margin is None or beside.margin < alone.margin)


def test_errors_have_classes_that_users_catch(tmp_path: Path) -> None:
    machine = hw.machine("h200-x1")
    with pytest.raises(hw.NotFound, match="did you mean `h200-x1`"):
        hw.machine("h200x1")
    with pytest.raises(hw.NotFound, match="headway measure"):
        hw.node(tmp_path / "machine.toml")
    with pytest.raises(hw.NotFound):
        hw.Workload.load(tmp_path / "none.toml")
    with pytest.raises(hw.MachineError, match="1 GPU"):
        machine.with_gpus(9)
    (tmp_path / "machine.toml").write_text("name = 3\n")
    with pytest.raises(hw.MachineError) as caught:
        hw.node(tmp_path / "machine.toml")
    assert caught.value.place is not None and caught.value.place.line == 1
    with pytest.raises(hw.OptionError, match="`serial`"):
        machine.plan(robot(), strategy="best")
    with pytest.raises(hw.WorkloadError, match="tasks"):
        machine.plan(ROOT / "workloads/track.toml")
    plan = machine.plan(robot())
    all_wrong: list[Callable[[], hw.Simulation]] = [
        lambda: plan.simulate(duration="0 ns"),
        lambda: plan.simulate(duration="2"),
        lambda: plan.simulate(duration=-1),
        lambda: plan.simulate(seeds=0),
        lambda: plan.simulate(seeds=[-1]),
        lambda: plan.simulate(kernel_min=1.5),
    ]
    for wrong in all_wrong:
        with pytest.raises(hw.OptionError):
            wrong()


def test_what_is_no_part_of_a_workload_is_refused_by_name() -> None:
    any_part: Any
    for any_part in ([3], "in", 3, None):
        with pytest.raises(hw.OptionError, match="`streams`.*\n.*headway.Stream"):
            hw.Workload("wrong", streams=any_part)
        with pytest.raises(hw.OptionError, match="`steps` of stream `a`.*\n.*headway.Step"):
            hw.Workload("wrong", streams=[hw.Stream("a", "1 MiB", "33 ms", "33 ms", steps=any_part)])
        with pytest.raises(hw.OptionError, match="`blocks` of message `m`.*\n.*headway.Block"):
            hw.Workload("wrong", messages=[hw.Message("m", "33 ms", blocks=any_part)])
    with pytest.raises(hw.OptionError, match="`messages`"):
        hw.Workload("wrong", messages=any_part)


def test_what_is_no_path_and_numbers_without_bounds_are_named() -> None:
    wrong: Any
    for wrong in (3, None, b"h200-x1".split()):
        with pytest.raises(hw.OptionError, match="`name="):
            hw.machine(wrong)
        with pytest.raises(hw.OptionError, match="`path="):
            hw.machine("h200-x1").plan(wrong)
    for wrong in (3, b"machine.toml"):
        with pytest.raises(hw.OptionError, match="`path="):
            hw.node(wrong)
        for option in ("machine", "log"):
            options: Any = {option: wrong}
            with pytest.raises(hw.OptionError, match=f"`{option}="), hw.preload_env(**options):
                pass
    for number, fact in ((-5, "negative"), (10**30, "too large")):
        with pytest.raises(hw.OptionError, match=f"^`{number}` is {fact}"):
            hw.Workload("w", streams=[hw.Stream("s", number, "1 ms", "1 ms", [hw.copy_in()])])


def test_numbers_that_are_none_are_refused_by_name() -> None:
    machine = hw.machine("h200-x1")
    wrong: Any
    for wrong in (-1, 1 << 32, "two", 1.5, True):
        with pytest.raises(hw.OptionError, match="`others`"):
            machine.beside(wrong)
    plan = machine.plan(robot())
    for wrong in ("many", 2.5, None, 10**9, itertools.count()):
        with pytest.raises(hw.OptionError, match="`seeds`"):
            plan.simulate(seeds=wrong)
    for wrong in (["a"], [1.5], [-1], []):
        with pytest.raises(hw.OptionError, match="seed"):
            plan.simulate(seeds=wrong)
    for wrong in ("half", 2, True):
        with pytest.raises(hw.OptionError, match="`kernel_min`"):
            plan.simulate(kernel_min=wrong)


def test_numbers_of_numpy_are_numbers() -> None:
    machine = hw.machine("h200-x1")
    plan = machine.plan(robot())
    some: Any = np.arange(2, 4)
    share: Any = np.float32(0.5)
    assert plan.simulate(seeds=some, duration="66 ms", kernel_min=share).seeds == [2, 3]
    one: Any = np.int64(1)
    assert plan.simulate(seeds=one, duration="66 ms").seeds == [1]


def test_this_machine_is_the_file_that_measure_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = subprocess.run(["headway", "machines", "h200-x1"], check=True, capture_output=True, text=True).stdout
    (tmp_path / "machine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert hw.node().name == hw.machine("h200-x1").name


def test_ctrl_c_ends_a_simulation(ctrl_c: threading.Timer) -> None:
    plan = hw.machine("h200-x1").plan(robot())
    with pytest.raises(KeyboardInterrupt):
        ctrl_c.start()
        plan.simulate(seeds=100_000, duration="10 s")


def test_other_threads_run_during_a_simulation() -> None:
    plan = hw.machine("h200-x1").plan(robot())
    ticks = 0
    ended = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not ended.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    plan.simulate(seeds=50, duration="2 s")
    ended.set()
    thread.join()
    assert ticks > 3


def test_what_the_planner_tried_goes_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="headway"):
        hw.machine("h200-x1").plan(robot())
    assert any(record.name == "headway.plan" and "strategy tried" in record.message for record in caplog.records)


def test_a_guest_gets_what_exec_sets() -> None:
    environment = {"LD_PRELOAD": "/other.so", "HEADWAY_GUEST_LOG": "old", "HOME": "/"}
    with hw.preload_env(pin_once="3 GiB", aside=True, flow="bulk", chunk="4 MiB", depth=4, stats=True, env=environment) as made:
        library, other = made["LD_PRELOAD"].split(":")
        assert Path(library).name == "libheadway_preload.so" and Path(library).is_file() and other == "/other.so"
        assert "HEADWAY_GUEST_LOG" not in made and environment["HEADWAY_GUEST_LOG"] == "old"
    command = ["headway", "exec", "--pin-once=3 GiB", "--aside", "--flow=bulk", "--yield=4 MiB", "--depth=4", "--stats", "--", "/usr/bin/env"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"HEADWAY_GUEST={made['HEADWAY_GUEST']}" in said.splitlines()
    with pytest.raises(hw.GuestError, match="64 KiB"), hw.preload_env(chunk="1 KiB"):
        pass
    with pytest.raises(hw.GuestError, match="1 to 1024"), hw.preload_env(depth=0):
        pass
    with pytest.raises(hw.GuestError, match="fast"), hw.preload_env(pin_once=True, fast=False):
        pass
    with pytest.raises(hw.OptionError, match="urgent"), hw.preload_env(flow="urgent"):  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        pass
    with pytest.raises(hw.OptionError, match="sometimes"), hw.preload_env(aside="sometimes"):  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        pass


def test_a_program_runs_as_a_guest() -> None:
    with hw.preload_env() as env:
        done = subprocess.run([sys.executable, "-c", "print(open('/proc/self/maps').read())"], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "libheadway_preload.so" in done.stdout


def test_the_doctor_says_what_is_missing() -> None:
    found = hw.doctor(watch="1 ms")
    assert found["version"] == hw.__version__
    assert {check["state"] for check in found["checks"]} <= {"ok", "missing", "limited"}


def test_import_needs_no_other_package() -> None:
    code = (
        "import sys; before = set(sys.modules); import headway; "
        "print({name.partition('.')[0] for name in set(sys.modules) - before} & {'numpy', 'pandas', 'torch'} or '')"
    )
    assert subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


def test_the_program_is_that_of_this_version() -> None:
    for command in (["headway"], [sys.executable, "-I", "-m", "headway"]):
        said = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True).stdout
        assert said.startswith(f"headway {hw.__version__} ")
    assert subprocess.run(["headway", "plan", "/nowhere"], capture_output=True).returncode == 2


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1, max_size=20)
times = st.integers(1_000, 10**9)
steps = st.lists(st.sampled_from([hw.copy_in(), hw.copy_out()]), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            hw.Stream,
            id=names,
            packet=st.integers(1, 1 << 30),
            period=times,
            deadline=times.map(lambda time: f"{time} us"),
            steps=st.just([hw.copy_in(), hw.copy_out()]),
            start=st.integers(0, 10**9),
            on_miss=st.sampled_from(["finish", "skip", "stop"]),
        ),
        max_size=5,
    ),
    st.lists(
        st.builds(hw.Message, id=names, period=times, blocks=st.just([hw.Block("host", "gpu0", "48 MB")])), max_size=3
    ),
    st.text(max_size=20),
)
def test_workloads_are_read_back_as_they_were(
    streams: list[hw.Stream], messages: list[hw.Message], description: str
) -> None:
    try:
        made = hw.Workload("any", streams=streams, messages=messages, description=description)
    except hw.WorkloadError as error:
        # Only the name, the description or an empty workload can be wrong here. The error says which.
        assert error.place is not None and not error.message.startswith("key with"), error
        return
    usual = made.to_toml()
    assert hw.Workload.from_toml(usual).to_toml() == usual
    assert hw.Workload.from_toml(made.text).to_toml() == usual


def test_stubs_name_what_the_module_has() -> None:
    stub = (ROOT / "python/headway/_native.pyi").read_text()
    for name in dir(_native):
        if not name.startswith("_"):
            assert f"def {name}(" in stub or f"class {name}:" in stub, name
