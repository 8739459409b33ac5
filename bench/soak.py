#!/usr/bin/env python3
"""Does Headway stay as small and as punctual as it began, while its processes are killed and stopped at random?

    python3 bench/soak.py HEADWAY [--seconds 3600] [--seed 1] [--backend emu|cuda] [--machine FILE] [--tasks PROGRAM] [--out FOLDER]

Runs for that long, beside each other and on one GPU: a broker, five guests under `headway exec`, two programs with a flow under the broker,
runs of a plan one after the other, and with `--tasks` the example `share_program`, again and again. At random times, drawn from the
seed, one of them is killed, or stopped for a while. `guest 1` and `flow 1` are spared, and nobody hits the broker in the second
half, so that something lives long enough to show that it grows. Needs the Python package `headway`, and with `--backend emu` a C compiler: guests
and flows copy by the driver libraries of our tests, which have no GPU behind them.

Writes `samples.csv`, `minutes.csv`, `events.csv`, `lates.csv`, `runs.csv` and `summary.md`, and with `headway-lab` beside HEADWAY also pictures. The exit
status is 1 if a target was not met.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
GUESTS = [["--aside"], ["--yield=1MiB"], ["--flow=bulk"], ["--fast=always"], ["--aside", "--flow=normal", "--stats"]]
WORKLOAD = """name = "soak"
description = "a frame and a result that have half a second each"

[run]
duration = "20 s"

[[message]]
id = "frame"
period = "500 ms"
blocks = [{ from = "host", to = "gpu0", bytes = "4 MB" }]

[[message]]
id = "result"
period = "500 ms"
blocks = [{ from = "gpu0", to = "host", bytes = "1 MB" }]
"""
# How programs pass a copy engine on to each other: `headway measure` finds it out on a GPU.
PASSED_ON = """
[[arbitration]]
direction = "{}"
time = "20 ms"
whole = [1073741824, 1000000, 100, 20000000]
process = [200, 1000000, 1000000, 1000000]
"""
WATCHDOG_S, RECOVER_S, DRAIN_S = 4.0, 2.0, 0.02
# After an event the watchdog may first have to find it out, then the broker may have to be started again, and then clients come back.
AFTERWARDS_S = WATCHDOG_S + DRAIN_S + RECOVER_S + 3.0
STOP_S_MAX = 8.0
# Who is not served for so long, though it runs and the broker does, is not served. The host may be busy.
PATIENCE_S = 60.0
LOG_BYTES, LOG_FILES = 4 << 20, 2
# A heap grows until it has what the busiest minute needs; a leak of a descriptor or a page for each client would be hundreds in an hour.
MEMORY_RATIO, MEMORY_KIB, DESCRIPTORS = 1.05, 2048, 4
# Files that stay until the computer is started again, as the documentation says.
LASTING_FILES = ("headway-cpus-", "headway-gpu-")
MARK = "HEADWAY_SOAK"
# What is drawn: measures with the name and unit that pictures have.
PICTURES = {
    "memory_kib": ("memory_mib", 1024),
    "descriptors": ("descriptors", 1),
    "locked_bytes": ("page_locked_mib", 1 << 20),
    "missed": ("missed", 1),
}
# How Headway ends what it says of a copy that took longer than promised, and nothing that the promise rests on is known to be broken.
UNKNOWN = "no assumption is known to be broken"
# Shorter quarters, and those with fewer samples, say nothing of growth: clients come and go.
QUARTER_S_MIN, SAMPLES_MIN = 60.0, 20


Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | float | int | None


# What guests and programs with flows do.


def say(**line: object) -> None:
    print(json.dumps({"at": time.monotonic(), **line}), flush=True)


class Driver:
    """The CUDA driver, or a library that stands in for it, with GPU 0."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def allocate(self, count: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        return address.value

    def page_locked(self, count: int) -> int:
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(count), 0)
        return address.value or 0

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def locked_bytes(self) -> int | None:
        """Bytes that are page-locked for this process; the CUDA driver does not tell."""
        for name in ("fake_locked", "headway_fake_locked"):
            if hasattr(self._library, name):
                asked = getattr(self._library, name)
                asked.restype = ctypes.c_size_t
                return int(asked())
        return None


