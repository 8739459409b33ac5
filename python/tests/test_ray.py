"""Actors with contracts on a cluster of three nodes on this computer, and a thousand nodes without Ray.

GPUs are declared, and what their copies cost is a machine file. Nothing here depends on how long anything takes: what needs time to be seen is asked
for again until it is there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import headway as hw
import pytest
from headway._programs_folder import FOLDER
from headway._ray_node import Admitted, Answer, Ask, NodeBook, NodeRefusal, Process
from headway._ray_search import Candidate, find

CAMERA = hw.FlowContract("camera", "in", "6 MiB", period="33 ms", deadline="5 ms")
RADAR = hw.FlowContract("radar", "in", "1 GiB", period="20 ms", deadline="20 ms")
PATIENCE_S = 120.0
Start = Callable[[dict[str, Any]], Any]


def ask(id: str, *contracts: hw.FlowContract, gpus: int = 1, lease_s: int = 60) -> Ask:
    return Ask(id, contracts or (CAMERA,), gpus, lease_s * 1_000_000_000)


class Clock:
    """Nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.now_ns = 5_000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


MACHINES = {name: hw.machine(name) for name in ("h200-x1", "h200-x4")}


def book(clock: Clock, record: Path | None = None, machine: str = "h200-x1", gpus: int = 8) -> NodeBook:
    return NodeBook(MACHINES[machine], gpus, record, clock)


def me() -> Process:
    found = Process.of(os.getpid())
    assert found is not None
    return found


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def process_of(child: subprocess.Popen[bytes]) -> Process:
    found = Process.of(child.pid)
    assert found is not None
    return found


def test_what_is_promised_is_what_the_flow_admission_promises(clock: Clock) -> None:
    machine = hw.machine("h200-x4")
    out = replace(CAMERA, name="result", direction="out", gpu=1)
    bounds = book(clock, machine="h200-x4").reserve(ask("a", CAMERA, out, gpus=2))
    assert len(bounds) == 2
    assert bounds[0] == max(machine.flow_bounds([replace(CAMERA, gpu=gpu)])[0] for gpu in range(4))


def test_a_contract_that_no_engine_can_keep_is_refused_with_proposals(clock: Clock) -> None:
    node = book(clock)
    with pytest.raises(hw.Refused) as refused:
        node.reserve(ask("a", RADAR))
    assert refused.value.proposals and node.reserved() == []


def test_gpus_are_promised_once_and_the_refusal_says_who_has_them(clock: Clock) -> None:
    node = book(clock, machine="h200-x4", gpus=4)
    node.reserve(ask("a", gpus=3))
    with pytest.raises(NodeRefusal, match="1 of its 4 GPUs are free of contracts, and the actor needs 2; `camera`"):
        node.reserve(ask("b", gpus=2))
    node.reserve(ask("c"))
    with pytest.raises(NodeRefusal, match="0 of its 4 GPUs"):
        node.reserve(ask("d"))


def test_no_more_gpus_are_promised_than_the_machine_file_or_ray_has(clock: Clock) -> None:
    for machine, gpus in [("h200-x1", 4), ("h200-x4", 1)]:
        with pytest.raises(NodeRefusal, match="it has 1 GPU with figures"):
            book(clock, machine=machine, gpus=gpus).reserve(ask("a", gpus=2))


def test_a_lease_ends_by_the_clock_of_the_node(clock: Clock) -> None:
    node = book(clock)
    node.reserve(ask("a", lease_s=60))
    clock.now_ns += 59_999_999_999
    with pytest.raises(NodeRefusal, match="more to start"):
        node.reserve(ask("b"))
    clock.now_ns += 1
    node.reserve(ask("b"))


def test_a_reservation_that_is_asked_for_again_is_the_same_and_its_lease_goes_on(clock: Clock) -> None:
    node = book(clock)
    first = node.reserve(ask("a", lease_s=60))
    clock.now_ns += 30_000_000_000
    assert node.reserve(ask("a", lease_s=60)) == first
    clock.now_ns += 30_000_000_000
    assert node.reserved() == []


def test_a_confirmed_reservation_outlives_its_lease_and_ends_with_its_process(
    clock: Clock, child: subprocess.Popen[bytes]
) -> None:
    node = book(clock)
    node.reserve(ask("a"))
    node.confirm(ask("a"), process_of(child))
    clock.now_ns += 10**15
    assert len(node.reserved()) == 1
    # It is not waited for: what has ended and still has a number holds nothing.
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert node.reserved() == []


