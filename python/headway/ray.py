"""Actors of Ray on nodes that can keep their deadlines. `pip install './python[ray]'` gets Ray.

    contract = hw.FlowContract("camera", "in", "6 MiB", period="33 ms", deadline="5 ms")
    placed = headway.ray.options(contract=contract, num_gpus=1)
    camera = Camera.options(**placed).remote()

    @ray.remote
    class Camera:
        def __init__(self):
            self.held = headway.ray.confirm()
            self.flow = self.held.machine.flow(self.held.contracts[0], dst=.., src=..)

What is promised is promised by one node for its own copies. Nothing is promised of what nodes send to each other.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway._errors import HeadwayError, OptionError
from headway._flow import FlowContract
from headway._machine import machine as _machine
from headway._ray_node import Admitted, Answer, Ask, NodeActor, NodeRefusal, Process, checked, gpus_text
from headway._ray_search import GPUS_LABEL, Candidate, find, silent
from headway._units import Time, nanoseconds

if TYPE_CHECKING:
    from headway._machine import Machine

try:
    # Its types are incomplete.
    ray: Any = import_module("ray")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("Ray is not installed; `pip install ray`, or install Headway with the extra: `pip install './python[ray]'`", name="ray") from error
state: Any = import_module("ray._private.state")

__all__ = ["AdmissionRefused", "Reservation", "admit_here", "confirm", "give_back", "options", "status"]

_NAMESPACE = "headway"
_NODE_ID = "ray.io/node-id"
_RESERVATION = "HEADWAY_RAY_RESERVATION"
_TOLD_MAX = 5
_VARIABLES_OF_NODE = ("HEADWAY_", "LD_", "PYTHON", "__RAY_WORKER_PROCESS_SETUP_HOOK")
"""How the names of variables begin that decide which code a process runs, and by which machine file."""


class AdmissionRefused(HeadwayError):
    """No node takes an actor with this contract. Nothing has changed.

    Attributes:
        reasons: Why, for each node by its id.
    """

    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Reservation:
    """What a node has promised to this process. It holds until the process ends.

    Attributes:
        node: The node's id in Ray.
        contracts: The flows that were promised; open each by `machine.flow`.
        bounds_ns: The longest response of each, in nanoseconds.
    """

    node: str
    contracts: tuple[FlowContract, ...]
    bounds_ns: tuple[int, ...]
    _machine: str

    @property
    def machine(self) -> Machine:
        """The machine whose figures the promise goes by."""
        return _machine(self._machine)


def options(
    *,
    contract: FlowContract | Sequence[FlowContract],
    num_gpus: int = 1,
    runtime_env: Mapping[str, Any] | None = None,
    lease: Time = "60 s",
    timeout: Time = "30 s",
) -> dict[str, Any]:
    """Finds a node that can keep a contract, reserves GPUs there, and gives the arguments for `.options(...)` of one actor.

    The actor calls `confirm` when it starts. Its process is a guest of Headway (`headway exec`). Serve takes the arguments as
    `ray_actor_options`, for a deployment with one replica; several replicas call `admit_here`.

    Args:
        contract: The flows that the actor will open; their `gpu` counts the actor's own GPUs.
        num_gpus: How many GPUs it gets, whole ones: a promise holds while no other process copies on them.
        runtime_env: The actor's, to which Headway's variables are added.
        lease: How long the actor may take until it confirms.
        timeout: The longest wait for nodes that do not answer. First one node is asked, then two, four, and so on; each time may take so long.

    Raises:
        AdmissionRefused: No node takes it: `reasons` has each node's.
        OptionError: The contract is none, there is no whole number of GPUs, or Ray does not take `runtime_env`.
    """
    ask, seconds = _ask(contract, num_gpus, nanoseconds(lease)), nanoseconds(timeout) / 1e9
    given = _environment(runtime_env)
    variables = given.get("env_vars", {})
    nodes = _Nodes(seconds, variables.get("LD_PRELOAD", _job_preload()))
    found = find(nodes.candidates(), ask, nodes)
    if not isinstance(found, tuple):
        raise _refused(ask, found)
    node, _ = found
    # Ray puts variables in place of `$NAME`.
    reservation = json.dumps({"node": node, **ask.to_dict()}).replace("$", "\\u0024")
    given["env_vars"] = {**variables, **nodes.guest, _RESERVATION: reservation}
    return {"num_gpus": num_gpus, "label_selector": {_NODE_ID: node}, "runtime_env": given}


def confirm(*, timeout: Time = "30 s") -> Reservation:
    """Takes what `options` has reserved for this actor, and keeps it until this process ends. To be called in the actor's `__init__`.

    After the lease has ended, and in an actor that Ray has started again, it is asked for again.

    Raises:
        AdmissionRefused: The lease has ended, and the node cannot promise it any more; or another actor has it.
        OptionError: This is no actor with arguments of `options`.
    """
    text = os.environ.get(_RESERVATION)
    if not text:
        raise OptionError(
            "nothing is reserved for this process; start the actor with `.options(**headway.ray.options(..))`, or call `headway.ray.admit_here`"
        )
    node, ask = _reservation(text)
    return _hold(ask, node, timeout)


def give_back(placed: Mapping[str, Any], *, timeout: Time = "30 s") -> None:
    """Ends what `options` has reserved before its lease does, for an actor that will not come or has failed before it confirmed.

    Args:
        placed: What `options` gave.

    Raises:
        AdmissionRefused: An actor has confirmed it and holds it until it ends, or the node does not answer.
        OptionError: `placed` is nothing that `options` gave.
    """
    try:
        node, ask = _reservation(placed["runtime_env"]["env_vars"][_RESERVATION])
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError("`placed` has no reservation; give what `headway.ray.options` gave") from error
    answer = _Nodes(nanoseconds(timeout) / 1e9).call(node, "give_back", ask)
    if not isinstance(answer, Admitted):
        raise _refused(ask, {node: str(answer)})


def admit_here(*, contract: FlowContract | Sequence[FlowContract], timeout: Time = "30 s") -> Reservation:
    """Asks the node of this actor for a contract on the actor's GPUs, and keeps it until this process ends.

    Raises:
        AdmissionRefused: The node cannot promise it.
        OptionError: The contract is none, or the actor has no whole GPU.
    """
    _check_is_actor()
    gpus = _assigned_gpus()
    if gpus < 1 or gpus != int(gpus):
        raise OptionError(f"this actor has {gpus:g} GPUs, and a contract needs whole ones: start it with `num_gpus=1`")
    return _hold(_ask(contract, int(gpus), 0), ray.get_runtime_context().get_node_id(), timeout)


def status(*, timeout: Time = "30 s") -> list[dict[str, Any]]:
    """What each living node of the cluster has promised. Nodes that nobody has asked yet are not asked here, either.

    Returns:
        For each node `node`, `address`, `headway` (whether it has the labels), `gpus_ray`, and `promised`: `None`, a text that says what is wrong, or
        what the node tells.
    """
    nodes = _Nodes(nanoseconds(timeout) / 1e9)
    asked = {each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == _NAMESPACE}
    told = dict(nodes.calls([node for node in nodes.table if _name(node) in asked], "told"))
    return [
        {
            "node": each.node,
            "address": nodes.table[each.node]["NodeManagerAddress"],
            "headway": each.has_headway,
            "gpus_ray": each.gpus,
            "promised": str(told[each.node]) if isinstance(told.get(each.node), HeadwayError) else told.get(each.node),
        }
        for each in nodes.candidates()
    ]


def _ask(contract: FlowContract | Sequence[FlowContract], gpus: object, lease_ns: int) -> Ask:
    # What is no sequence of contracts is refused by what it is, and not by its parts.
    is_one = isinstance(contract, str | bytes | Mapping) or not isinstance(contract, Iterable)
    contracts = (contract,) if is_one else tuple(cast("Iterable[object]", contract))
    if not contracts:
        raise OptionError("there is no contract; give at least one `FlowContract`")
    # Ray takes 1.0 for 1.
    whole = int(gpus) if isinstance(gpus, float) and gpus.is_integer() else gpus
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < 1:
        raise OptionError(f"`num_gpus` is {gpus!r}, and a contract needs whole GPUs: no other process may copy on them")
    return Ask(uuid.uuid4().hex, tuple(checked(each, whole) for each in contracts), whole, lease_ns)


def _reservation(text: str) -> tuple[str, Ask]:
    facts = json.loads(text)
    node: str = facts.pop("node")
    return node, Ask.of_dict(facts)


def _environment(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What Ray takes for an actor's environment, before anything is reserved for that actor."""
    try:
        made = dict(given or {})
        if made.get("env_vars", {}) is None:
            del made["env_vars"]
        ray.runtime_env.RuntimeEnv(**made)
    except (TypeError, ValueError) as error:
        raise OptionError(f"`runtime_env` is not what Ray takes: {error}") from error
    return made