def guest() -> None:
    """Knows nothing of Headway: large and small copies out of page-locked memory, and both ways from ordinary memory, all compared."""
    driver = Driver("libcuda.so.1")
    large, small, ordinary = 4 << 20, 4096, 2 << 20
    words = random.Random(os.getpid()).randbytes(large)
    there = driver.allocate(large)
    driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(there), words, ctypes.c_size_t(large))
    streams = [driver.stream(), driver.stream()]
    places = [driver.page_locked(large), driver.page_locked(small)]
    copies = wrong = 0
    parent, said = os.getppid(), 0.0
    while os.getppid() == parent:
        for stream, place, count in zip(streams, places, (large, small)):
            ctypes.memset(place, 0, count)
            driver.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(place), ctypes.c_uint64(there), ctypes.c_size_t(count), stream)
        for stream, place, count in list(zip(streams, places, (large, small)))[::-1]:
            driver.call("cuStreamSynchronize", stream)
            wrong += ctypes.string_at(place, count) != words[:count]
        fresh = ctypes.create_string_buffer(ordinary)
        driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(there), words, ctypes.c_size_t(ordinary))
        driver.call("cuMemcpyDtoH_v2", fresh, ctypes.c_uint64(there), ctypes.c_size_t(ordinary))
        wrong += fresh.raw != words[:ordinary]
        copies += 4
        if time.monotonic() - said > 0.9:
            said = time.monotonic()
            say(copies=copies, wrong=wrong, locked=driver.locked_bytes())
        time.sleep(0.25)


class Memory:
    """Memory of the GPU, as arrays show theirs."""

    def __init__(self, driver: Driver, count: int) -> None:
        address = driver.allocate(count)
        self.__cuda_array_interface__ = {"version": 3, "shape": (count,), "typestr": "|u1", "data": (address, False), "strides": None, "stream": None}
        self.address = address


def flow(name: str, machine: str, broker: str) -> None:
    """Copies into the GPU twice a second by a flow, which it opens again whenever the broker has ended."""
    import headway

    driver = Driver(os.environ.get("HEADWAY_LIBCUDA", "libcuda.so.1"))
    count = 2 << 20
    there, host = Memory(driver, count), headway.pinned_empty(count, "uint8")
    back = ctypes.create_string_buffer(count)
    copies = beyond = missed = wrong = refused = lost = 0
    parent, said = os.getppid(), 0.0
    while os.getppid() == parent:
        try:
            with headway.machine(machine).flow(name, dst=there, src=host, period="500 ms", deadline="400 ms", broker=broker) as camera:
                while os.getppid() == parent:
                    host[:] = copies % 251
                    report = camera.copy()
                    driver.call("cuMemcpyDtoH_v2", back, ctypes.c_uint64(there.address), ctypes.c_size_t(count))
                    wrong += back.raw != bytes([copies % 251]) * count
                    copies, beyond = copies + 1, beyond + (report.response_ns > report.bound_ns)
                    unknown = any(UNKNOWN in why for why in report.blame)
                    missed += report.missed
                    if report.missed or unknown:
                        say(missed_one=report.missed, response_ns=report.response_ns, bound_ns=report.bound_ns, blame=report.blame)
                    if time.monotonic() - said > 0.9:
                        said = time.monotonic()
                        say(copies=copies, beyond=beyond, missed=missed, wrong=wrong, refused=refused, lost=lost, locked=driver.locked_bytes())
        except headway.Refused as error:
            refused += 1
            say(refused=refused, why=str(error))
            time.sleep(0.5)
        except headway.HeadwayError as error:
            lost += 1
            say(lost=lost, why=str(error))
            time.sleep(0.5)


# What looks after them.


@dataclass
class Event:
    """One hit: from when to when its target did nothing."""

    start: float
    part: str
    action: str
    end: float


@dataclass
class Run:
    """A run of the plan."""

    start: float
    end: float
    killed: bool
    deadlines: int = 0
    misses: int = 0
    releases_late: int = 0
    unpromised: str = ""
    explained: str = ""


@dataclass
class Late:
    """A copy of a flow that missed its deadline, or took longer than promised for a reason that is not known."""

    at: float
    missed: bool
    blame: str


@dataclass
class Part:
    """A process that is started again whenever it ends."""

    name: str
    kind: str
    command: list[str]
    env: dict[str, str]
    said: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    lives: int = 0
    again_at: float = 0.0
    is_stopped: bool = False
    continue_at: float = 0.0
    kill_after: bool = False
    hit_at: float = -1e9
    fine_since: float = 0.0
    read_to: int = 0
    at_rest: dict[str, int] = field(default_factory=dict[str, int])
    last: dict[str, int] = field(default_factory=dict[str, int])
    locked: int | None = None
    served: int = 0
    late: list[Late] = field(default_factory=list[Late])

    def start(self) -> None:
        with self.said.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=self.env)
        self.started = self.fine_since = time.monotonic()
        self.lives += 1
        self.is_stopped = self.kill_after = False

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def listen(self) -> None:
        """Reads what it has said since."""
        with self.said.open("rb") as file:
            file.seek(self.read_to)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.read_to += len(whole)
        for line in whole.splitlines():
            # Its driver and its interpreter may say something, too.
            if not line.startswith(b'{"at": '):
                continue
            heard: dict[str, Any] = json.loads(line)
            if "blame" in heard:
                self.late.append(Late(heard["at"], heard["missed_one"], "; ".join(heard["blame"])))
            if "copies" in heard:
                self.fine_since = max(self.fine_since, heard["at"])
                self.served += 1
                self.locked = heard["locked"]
            for name in ("copies", "beyond", "missed", "wrong", "refused", "lost"):
                if name in heard:
                    self.last[name] = heard[name]

    def ended(self) -> None:
        """What it had counted stays."""
        self.listen()
        for name, value in self.last.items():
            self.at_rest[name] = self.at_rest.get(name, 0) + value
        self.last, self.locked = {}, None

    def count(self, name: str) -> int:
        return self.at_rest.get(name, 0) + self.last.get(name, 0)