def test_who_confirms_late_is_asked_again(clock: Clock) -> None:
    node = book(clock)
    node.reserve(ask("a", lease_s=1))
    clock.now_ns += 10**10
    node.reserve(ask("b"))
    with pytest.raises(NodeRefusal, match="0 of its 1 GPU"):
        node.confirm(ask("a", lease_s=1), me())
    clock.now_ns += 10**12
    assert node.confirm(ask("a", lease_s=1), me())


def test_a_reservation_is_for_one_process(clock: Clock, child: subprocess.Popen[bytes]) -> None:
    node = book(clock)
    node.reserve(ask("a"))
    node.confirm(ask("a"), me())
    assert node.confirm(ask("a"), me())
    with pytest.raises(NodeRefusal, match=f"process {os.getpid()} has this reservation"):
        node.confirm(ask("a"), process_of(child))


def test_a_process_that_is_not_seen_is_refused(clock: Clock) -> None:
    with pytest.raises(NodeRefusal, match="does not see process"):
        book(clock).confirm(ask("a"), replace(me(), started=1))


def test_a_node_that_starts_again_knows_what_it_has_promised(
    clock: Clock, tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    record = tmp_path / "node.json"
    node = book(clock, record, "h200-x4")
    node.reserve(ask("leased"))
    node.confirm(ask("lives"), me())
    node.confirm(ask("dies"), process_of(child))
    child.kill()
    child.wait()
    again = book(clock, record, "h200-x4")
    assert [each.ask.id for each in again.reserved()] == ["leased", "lives"]
    assert again.reserved() == node.reserved()
    clock.now_ns += 60_000_000_000
    assert [each.ask.id for each in again.reserved()] == ["lives"]


def test_what_cannot_be_recorded_is_not_promised(clock: Clock, tmp_path: Path) -> None:
    node = book(clock, tmp_path / "gone" / "node.json")
    with pytest.raises(NodeRefusal, match="cannot write"):
        node.reserve(ask("a"))
    assert node.reserved() == []


def test_a_damaged_record_is_said_and_nothing_is_promised(clock: Clock, tmp_path: Path) -> None:
    record = tmp_path / "node.json"
    book(clock, record).reserve(ask("a"))
    (good,) = json.loads(record.read_text())
    typed: list[dict[str, Any]] = [
        {"lease_ends_ns": "soon"},
        {"holder": {"pid": "self", "started": 1}},
        {"ask": {**good["ask"], "gpus": "all"}},
    ]
    for text in ["", "[1]", '[{"ask": 3}]', "[" * 100_000, *(json.dumps([{**good, **each}]) for each in typed)]:
        record.write_text(text)
        with pytest.raises(NodeRefusal, match="damaged"):
            book(clock, record)
    record.unlink()
    record.mkdir()
    with pytest.raises(NodeRefusal, match="cannot be read: Is a directory"):
        book(clock, record)
    record.rmdir()
    os.mkfifo(record)
    with pytest.raises(NodeRefusal, match="cannot be read: it is not a regular file"):
        book(clock, record)


def test_what_is_given_back_is_free_before_its_lease_ends(
    clock: Clock, child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    record = tmp_path / "node.json"
    node = book(clock, record)
    node.reserve(ask("a"))
    node.give_back(ask("another"))
    with pytest.raises(NodeRefusal):
        node.reserve(ask("b"))
    node.give_back(ask("a"))
    assert book(clock, record).reserved() == []
    node.reserve(ask("b"))
    # Its actor comes after all, and is asked for as if it had just asked.
    with pytest.raises(NodeRefusal, match="more to start"):
        node.confirm(ask("a"), me())
    node.confirm(ask("b"), process_of(child))
    with pytest.raises(NodeRefusal, match=f"process {child.pid} has it until it ends"):
        node.give_back(ask("b"))
    assert [each.ask.id for each in node.reserved()] == ["b"]


class Simulated:
    """Nodes in this process. Each counts its questions."""

    def __init__(self, books: dict[str, NodeBook]) -> None:
        self.books = books
        self.asked: list[str] = []
        self.rounds = 0
        self.reserved = 0

    def try_ask(self, nodes: Sequence[str], ask: Ask) -> Iterable[tuple[str, Answer]]:
        self.rounds += 1
        self.asked.extend(nodes)
        for node in nodes:
            yield node, self._answer(self.books[node].try_ask, ask)

    def reserve(self, node: str, ask: Ask) -> Answer:
        self.reserved += 1
        return self._answer(self.books[node].reserve, ask)

    @staticmethod
    def _answer(decide: Callable[[Ask], tuple[int, ...]], ask: Ask) -> Answer:
        try:
            return Admitted(decide(ask), "simulated")
        except hw.HeadwayError as refusal:
            return refusal


def thousand(clock: Clock) -> Simulated:
    return Simulated({f"node-{number:03}": book(clock) for number in range(1000)})


def candidates(nodes: Simulated, free: int = 1) -> list[Candidate]:
    return [Candidate(node, 1, free, has_headway=True) for node in nodes.books]


def test_of_a_thousand_idle_nodes_one_is_asked(clock: Clock) -> None:
    nodes = thousand(clock)
    found = find(candidates(nodes), ask("a"), nodes)
    assert isinstance(found, tuple)
    assert nodes.asked == [found[0]] and nodes.reserved == 1


def test_nodes_whose_gpus_are_given_to_others_are_not_asked(clock: Clock) -> None:
    nodes = thousand(clock)
    refused = find([Candidate("plain", 1, 1, has_headway=False), *candidates(nodes, free=0)], ask("a"), nodes)
    assert isinstance(refused, dict) and len(refused) == 1001 and nodes.asked == []
    assert "0 of its 1 GPUs are free" in refused["node-007"] and "headway ray labels" in refused["plain"]


def test_where_ray_does_not_know_yet_all_are_asked_once_and_in_few_rounds(clock: Clock) -> None:
    nodes = thousand(clock)
    for number, node in enumerate(nodes.books.values()):
        node.reserve(ask(str(number)))
    refused = find(candidates(nodes), ask("a"), nodes)
    assert isinstance(refused, dict) and len(refused) == 1000
    assert sorted(nodes.asked) == sorted(nodes.books) and nodes.rounds <= 22 and nodes.reserved == 0


def test_the_last_gpu_goes_to_one_of_two_askers(clock: Clock) -> None:
    nodes = Simulated({"a": book(clock)})

    class Slower(Simulated):
        def reserve(self, node: str, ask: Ask) -> Answer:
            # Somebody else comes between both questions.
            find([Candidate(node, 1, 1, has_headway=True)], replace(ask, id="faster"), nodes)
            return super().reserve(node, ask)

    refused = find([Candidate("a", 1, 1, has_headway=True)], ask("slower"), Slower(nodes.books))
    assert isinstance(refused, dict) and "0 of its 1 GPU" in refused["a"]
    assert [each.ask.id for each in nodes.books["a"].reserved()] == ["faster"]


def test_nodes_with_few_free_gpus_are_filled_first(clock: Clock) -> None:
    nodes = Simulated({name: book(clock, machine="h200-x4") for name in ("idle", "used")})
    known = [Candidate("idle", 4, 4, has_headway=True), Candidate("used", 4, 1, has_headway=True)]
    found = find(known, ask("a"), nodes)
    assert isinstance(found, tuple) and found[0] == "used"


def run_python(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """In another folder: beside the package's sources, they would be imported."""
    env = {name: value for name, value in os.environ.items() if name != "HEADWAY_MACHINE"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**env, **variables}, capture_output=True, text=True, timeout=PATIENCE_S
    )


COMMAND = "import sys; sys.argv[0] = 'headway'; sys.argv[1:] = {}; import headway.__main__ as program; program.main()"


def test_labels_are_printed_without_ray(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; " + COMMAND.format(["ray", "labels"])
    assert run_python(tmp_path, code, HEADWAY_MACHINE="h200-x4").stdout == "headway-gpus=4,headway-machine=h200-x4\n"
    for said, words in [(None, "is not set"), ("a/b.toml", "is not absolute"), ("h2000", "h200")]:
        failed = run_python(tmp_path, code, **({} if said is None else {"HEADWAY_MACHINE": said}))
        assert failed.returncode == 2 and words in failed.stderr and "Traceback" not in failed.stderr


def test_without_ray_the_errors_say_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['ray'] = None; "
    for code in ["import headway.ray", COMMAND.format(["ray", "status"])]:
        failed = run_python(tmp_path, hidden + code)
        assert failed.returncode != 0 and "pip install './python[ray]'" in failed.stderr


def test_the_package_does_not_import_ray(tmp_path: Path) -> None:
    assert run_python(tmp_path, "import sys, headway; sys.exit('ray' in sys.modules)").returncode == 0


def real_ray() -> Any:
    """Ray, whose types are incomplete."""
    return pytest.importorskip("ray", reason="needs Ray: pip install './python[ray]'")


class Nodes:
    """Three nodes of this computer: one without Headway, two with one GPU each."""

    def __init__(self, cluster: Any, machine: str) -> None:
        self.cluster = cluster
        self.actors: list[Any] = []
        cluster.add_node(num_cpus=1, num_gpus=0, object_store_memory=80 << 20, include_dashboard=False)
        labels = {"headway-gpus": "1", "headway-machine": "test"}
        self.gpu_nodes: list[Any] = [
            cluster.add_node(
                num_cpus=1, num_gpus=1, object_store_memory=80 << 20, labels=labels, env_vars={"HEADWAY_MACHINE": machine}
            )
            for _ in range(2)
        ]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    ray, utils = real_ray(), import_module("ray.cluster_utils")
    folder = tmp_path_factory.mktemp("ray")
    before = os.getcwd()
    with pytest.MonkeyPatch.context() as patch:
        # Ray's workers import from the folder that this process is in, and beside the package's sources they would be imported.
        patch.chdir(folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_enable_metrics_collection", "0")
        patch.delenv("HEADWAY_MACHINE", raising=False)
        machine = folder / "machine.toml"
        printed = subprocess.run(
            [FOLDER / "headway", "machines", "h200-x1"], capture_output=True, check=True, timeout=PATIENCE_S
        )
        machine.write_bytes(printed.stdout)
        cluster, made = None, None
        # Ray gives a node 30 s to start, which a busy computer may exceed.
        for attempts_left in (2, 1, 0):
            cluster = utils.Cluster()
            try:
                made = Nodes(cluster, str(machine))
                break
            except Exception as error:
                cluster.shutdown()
                if not attempts_left:
                    pytest.skip(f"Ray did not start its nodes: {error}")
        assert cluster and made
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            cluster.shutdown()
    assert os.getcwd() == before


@pytest.fixture
def idle(nodes: Nodes) -> Nodes:
    """The cluster, once what other tests have left has ended."""

    ray = real_ray()
    # They would live as long as any frame knows them.
    while nodes.actors:
        ray.kill(nodes.actors.pop())

    def free() -> bool:
        return ray.available_resources().get("GPU") == ray.cluster_resources()["GPU"] and not any(reservations())

    eventually(free)
    return nodes


def eventually(holds: Callable[[], Any]) -> Any:
    """What `holds` gives at last. What is waited for needs no certain time, and no test hangs."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.1)
    raise AssertionError("it does not come true")


def reservations() -> list[dict[str, Any]]:
    import headway.ray

    told: list[Any] = [node["promised"] for node in headway.ray.status()]
    return [each for promised in told if promised and not isinstance(promised, str) for each in promised["reservations"]]


def place(contract: hw.FlowContract = CAMERA, **more: Any) -> dict[str, Any]:
    import headway.ray

    return headway.ray.options(contract=contract, **more)


def place_eventually(**more: Any) -> dict[str, Any]:
    """Ray's own count of free GPUs is late."""
    import headway.ray

    def tried() -> dict[str, Any] | None:
        try:
            return place(**more)
        except headway.ray.AdmissionRefused:
            return None

    return cast("dict[str, Any]", eventually(tried))


def refusal(**more: Any) -> Any:
    import headway.ray

    with pytest.raises(headway.ray.AdmissionRefused) as refused:
        place(**more)
    return refused.value


@pytest.fixture
def start(idle: Nodes) -> Start:
    """Starts an actor that confirms, as a user writes it, with the arguments that it is given."""
    ray = real_ray()
    class Camera:
        def __init__(self) -> None:
            import headway.ray

            self.held = headway.ray.confirm()

        def facts(self) -> dict[str, Any]:
            maps = Path("/proc/self/maps").read_text()
            return {
                "pid": os.getpid(),
                "node": self.held.node,
                "names": [contract.name for contract in self.held.contracts],
                "bounds_ns": self.held.bounds_ns,
                "machine": self.held.machine.name,
                "is_guest": "libheadway_preload.so" in maps and b"libheadway_preload.so" in Path("/proc/self/environ").read_bytes(),
                "preload": os.environ["LD_PRELOAD"],
                "mine": os.environ.get("MINE"),
            }

    def started(placed: dict[str, Any]) -> Any:
        made = ray.remote(Camera)
        idle.actors.append(made.options(num_cpus=0, **placed).remote())
        return idle.actors[-1]

    return started


def facts(actor: Any) -> dict[str, Any]:
    ray = real_ray()
    return cast("dict[str, Any]", ray.get(actor.facts.remote(), timeout=PATIENCE_S))


def node_actor_pid(node: str) -> int:
    """The process of a node's actor."""

    def process_number(_: object) -> int:
        return os.getpid()

    ray = real_ray()
    handle = ray.get_actor(f"headway-node-{node}", namespace="headway")
    return int(ray.get(handle.__ray_call__.remote(process_number), timeout=PATIENCE_S))


def test_two_actors_are_admitted_on_two_nodes_and_the_third_is_refused_with_reasons(idle: Nodes, start: Start) -> None:
    left, right = start(place()), start(place_eventually(runtime_env={"env_vars": {"MINE": "$", "LD_PRELOAD": "libc.so.6"}}))
    first, second = facts(left), facts(right)
    assert first["node"] != second["node"] and first["pid"] != second["pid"]
    assert first["bounds_ns"] == second["bounds_ns"] == tuple(MACHINES["h200-x1"].flow_bounds([CAMERA]))
    assert first["machine"] == "h200-x1" and first["is_guest"] and second["is_guest"]
    assert second["mine"] == "$" and second["preload"].endswith("libheadway_preload.so:libc.so.6")
    refused = refusal()
    assert len(refused.reasons) == 3 and {first["node"], second["node"]} < set(refused.reasons)
    assert sum("headway ray labels" in reason for reason in refused.reasons.values()) == 1
    assert "`camera` is not admitted" in str(refused) and sorted(each["pid"] for each in reservations()) == sorted([first["pid"], second["pid"]])


def test_what_no_node_can_promise_is_refused_by_each_with_its_proposals(idle: Nodes) -> None:
    import headway.ray

    with pytest.raises(headway.ray.AdmissionRefused) as refused:
        headway.ray.options(contract=[CAMERA, RADAR])
    assert sum("at most" in reason for reason in refused.value.reasons.values()) == 2
    wrong: list[dict[str, Any]] = [
        *({"num_gpus": gpus} for gpus in (0, 0.5, None, float("nan"), True)),
        *({"runtime_env": {"env_vars": given}} for given in ({"MINE": 1}, {"LD_PRELOAD": None}, ["MINE"])),
        {"runtime_env": {"pip": [], "conda": "base"}},
        {"lease": "soon"},
    ]
    for each in wrong:
        with pytest.raises(hw.OptionError):
            place(**each)
    for contract in [replace(CAMERA, gpu=1), replace(CAMERA, direction="up"), replace(CAMERA, period="0 ms")]:
        with pytest.raises(hw.OptionError):
            headway.ray.options(contract=contract)
    changed: Any = replace
    untyped: list[Any] = [[], [None], changed(CAMERA, gpu="0")]
    untyped += [changed(CAMERA, name=name) for name in (None, "", "a\0b", "a\nb", "a\ud800", 256 * "a", 128 * "\u00e4")]
    for untyped_contract in untyped:
        with pytest.raises(hw.OptionError):
            headway.ray.options(contract=untyped_contract)
    text: Any = "camera"
    with pytest.raises(hw.OptionError, match="`'camera'` is no contract"):
        headway.ray.options(contract=text)
    assert reservations() == []


def test_the_capacity_of_an_actor_that_is_killed_comes_back(idle: Nodes, start: Start) -> None:
    ray = real_ray()
    actors = [start(place()), start(place_eventually())]
    pids = [facts(actor)["pid"] for actor in actors]
    refusal()
    os.kill(pids[0], signal.SIGKILL)
    again = start(place_eventually())
    assert facts(again)["pid"] not in pids
    ray.kill(actors[1])
    assert facts(start(place_eventually()))["node"]


def test_a_node_actor_that_is_killed_knows_what_it_has_promised(idle: Nodes, start: Start) -> None:
    actor = start(place())
    lives = facts(actor)
    leased = place_eventually()
    killed = [lives["node"], leased["label_selector"]["ray.io/node-id"]]
    before = [node_actor_pid(node) for node in killed]
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    refused = refusal()
    # One by Ray's count, which has a GPU for the actor that did not start yet; the other by what its node knows.
    assert "an actor that has" in refused.reasons[killed[1]] and lives["node"] in refused.reasons
    assert [node_actor_pid(node) for node in killed] != before
    assert {each["pid"] for each in reservations()} == {lives["pid"], None}
    assert facts(actor)["pid"] == lives["pid"]
    assert facts(start(leased))["node"] == killed[1]


def test_a_node_actor_is_killed_between_reservation_and_confirmation(idle: Nodes, start: Start) -> None:
    # Ray would put variables in place of such a name.
    placed = place(contract=replace(CAMERA, name="$HOME ${HOME}"))
    node = placed["label_selector"]["ray.io/node-id"]
    os.kill(node_actor_pid(node), signal.SIGKILL)
    found = facts(start(placed))
    assert found["node"] == node and found["names"] == ["$HOME ${HOME}"]


def test_a_node_actor_that_is_ended_for_good_is_started_again(idle: Nodes, start: Start) -> None:
    ray = real_ray()
    actor = start(place())
    held = facts(actor)
    ray.kill(ray.get_actor(f"headway-node-{held['node']}", namespace="headway"))
    # Nobody has asked the new one yet, or what is asked first starts it with what it had promised.
    other = start(place_eventually())
    assert facts(other)["node"] != held["node"]
    ray.kill(actor)
    assert facts(start(place_eventually()))["node"] == held["node"]


def test_a_node_answers_all_jobs_and_goes_by_the_environment_of_none(idle: Nodes, tmp_path: Path) -> None:
    import headway.ray

    ray = real_ray()
    for node in headway.ray.status():
        if node["promised"] is not None:
            ray.kill(ray.get_actor(f"headway-node-{node['node']}", namespace="headway"))
    eventually(lambda: all(node["promised"] is None for node in headway.ray.status()))
    job = {"env_vars": {"HEADWAY_MACHINE": "h200-x4", "PYTHONHOME": "/nonexistent"}, "py_executable": "/nonexistent"}
    code = (
        f"import headway, headway.ray, ray; ray.init(address={idle.cluster.address!r}, runtime_env={job!r}); "
        "headway.ray.options(contract=headway.FlowContract('camera', 'in', '6 MiB', period='33 ms', deadline='5 ms'), lease='1 ms')"
    )
    asked = run_python(tmp_path, code)
    assert asked.returncode == 0, asked.stderr
    # Its figures are those of the node's file.
    told = [node["promised"] for node in headway.ray.status() if node["promised"] is not None]
    assert [promised["machine"] for promised in told] == ["h200-x1"]


def test_an_actor_whose_node_is_silent_ends(idle: Nodes) -> None:
    ray = real_ray()

    class Camera:
        def __init__(self) -> None:
            import headway.ray

            headway.ray.confirm(timeout="1 s")

        def facts(self) -> None:
            pass

    placed = place(lease="1 s")
    stopped = node_actor_pid(placed["label_selector"]["ray.io/node-id"])
    os.kill(stopped, signal.SIGSTOP)
    try:
        actor = ray.remote(Camera).options(num_cpus=0, **placed).remote()
        with pytest.raises(ray.exceptions.ActorDiedError, match="it did not answer within 1 s"):
            facts(actor)
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_what_never_starts_is_free_after_its_lease(idle: Nodes, start: Start) -> None:
    never = [place(lease="1 s"), place_eventually(lease="1 s")]
    placed = place_eventually()
    late = [each for each in never if each["label_selector"] == placed["label_selector"]]
    actor = start(placed)
    assert facts(actor)["node"]
    assert len(late) == 1


def test_what_is_given_back_is_free_at_once_but_not_what_an_actor_holds(idle: Nodes, start: Start) -> None:
    import headway.ray

    both = [place(lease="1000 s"), place(lease="1000 s")]
    for placed in both:
        headway.ray.give_back(placed)
    placed = place(lease="1000 s")
    facts(start(placed))
    with pytest.raises(headway.ray.AdmissionRefused, match="has it until it ends"):
        headway.ray.give_back(placed)
    with pytest.raises(hw.OptionError, match="has no reservation"):
        headway.ray.give_back({"runtime_env": {}})


def test_arguments_are_for_one_actor(idle: Nodes, start: Start) -> None:
    ray = real_ray()
    died = ray.exceptions.ActorDiedError
    placed = place()
    node = placed["label_selector"]["ray.io/node-id"]
    first = start(placed)
    assert facts(first)["node"] == node
    # It would wait for a GPU without end; without one it may start.
    with pytest.raises(died, match="has 0 GPUs, and 1 are promised"):
        facts(start({**placed, "num_gpus": 0}))
    with pytest.raises(died, match="pass `label_selector` on"):
        facts(start({**placed, "label_selector": {"ray.io/node-id": f"!{node}"}}))
    ray.kill(first)


def test_an_actor_asks_its_own_node_and_a_task_may_not(idle: Nodes) -> None:
    ray = real_ray()
    class Replica:
        def __init__(self) -> None:
            import headway.ray

            self.held = headway.ray.admit_here(contract=CAMERA)

        def node(self) -> str:
            return self.held.node

    def task() -> None:
        import headway.ray

        headway.ray.admit_here(contract=CAMERA)

    made = ray.remote(Replica)
    replica = made.options(num_gpus=1, num_cpus=0).remote()
    idle.actors.append(replica)
    node = ray.get(replica.node.remote(), timeout=PATIENCE_S)
    assert [each["lease_left_ns"] for each in reservations()] == [None] and len(node) == 56
    asked = ray.remote(task)
    half = made.options(num_gpus=0.5, num_cpus=0).remote()
    with pytest.raises(ray.exceptions.ActorDiedError, match="whole ones"):
        ray.get(half.node.remote(), timeout=PATIENCE_S)
    with pytest.raises(hw.OptionError, match="this is no actor"):
        ray.get(asked.options(num_gpus=1).remote(), timeout=PATIENCE_S)
    with pytest.raises(hw.OptionError, match="this is no actor"):
        task()
    with pytest.raises(hw.OptionError, match="nothing is reserved"):
        import headway.ray

        headway.ray.confirm()


def test_the_command_tells_who_holds_what(idle: Nodes, start: Start, tmp_path: Path) -> None:
    held = facts(start(place()))
    code = COMMAND.format(["ray", "status", "--address", idle.cluster.address])
    text = run_python(tmp_path, code).stdout
    assert f"camera: 1 GPU, process {held['pid']}" in text and text.count("has no Headway") == 1, text
    told = json.loads(run_python(tmp_path, COMMAND.format(["ray", "status", "--format", "json", "--address", idle.cluster.address])).stdout)
    assert len(told) == 3 and any(each["node"] == held["node"] and each["promised"]["gpus_free"] == 0 for each in told)


def test_a_node_that_leaves_takes_its_promises_with_it(idle: Nodes, start: Start) -> None:
    actors = [start(place()), start(place_eventually())]
    held = [facts(actor) for actor in actors]
    lost = idle.gpu_nodes.pop()
    idle.cluster.remove_node(lost, allow_graceful=True)
    refused = eventually(lambda: refused if len((refused := refusal()).reasons) == 2 else None)
    left = next(each for each in held if each["node"] in refused.reasons)
    os.kill(left["pid"], signal.SIGKILL)
    assert facts(start(place_eventually()))["node"] == left["node"]


def test_of_many_askers_at_once_one_gets_the_last_gpu(idle: Nodes) -> None:
    ray = real_ray()
    def asker() -> str | None:
        import headway.ray

        try:
            return str(headway.ray.options(contract=CAMERA, lease="10 min")["label_selector"]["ray.io/node-id"])
        except headway.ray.AdmissionRefused:
            return None

    asked = ray.remote(asker)
    won = ray.get([asked.options(num_cpus=0.2).remote() for _ in range(3)], timeout=PATIENCE_S)
    # One node with a GPU is left.
    assert len([node for node in won if node]) == 1