def _hold(ask: Ask, node: str, timeout: Time) -> Reservation:
    _check_is_actor()
    context = ray.get_runtime_context()
    if context.get_node_id() != node:
        raise OptionError(f"this actor runs on node {context.get_node_id()}, and node {node} was asked; pass `label_selector` on, too")
    if _assigned_gpus() != ask.gpus:
        raise OptionError(f"this actor has {_assigned_gpus():g} GPUs, and {ask.gpus} are promised; pass `num_gpus` on, too")
    me = Process.of(os.getpid())
    answer = _Nodes(nanoseconds(timeout) / 1e9).call(node, "confirm", ask, me)
    if isinstance(answer, OptionError):
        raise answer
    if not isinstance(answer, Admitted):
        raise _refused(ask, {node: str(answer)})
    return Reservation(node, ask.contracts, answer.bounds_ns, answer.machine)


def _refused(ask: Ask, reasons: Mapping[str, str]) -> AdmissionRefused:
    told = [f"node {node[:12]}: {reason.splitlines()[0]}" for node, reason in list(reasons.items())[:_TOLD_MAX]]
    if len(reasons) > _TOLD_MAX:
        told.append(f"and {len(reasons) - _TOLD_MAX} more, in `reasons`")
    which = "the cluster has no nodes" if not reasons else "no node takes it"
    error = AdmissionRefused(f"an actor with {gpus_text(ask.gpus)} and {ask.title} is not admitted: {which}", kind="refused", causes=told)
    error.reasons = dict(reasons)
    return error


