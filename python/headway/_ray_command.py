"""The command `headway ray`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from headway._errors import HeadwayError
from headway._ray_node import machine_of_node
from headway._ray_search import GPUS_LABEL, MACHINE_LABEL


def main(arguments: Sequence[str]) -> int:
    """Its exit status."""
    parser = argparse.ArgumentParser(prog="headway ray", description="Actors of Ray on nodes that can keep their deadlines.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("labels", help="print this node's labels, for `ray start --labels`")
    asked = commands.add_parser("status", help="print what each node of a cluster has promised to whom")
    asked.add_argument("--address", default="auto", help="the cluster's address [default: that of this computer]")
    asked.add_argument("--format", choices=["text", "json"], default="text", help="how it is written")
    given = parser.parse_args(arguments)
    try:
        print(labels() if given.command == "labels" else status(given.address, given.format))
    except (HeadwayError, ModuleNotFoundError, ConnectionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def labels() -> str:
    """Labels of this node, as `ray start --labels` takes them."""
    _, machine = machine_of_node()
    # What Ray takes as a label's value.
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", machine.name)[:63].strip("_.-") or "unnamed"
    return f"{GPUS_LABEL}={machine.gpus},{MACHINE_LABEL}={name}"


def status(address: str, form: str) -> str:
    """What the nodes of the cluster have promised."""
    from headway import ray as headway_ray

    ray = headway_ray.ray
    ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        nodes = headway_ray.status()
    finally:
        ray.shutdown()
    return json.dumps(nodes, indent=2) if form == "json" else "\n".join(line for node in nodes for line in _lines(node))


def _lines(node: dict[str, Any]) -> list[str]:
    promised: dict[str, Any] | str | None = node["promised"]
    title = f"node {node['node'][:12]} at {node['address']}"
    if not node["headway"]:
        return [f"{title}: has no Headway"]
    if promised is None:
        return [f"{title}: was not asked yet"]
    if isinstance(promised, str):
        return [f"{title}: {promised}"]
    free, gpus = promised["gpus_free"], promised["gpus"]
    lines = [f"{title}: machine {promised['machine']}, {free} of {gpus} GPUs free of contracts"]
    for each in promised["reservations"]:
        left_ns = each["lease_left_ns"]
        by = f"process {each['pid']}" if left_ns is None else f"reserved, {left_ns / 1e9:.0f} s left to start"
        names = ", ".join(contract["name"] for contract in each["contracts"])
        lines.append(f"  {names}: {each['gpus']} GPU{'' if each['gpus'] == 1 else 's'}, {by}")
    return lines