@dataclass
class Target:
    """Something that must hold, and what was found."""

    what: str
    measured: str
    met: bool
    remedy: str


def process_figures(pid: int) -> dict[str, int]:
    """What the system says of a process; nothing if it has gone."""
    place = Path("/proc") / str(pid)
    try:
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
        kib = {name: int(status[name].split()[0]) for name in ("VmRSS", "VmLck", "VmPin")}
        maps = (place / "maps").read_bytes().count(b"\n")
        return {
            "memory_kib": kib["VmRSS"],
            "system_locked_kib": kib["VmLck"] + kib["VmPin"],
            "threads": int(status["Threads"]),
            "descriptors": len(os.listdir(place / "fd")),
            "maps": maps,
        }
    except (OSError, KeyError, ValueError):
        return {}


def metrics(path: Path) -> dict[str, float]:
    """Series of the broker without a process of their own, summed over their labels; nothing while it does not answer."""
    found: dict[str, float] = defaultdict(float)
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(2.0)
            line.connect(str(path))
            line.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = b""
            while more := line.recv(1 << 16):
                text += more
    except OSError:
        return {}
    for row in text.decode().splitlines():
        if row.startswith("headway_") and "pid=" not in row:
            name, value = row.rsplit(" ", 1)
            found[name.split("{", 1)[0]] += float(value)
    return dict(found)


def marked(token: str) -> dict[int, str]:
    """Processes of this soak, by their environment."""
    found: dict[int, str] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                if f"{MARK}={token}".encode() in (place / "environ").read_bytes().split(b"\0"):
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
    return found