def _check_is_actor() -> None:
    # Outside of Ray's workers this has none, and other questions end with an assertion of Ray's.
    if ray.get_runtime_context().get_actor_id() is None:
        raise OptionError("this is no actor: a task's process goes on after the task, and would keep what was promised; ask in the actor's `__init__`")


def _assigned_gpus() -> float:
    return float(ray.get_runtime_context().get_assigned_resources().get("GPU", 0))


def _job_preload() -> str:
    """What `LD_PRELOAD` would say without Headway: the job's, else what Ray gives to its workers, which it puts in place of this text."""
    variables: dict[str, str] = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    return variables.get("LD_PRELOAD", "${LD_PRELOAD}")


def _environment_of_node() -> dict[str, Any]:
    """What a node's actor gets in place of the environment of the job that asks first, which Ray would give to it: it answers all jobs.

    A job's packages and files stay, since Ray has no word for none of them; a node's actor needs none of them.
    """
    job: dict[str, Any] = ray.get_runtime_context().runtime_env
    # Ray puts what the node itself has in place of such a text.
    given: dict[str, str] = job.get("env_vars") or {}
    variables = {name: f"${{{name}}}" for name in given if name.startswith(_VARIABLES_OF_NODE)}
    return {"env_vars": variables, **{field: "" for field in ("py_executable", "conda", "image_uri") if field in job}}


class _Nodes:
    """The living nodes of the cluster, and their actors, which start when they are asked first."""

    def __init__(self, seconds: float, preload: str = "") -> None:
        self.table: dict[str, dict[str, Any]] = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
        self._seconds = seconds
        self._preload = preload
        self.guest: dict[str, str] = {}
        """Variables of a guest on the node that was asked last to reserve."""

    def candidates(self) -> list[Candidate]:
        free: dict[str, dict[str, float]] = state.available_resources_per_node()
        return [
            Candidate(
                node, each["Resources"].get("GPU", 0), free.get(node, {}).get("GPU", 0), GPUS_LABEL in each["Labels"]
            )
            for node, each in self.table.items()
        ]

    def call(self, node: str, method: str, *arguments: object) -> Any:
        """What the node's actor answers, or why there is no answer."""
        return next(iter(self.calls([node], method, *arguments)))[1]

    def try_ask(self, nodes: Sequence[str], ask: Ask) -> Iterable[tuple[str, Answer]]:
        return self.calls(nodes, "try_ask", ask)

    def reserve(self, node: str, ask: Ask) -> Answer:
        # Before anything is reserved: a node that cannot start a guest is a node that refuses.
        guest = self.call(node, "environment", self._preload)
        if isinstance(guest, HeadwayError):
            return NodeRefusal(str(guest))
        self.guest = guest
        return cast("Answer", self.call(node, "reserve", ask))

    def calls(self, nodes: Sequence[str], method: str, *arguments: object) -> Iterable[tuple[str, Any]]:
        calls: dict[Any, str] = {}
        for node in nodes:
            try:
                calls[getattr(self._actor(node), method).remote(*arguments)] = node
            except (ray.exceptions.RayError, ValueError) as error:
                yield node, NodeRefusal(f"its actor cannot be reached: {_last_line(error)}")
        pending, end = list(calls), time.monotonic() + self._seconds
        while pending:
            done, pending = ray.wait(pending, timeout=max(0.0, end - time.monotonic()))
            if not done:
                # Ray lets no process of an actor end before its questions, and a node that goes on would still do what nobody waits for.
                for each in pending:
                    ray.cancel(each)
                yield from ((calls[each], silent(self._seconds)) for each in pending)
                return
            for each in done:
                try:
                    yield calls[each], ray.get(each)
                except ray.exceptions.RayError as error:
                    yield calls[each], NodeRefusal(f"its actor failed: {_last_line(error)}")

    def _actor(self, node: str) -> Any:
        if node not in self.table:
            raise ValueError("the node has left the cluster")
        facts = self.table[node]
        made: Any = ray.remote(NodeActor)
        placed = made.options(
            name=_name(node),
            namespace=_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            label_selector={_NODE_ID: node},
            runtime_env=_environment_of_node(),
        )
        # Ray's own files of this node lie there, and go with it.
        record = Path(facts["RayletSocketName"]).with_name(f"headway-{node}.json")
        return placed.remote(int(facts["Resources"].get("GPU", 0)), str(record))


def _name(node: str) -> str:
    return f"headway-node-{node}"


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