class Soak:
    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self.args, self.place, self.out = args, place, Path(args.out)
        self.random = random.Random(args.seed)
        self.token = f"{os.getpid()}-{time.time_ns()}"
        self.socket, self.metrics_at, self.machine = place / "broker", place / "metrics", args.machine
        self.began = time.monotonic()
        self.events: list[Event] = []
        self.runs: list[Run] = []
        self.samples: list[tuple[float, str, int, str, float]] = []
        self.faults: list[str] = []
        self.pids: set[int] = set()
        self.silent = self.asked = 0
        self.broker_back = self.began
        self.parts = self.all_parts()

    def all_parts(self) -> list[Part]:
        headway, place, emulated = str(Path(self.args.headway).resolve()), self.place, self.args.backend == "emu"
        env = {**os.environ, MARK: self.token, "HEADWAY_BROKER": str(self.socket), "XDG_CACHE_HOME": str(place / "cache")}
        guest_env, flow_env = dict(env), dict(env)
        if emulated:
            compiler = ["cc", "-shared", "-fPIC", "-O2", "-pthread"]
            libraries = place / "driver"
            libraries.mkdir()
            ordered, fake = ROOT / "crates/headway-preload/tests/fake/ordered.c", ROOT / "crates/headway-cuda/tests/fake/fake.c"
            subprocess.run([*compiler, "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-o", str(libraries / "libcuda.so.1"), str(ordered)], check=True)
            subprocess.run([*compiler, "-DSTREAMS", "-o", str(place / "libfake.so"), str(fake)], check=True)
            guest_env["LD_LIBRARY_PATH"] = str(libraries)
            flow_env["HEADWAY_LIBCUDA"] = str(place / "libfake.so")
            shipped = subprocess.run([headway, "machines", "h200-x1"], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.machine = str(place / "machine.toml")
            Path(self.machine).write_text(shipped + PASSED_ON.format("h2d") + PASSED_ON.format("d2h"))
        workload = place / "soak.toml"
        workload.write_text(WORKLOAD)
        again = [sys.executable, str(Path(__file__).resolve()), headway, "--part"]
        broker = [headway, "broker", "--socket", str(self.socket), "--tokens", "1", "--no-boost", "--metrics", f"unix:{self.metrics_at}"]
        broker += ["--machine", "h200-x4", "--gpus", "2"] if emulated else ["--machine", str(self.machine), "--gpus", "1"]
        broker += ["--watchdog", f"{WATCHDOG_S:g} s", "--recover", f"{RECOVER_S:g} s", "--drain", f"{DRAIN_S * 1000:g} ms"]
        broker += ["--log", str(place / "broker.jsonl"), "--log-size", f"{LOG_BYTES >> 20} MiB", "--log-files", str(LOG_FILES), "--quiet"]
        seconds = min(20.0, self.args.seconds / 4)
        run = [headway, "run", str(workload), "--backend", self.args.backend, "--gpus", "1", "--duration", f"{seconds:g} s"]
        run += ["--format", "json", "--quiet", "--force", "--cpu-class", "ordinary" if emulated else "auto", "--out", str(place / "run")]
        run += [] if emulated else ["--machine", str(self.machine)]

        def part(name: str, kind: str, command: list[str], env: dict[str, str]) -> Part:
            said = place / (name.replace(" ", "-") + ".txt")
            said.touch()
            return Part(name, kind, command, env, said)

        parts = [part("broker", "broker", broker, env)]
        for number, options in enumerate(GUESTS, 1):
            parts.append(part(f"guest {number}", "guest", [headway, "exec", "--quiet", *options, "--", *again, "guest"], guest_env))
        for number in (1, 2):
            flow = [*again, "flow", "--name", f"camera {number}", "--machine", str(self.machine), "--socket", str(self.socket)]
            parts.append(part(f"flow {number}", "flow", flow, flow_env))
        parts.append(part("run", "run", run, env))
        if self.args.tasks:
            parts.append(part("tasks", "tasks", [str(Path(self.args.tasks).resolve()), "tasks"], env))
        return parts

    def named(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    # Hits.

    def hits(self) -> Iterable[tuple[float, str, str, float, float]]:
        """When, whom, what, for how long, and how long it stays dead. Every draw is made whatever happens, so that a seed means one list."""
        targets = [part.name for part in self.parts if part.name not in ("broker", "guest 1", "flow 1")]
        at = 0.0
        while True:
            at += self.random.expovariate(1 / self.args.every)
            is_broker, whom, what = self.random.random() < 0.12, self.random.choice(targets), self.random.random()
            length, rest = self.random.uniform(0.1, STOP_S_MAX), self.random.uniform(0.0, 3.0)
            name = "broker" if is_broker and at < self.args.seconds / 2 else whom
            yield at, name, "kill" if what < 0.5 else "stop" if what < 0.85 else "stop and kill", length, rest

    def hit(self, name: str, action: str, length: float, rest: float) -> None:
        part, now = self.named(name), time.monotonic()
        if part.process is None or part.process.poll() is not None or part.is_stopped:
            return
        part.hit_at, part.again_at = now, now + rest
        if action == "kill":
            part.send(signal.SIGKILL)
        else:
            part.send(signal.SIGSTOP)
            part.is_stopped, part.continue_at, part.kill_after = True, now + length, action != "stop"
        self.events.append(Event(now, name, action, now if action == "kill" else now + length))

    def explains(self, part: str, at: float) -> str:
        """The last hit that a lateness of that part can come from: one of its own or of the broker. What becomes of others must not make it late."""
        near = [e for e in self.events if e.part in (part, "broker") and e.start <= at <= e.end + AFTERWARDS_S]
        near.sort(key=lambda event: (event.part == part, event.start))
        return f"{near[-1].action} of {near[-1].part}" if near else ""

    # What goes on.

    def tend(self, part: Part) -> None:
        now = time.monotonic()
        part.listen()
        if part.is_stopped and now >= part.continue_at:
            part.send(signal.SIGKILL if part.kill_after else signal.SIGCONT)
            part.is_stopped, part.hit_at, part.fine_since = False, now, now
            part.again_at = now + 0.5
        if part.process is None:
            if now >= part.again_at:
                part.start()
                assert part.process is not None
                self.pids.add(part.process.pid)
                if part.kind == "broker":
                    self.broker_back = time.monotonic()
            return
        status = part.process.poll()
        if status is None:
            if part.kind == "broker" and part.is_stopped:
                self.broker_back = now
            since = max(part.fine_since, self.broker_back if part.kind == "flow" else 0.0)
            if part.kind in ("guest", "flow") and not part.is_stopped and now - since > PATIENCE_S:
                self.faults.append(f"{part.name} was not served for {now - since:.0f} s, {self.seconds():.0f} s after the beginning")
                part.fine_since = now
            return
        part.ended()
        was_hit = now - part.hit_at < AFTERWARDS_S
        lost_broker = part.kind in ("tasks", "flow") and (self.named("broker").process is None or now - self.broker_back < AFTERWARDS_S)
        if part.kind == "run":
            self.run_ended(part, status)
        elif part.kind == "tasks" and status == 0:
            part.served += 1
        elif not was_hit and not lost_broker:
            words = part.said.read_text(errors="replace").strip().splitlines()[-1:]
            self.faults.append(f"{part.name} ended by itself with status {status}, {self.seconds():.0f} s after the beginning: {' '.join(words)[:300]}")
        part.process, part.again_at = None, max(part.again_at, now + 0.5)

    def run_ended(self, part: Part, status: int) -> None:
        now, text = time.monotonic(), part.said.read_text(errors="replace")
        part.said.write_text("")
        part.read_to = 0
        shutil.rmtree(self.place / "run", ignore_errors=True)
        try:
            summary = json.loads(text)["summary"]
        except (ValueError, KeyError):
            was_hit = part.hit_at >= part.started
            self.runs.append(Run(part.started, now, was_hit, explained="killed" if was_hit else ""))
            if not was_hit:
                self.faults.append(f"a run ended with status {status} and without a summary: {text.strip()[-300:]}")
            return
        verdict = summary["verdict"]
        run = Run(part.started, now, False, verdict["deadlines"], verdict["misses"] + verdict["lost"], summary["totals"]["releases_late"])
        run.unpromised = verdict.get("unpromised") or ""
        if run.misses:
            own = [event.action for event in self.events if event.part == part.name and event.end >= part.started]
            run.explained = f"{own[-1]} of {part.name}" if own else run.unpromised
        part.served += 1
        part.at_rest["missed"] = part.at_rest.get("missed", 0) + run.misses
        self.runs.append(run)

    def sample(self) -> None:
        at = self.seconds()

        def row(part: str, life: int, measure: str, value: float | None) -> None:
            if value is not None:
                self.samples.append((at, part, life, measure, value))

        for part in self.parts:
            if part.process is not None and part.process.poll() is None:
                for measure, value in process_figures(part.process.pid).items():
                    row(part.name, part.lives, measure, value)
                row(part.name, part.lives, "locked_bytes", part.locked)
            for measure in ("copies", "beyond", "missed", "wrong", "refused", "lost"):
                if part.kind in ("guest", "flow", "run") and (part.kind != "run" or measure == "missed"):
                    row(part.name, part.lives, measure, part.count(measure))
        broker = self.named("broker")
        if broker.process is not None and not broker.is_stopped and time.monotonic() - self.broker_back > PATIENCE_S / 6:
            answer, self.asked = metrics(self.metrics_at), self.asked + 1
            self.silent += int(answer.get("headway_broker_up") != 1)
            for name, figure in answer.items():
                row("broker", broker.lives, name, figure)
        files = [file for file in self.place.rglob("*") if file.is_file() or file.is_socket()]
        row("system", 0, "files", len(files))
        row("system", 0, "sockets", sum(file.is_socket() for file in files))
        row("system", 0, "broker_file_bytes", sum(file.stat().st_size for file in files if file.name.startswith("broker") and file.is_file()))
        row("system", 0, "shared_files", len(self.shared_files()))
        row("system", 0, "segments", len(self.segments()))

    def shared_files(self) -> list[str]:
        # Folders there are of other programs, such as a demo that runs at the same time.
        return [file.name for file in Path("/dev/shm").iterdir() if file.name.startswith("headway") and file.is_file()]

    def segments(self) -> list[int]:
        """Segments of System V shared memory that a process of this soak made."""
        rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
        return [int(row[1]) for row in rows if int(row[4]) in self.pids]

    def begin(self) -> None:
        """Starts all, and waits until each was served once."""
        broker, limit = self.parts[0], time.monotonic() + PATIENCE_S
        while time.monotonic() < limit and not self.socket.exists():
            self.tend(broker)
            time.sleep(0.1)
        while time.monotonic() < limit and not all(part.served for part in self.parts if part is not broker):
            for part in self.parts:
                self.tend(part)
            time.sleep(0.1)

    def work(self) -> None:
        """Hits and looks, until the time is over."""
        self.began, sampled = time.monotonic(), 0.0
        hits = iter(self.hits())
        at, name, action, length, rest = next(hits)
        while self.seconds() < self.args.seconds:
            for part in self.parts:
                self.tend(part)
            while at <= self.seconds():
                self.hit(name, action, length, rest)
                at, name, action, length, rest = next(hits)
            if self.seconds() >= sampled:
                sampled = self.seconds() + self.args.sample
                self.sample()
            time.sleep(0.1)

    # The end.

    def end(self) -> list[Target]:
        """Ends all, and says what is left of them."""
        targets: list[Target] = []

        def must(what: str, left: Iterable[object], remedy: str) -> None:
            found = [str(one) for one in left]
            targets.append(Target(what, "none" if not found else "; ".join(found[:5])[:300], not found, remedy))

        for part in self.parts:
            if part.is_stopped:
                part.send(signal.SIGCONT)
        clients = [part for part in self.parts if part.kind != "broker"]
        for part in clients:
            part.send(signal.SIGTERM)
        for part in clients:
            if part.process is not None:
                try:
                    part.process.wait(20)
                except subprocess.TimeoutExpired:
                    self.faults.append(f"{part.name} did not end within 20 s of SIGTERM")
                    part.send(signal.SIGKILL)
                    part.process.wait()
                part.ended()
        board = self.ask("top", "--once", "--interval", "100 ms")
        rows = board.get("activity", {}).get("gpus", [])
        must("no process that has ended is on the board", sorted(self.pids & set(numbers(rows, "pid"))), "`headway top` shows it: please report it")
        broker, status = self.named("broker"), {}
        limit = time.monotonic() + WATCHDOG_S + RECOVER_S + PATIENCE_S
        held: list[object] = ["the broker does not run"]
        while broker.process is not None and broker.process.poll() is None and held and time.monotonic() < limit:
            time.sleep(0.2)
            status = self.ask("status", "--socket", str(self.socket))
            # Who asks is a client, too.
            held = [f"{name} {status[name]}" for name in ("jobs", "flows") if status.get(name)] if status else ["the broker does not answer"]
            held += [f"client {client}" for client in status.get("clients", []) if client.get("pid") in self.pids]
            held += [f"tokens held {found}" for found in numbers(status.get("gpus", []), "held") if found]
        must("when all clients have ended, the broker has none of them, no job and no flow", held, "`headway status` names it: please report it")
        broker.send(signal.SIGTERM)
        if broker.process is not None:
            try:
                code = broker.process.wait(20)
                must("told to end, the broker exits with status 0", [code] if code != 0 else [], "see what it printed: please report it")
            except subprocess.TimeoutExpired:
                must("told to end, the broker exits with status 0", ["not within 20 s"], "please report where it hangs (`gdb -p`)")
                broker.send(signal.SIGKILL)
                broker.process.wait()
        must("no process is left", marked(self.token).values(), "end it, and please report it")
        must("no socket is left", [file.name for file in self.place.rglob("*") if file.is_socket()], "remove it, and please report it")
        must(
            "no file in /dev/shm is left but those that stay",
            [n for n in self.shared_files() if not n.startswith(LASTING_FILES)],
            "remove it, and please report it",
        )
        must("no segment of shared memory is left but one board of the user", self.segments()[1:], "`ipcrm -m` removes it; please report it")
        return targets

    def ask(self, *arguments: str) -> dict[str, Any]:
        command = [self.args.headway, *arguments, "--format", "json", "--quiet"]
        try:
            answer: dict[str, Any] = json.loads(subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30).stdout)
        except (ValueError, subprocess.TimeoutExpired):
            return {}
        return answer

    # The verdict.

    def values(self, part: str, measure: str, first: float, last: float, life: int | None = None) -> list[float]:
        rows = self.samples
        return [row[4] for row in rows if row[1] == part and row[3] == measure and first <= row[0] < last and life in (None, row[2])]

    def growth(self, part: str, first: float, last: float, life: int | None, when: str) -> Iterable[Target]:
        """Whether a process has not grown from the second to the last quarter of a time."""
        for measure, unit, ratio, allowance in (("memory_kib", "KiB", MEMORY_RATIO, MEMORY_KIB), ("descriptors", "descriptors", 1.0, DESCRIPTORS)):
            quarter = (last - first) / 4
            before = self.values(part, measure, first + quarter, first + 2 * quarter, life)
            after = self.values(part, measure, last - quarter, last + 1e9, life)
            if quarter < QUARTER_S_MIN or len(before) < SAMPLES_MIN or len(after) < SAMPLES_MIN:
                continue
            old, new = statistics.median(before), statistics.median(after)
            extra = f" by more than {(ratio - 1) * 100:.0f} % and {allowance} {unit}" if ratio > 1 else f" by more than {allowance}"
            what = f"{part}, {when}: median {unit if unit != 'KiB' else 'memory'} of the last quarter not above the second{extra}"
            yield Target(what, f"{old:.0f} before, {new:.0f} after ({unit})", new <= old * ratio + allowance, "it grows: please report samples.csv")

    def verdict(self, ended: list[Target]) -> list[Target]:
        targets = list(self.growth("broker", 0.0, self.args.seconds, None, "the whole time"))
        for name in ("broker", "guest 1", "flow 1"):
            lives: dict[int, list[float]] = defaultdict(list)
            for row in self.samples:
                if row[1] == name and row[3] == "memory_kib":
                    lives[row[2]].append(row[0])
            if lives:
                life = max(lives, key=lambda life: lives[life][-1] - lives[life][0])
                span = lives[life][-1] - lives[life][0]
                if span >= self.args.seconds / 4:
                    targets += self.growth(name, lives[life][0], lives[life][-1], life, f"its longest life ({span:.0f} s)")
        late = [(part.name, one, bool(self.explains(part.name, one.at))) for part in self.parts for one in part.late]
        strange = [
            f"{name} {one.at - self.began:.0f} s after the beginning: {one.blame}" for name, one, is_near in late if not is_near and UNKNOWN in one.blame
        ]
        strange += [f"a run that ended {run.end - self.began:.0f} s after the beginning" for run in self.runs if run.misses and not run.explained]
        missed = [is_near for _, one, is_near in late if one.missed]
        measured = f"flows: {len(missed)} missed, {sum(missed)} of them near a hit, and of the others Headway named the reason"
        measured += f"; runs: {sum(run.misses for run in self.runs)} missed; {len(strange)} unexplained" + "; ".join(["", *strange[:3]])
        what = f"each late job follows a hit of its program or of the broker within {AFTERWARDS_S:.0f} s, or Headway names the assumption that was broken"
        targets.append(Target(what, measured, not strange, "please report runs.csv, and what the flow said"))
        idle = [part.name for part in self.parts if part.kind != "broker" and not part.served]
        faults = [*self.faults, *(f"{name} was never served" for name in idle)]
        targets.append(
            Target(
                f"every client is served at least every {PATIENCE_S:.0f} s, and none ends by itself",
                "; ".join(faults[:5]) or "all",
                not faults,
                "the fault names the time: see samples.csv, and please report it",
            )
        )
        wrong = sum(part.count("wrong") for part in self.parts)
        compared = sum(part.count("copies") for part in self.parts)
        targets.append(
            Target("every byte arrives", f"{wrong} of {compared} copies had other bytes", wrong == 0, "do not use this build; please report it with the seed")
        )
        targets.append(Target("the broker answers for its metrics", f"{self.silent} of {self.asked} times not", self.silent == 0, "please report it"))
        written = max(self.values("system", "broker_file_bytes", 0.0, 1e9), default=0.0)
        allowed = LOG_FILES * LOG_BYTES * 1.5 + (4 << 20)
        targets.append(
            Target("the broker's files stay small", f"{written / 1e6:.1f} MB at most", written <= allowed, "the log is not rotated: please report it")
        )
        return [*targets, *ended]

    def write(self, targets: list[Target]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        table(self.out / "samples.csv", ["seconds", "part", "life", "measure", "value"], self.samples)
        events = [(e.start - self.began, e.part, e.action, e.end - self.began) for e in self.events]
        late = [(one.at - self.began, part.name, int(one.missed), self.explains(part.name, one.at), one.blame) for part in self.parts for one in part.late]
        table(self.out / "lates.csv", ["seconds", "part", "missed", "near", "blame"], late)
        table(self.out / "events.csv", ["seconds", "part", "action", "until_seconds"], events)
        runs = [(r.start - self.began, r.end - self.began, int(r.killed), r.deadlines, r.misses, r.releases_late, r.unpromised, r.explained) for r in self.runs]
        table(self.out / "runs.csv", ["start_seconds", "end_seconds", "killed", "deadlines", "missed", "releases_late", "unpromised", "explained"], runs)
        self.summary(targets)
        draw(self.samples, self.out, self.args.backend, Path(self.args.headway).resolve().parent / "headway-lab")

    def summary(self, targets: list[Target]) -> None:
        version = subprocess.run([self.args.headway, "--version"], check=False, stdout=subprocess.PIPE, text=True).stdout.strip()
        commit = version.rsplit("(", 1)[-1].rstrip(")")
        imitated = "threads, memory and driver libraries without a GPU; nothing here is a figure of a GPU" if self.args.backend == "emu" else "a GPU"
        lines = [
            "# Soak",
            "",
            f"Source `{self.args.backend}` ({imitated}), {version.split(' (')[0]}, commit {commit}, seed {self.args.seed}, {self.args.seconds:.0f} s, a hit every {self.args.every:g} s on average.",
        ]
        counts = {action: sum(event.action == action for event in self.events) for action in ("kill", "stop", "stop and kill")}
        by_part = ", ".join(f"{part.name} {sum(event.part == part.name for event in self.events)}" for part in self.parts)
        lines += [
            "",
            f"Hits: {', '.join(f'{action} {count}' for action, count in counts.items())} ({by_part}). Spared: `guest 1`, `flow 1`, and the broker in the second half.",
        ]
        lines += ["", "| target | measured | |", "|---|---|---|"]
        lines += [f"| {target.what} | {target.measured.replace('|', '/')} | {'met' if target.met else 'not met'} |" for target in targets]
        lines += [
            "",
            "| part | lives | hits | memory MiB, median | most | descriptors, median | most | threads, most | maps, most | pinned MiB, most | copies | beyond bound | missed | refused | lost |",
            "|" + "---|" * 15,
        ]
        for part in self.parts:

            def of(measure: str, how: str, scale: int = 1, name: str = part.name) -> str:
                found = self.values(name, measure, 0.0, 1e9)
                if not found:
                    return "-"
                figure = statistics.median(found) if how == "median" else max(found)
                return f"{figure / scale:.{1 if scale > 1 else 0}f}"

            hits = sum(event.part == part.name for event in self.events)
            cells = [
                part.name,
                part.lives,
                hits,
                of("memory_kib", "median", 1024),
                of("memory_kib", "most", 1024),
                of("descriptors", "median"),
                of("descriptors", "most"),
            ]
            cells += [
                of("threads", "most"),
                of("maps", "most"),
                of("locked_bytes", "most", 1 << 20),
                *(part.count(name) for name in ("copies", "beyond", "missed", "refused", "lost")),
            ]
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
        whole = [run for run in self.runs if not run.killed]
        used = os.times()
        cpu = (used.user + used.system + used.children_user + used.children_system) / self.args.seconds
        lines += [
            "",
            f"All processes together used {cpu:.2f} CPUs on average.",
            "",
            f"Runs: {len(self.runs)}, {len(self.runs) - len(whole)} killed; {sum(run.deadlines for run in whole)} deadlines, {sum(run.misses for run in whole)} missed.",
        ]
        (self.out / "summary.md").write_text("\n".join(lines) + "\n")


def table(path: Path, head: list[str], rows: Iterable[Iterable[object]]) -> None:
    def text(cell: object) -> object:
        if not isinstance(cell, float):
            return cell
        return f"{cell:.2f}" if cell % 1 else int(cell)

    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([head, *([text(cell) for cell in row] for row in rows)])


def draw(samples: Iterable[tuple[float, str, int, str, float]], out: Path, source: str, lab: Path) -> None:
    """The most of each minute in a table, and a picture of each measure if there is the program that draws."""
    most: dict[tuple[str, str, int, str], float] = defaultdict(float)
    for at, part, _, measure, value in samples:
        if measure in PICTURES:
            name, unit = PICTURES[measure]
            key = (source, name, int(at // 60), part)
            most[key] = max(most[key], value / unit)
    table(out / "minutes.csv", ["source", "measure", "minute", "part", "most"], [(*key, value) for key, value in sorted(most.items())])
    for name in sorted({name for _, name, _, _ in most}):
        plot = ["--x", "minute", "--y", "most", "--by", "part", "--only", f"measure={name}", "--out", str(out / f"{name}.svg"), "--force"]
        if lab.exists():
            done = subprocess.run(
                [str(lab), "plot", str(out / "minutes.csv"), *plot], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            if done.returncode:
                print(f"warning: {name}.svg was not drawn: {done.stderr.strip()}")
        else:
            print(f"note: {lab.name} is not beside headway, so there is no {name}.svg; `headway-lab plot {out / 'minutes.csv'} {' '.join(plot)}` draws it")


def numbers(of: Json, name: str) -> list[int]:
    """Every number with that name, however deep."""
    if isinstance(of, list):
        return [number for one in of for number in numbers(one, name)]
    if not isinstance(of, dict):
        return []
    own = of.get(name)
    return ([own] if isinstance(own, int) else []) + [number for value in of.values() for number in numbers(value, name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headway", help="the program `headway`, with libheadway_preload.so beside it")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--backend", choices=["emu", "cuda"], default="cuda")
    parser.add_argument("--machine", help="with cuda: what `headway measure` wrote")
    parser.add_argument("--tasks", help="example `share_program`, which asks the broker for tokens")
    parser.add_argument("--every", type=float, default=15, help="seconds between two hits on average")
    parser.add_argument("--sample", type=float, default=10, help="seconds between two samples")
    parser.add_argument("--out", default="out/soak")
    parser.add_argument("--part", choices=["guest", "flow"], help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "guest":
        guest()
        return 0
    if args.part == "flow":
        flow(args.name, args.machine, args.socket)
        return 0
    if args.backend == "cuda" and not args.machine:
        parser.error("--backend cuda needs --machine, what `headway measure` wrote")
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="headway-soak-") as place:
        soak = Soak(args, Path(place))
        try:
            soak.begin()
            soak.work()
            targets = soak.verdict(soak.end())
        finally:
            for pid in marked(soak.token):
                os.kill(pid, signal.SIGKILL)
        soak.write(targets)
    print((Path(args.out) / "summary.md").read_text())
    for target in targets:
        if not target.met:
            print(f"error: {target.what}\n  cause: {target.measured}\n  help: {target.remedy}", file=sys.stderr)
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
