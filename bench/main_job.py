#!/usr/bin/env python3
"""The main job, 64 streams of `workloads/encrypt.toml`, beside what disturbs it: which packets miss their deadlines?

    python3 bench/main_job.py HEADWAY classes|neighbours|shares [--machine FILE] [--seconds S] [--backend cuda]

`classes`: each scheduling class of the driving threads, beside busy CPUs. `neighbours`: an unmodified training loop, and products of matrices,
in time slices of the GPU, with all their launches and with few under way (`exec --depth`), and at the same time by MPS, with 50, 90 and 100 % of the multiprocessors (`exec --share`). `shares`: what share of its products a program keeps that is given 10 to
90 % of the multiprocessors. Prints one line of JSON a case; one that cannot be run has `error` instead of figures, and a class that the system refuses has `refused`.
"""
import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKLOAD = HERE.parent / "workloads/encrypt.toml"
CLASSES = ["ordinary", "nice", "fifo", "deadline"]
SPIN = ["bash", "-c", "while :; do :; done"]
WRITE = ["dd", "if=/dev/zero", "of=/dev/null", "bs=256M"]
LOADS = {"none": (0, SPIN), "16 busy loops": (16, SPIN), "64 busy loops": (64, SPIN), "16 loops that write memory": (16, WRITE)}
SHARES = [100, 90, 50]
DEPTHS = [1, 4]
LIMIT_S = 90

parser = argparse.ArgumentParser()
parser.add_argument("headway")
parser.add_argument("what", choices=["classes", "neighbours", "shares"])
parser.add_argument("--machine", help="machine file that `headway measure` wrote")
parser.add_argument("--seconds", type=float, default=4)
parser.add_argument("--backend", default="cuda")
args = parser.parse_args()


def main_job(place, *options, env=None):
    """What a run of the job says."""
    out = Path(place) / "run"
    command = [args.headway, "run", str(WORKLOAD), "--backend", args.backend, "--gpus", "1", "--duration", f"{args.seconds:g} s"]
    command += ["--no-verify", "--force", "--format", "json", "--out", str(out), *options]
    command += ["--machine", args.machine] if args.machine else []
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, env=env)
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {LIMIT_S} s"}
    try:
        said = json.loads(done.stdout)
        summary = said["summary"]
    except (ValueError, KeyError):
        return {"error": (done.stdout + done.stderr).strip()[-400:]}
    totals, verdict, cpu = summary["totals"], summary["verdict"], summary.get("cpu")
    delivered = [stream for stream in summary["streams"] if stream["response"]]
    return {
        "packets": totals["packets"],
        "missed": verdict["misses"] + verdict["lost"],
        "longest_ns": max((stream["response"]["max"] for stream in delivered), default=None),
        "least_slack_ns": min((stream["worst_slack_ns"] for stream in delivered), default=None),
        "jobs": totals["jobs"],
        "overruns": totals["overruns"],
        "planned": summary["planned"],
        "seconds": round(summary["span"] / 1e9, 2),
        "unpromised": verdict.get("unpromised"),
        "driver": cpu and cpu["threads"][0]["class"],
        "noticed_ns": cpu and cpu["noticed"]["median"],
    }


@contextlib.contextmanager
def running(count, command):
    """So many processes of a command while the block runs."""
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


@contextlib.contextmanager
def broker(place):
    """A broker with an MPS daemon: its socket."""
    socket = str(Path(place) / "broker.socket")
    machine = ["--machine", args.machine] if args.machine else []
    with open(Path(place) / "broker.txt", "w+") as said:
        process = subprocess.Popen([args.headway, "broker", "--mps", "--socket", socket, "--gpus", "1", *machine], stdout=said, stderr=said)
        try:
            for _ in range(60):
                status = subprocess.run([args.headway, "status", "--socket", socket], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                if any(line.startswith("MPS") and " daemon " in line for line in status.stdout.splitlines()):
                    break
                if process.poll() is not None:
                    break
                time.sleep(0.5)
            else:
                process.kill()
                process.wait()
            if process.poll() is not None:
                said.seek(0)
                raise RuntimeError(f"no MPS daemon: {said.read()[-400:]}")
            yield socket
        finally:
            process.terminate()
            process.wait(30)


class Guest:
    """An unmodified program, plain or with options of `exec`, that counts its steps for some seconds, from `begin` on if it waits."""

    def __init__(self, name, seconds, options=(), waits=True):
        command = [sys.executable, str(HERE / "guests" / f"{name}.py"), "--seconds", str(seconds), *(["--wait"] if waits else [])]
        if options:
            command = [args.headway, "exec", *options, "--fast=off", "--yield=never", "--", *command]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def begin(self):
        """Waits until the program is warm; from now on it counts."""
        if select.select([self.process.stdout], [], [], LIMIT_S)[0] and self.process.stdout.readline() == "ready\n":
            with contextlib.suppress(BrokenPipeError):
                print("go", file=self.process.stdin, flush=True)
        else:
            # Without figures it says `error`.
            self.process.kill()
        return self

    def result(self):
        try:
            out, error = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, error = self.process.communicate()
        lines = [line for line in out.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {"error": error.strip()[-400:]}


def share(socket, percent):
    """The options of a guest that gets a share of the GPU under a broker's MPS daemon."""
    return ["--share", f"{percent}%", "--socket", socket]


def say(**line):
    print(json.dumps(line), flush=True)


def beside(name, how, seconds, options=(), socket=None):
    """The guest and the job at the same time, which joins the MPS daemon of the broker at `socket`."""
    guest = Guest(name, seconds, options).begin()
    env = {**os.environ, "HEADWAY_BROKER": socket} if socket else None
    with tempfile.TemporaryDirectory() as place:
        job = main_job(place, env=env)
    say(case="neighbour", neighbour=name, how=how, job=job, guest=guest.result())


def classes():
    for load, (count, command) in LOADS.items():
        with running(count, command):
            for name in CLASSES:
                with tempfile.TemporaryDirectory() as place:
                    job = main_job(place, "--cpu-class", name)
                # The system need not permit every class.
                refused = "error" in job and name != "ordinary"
                say(case="class", load=load, cpu_class=name, job={"refused": job["error"]} if refused else job)


def neighbours():
    # The guest counts while the job starts and runs.
    seconds = args.seconds + 2
    for name in ["training", "products"]:
        say(case="neighbour", neighbour=name, how="alone", guest=Guest(name, seconds).begin().result())
        beside(name, "time slices", seconds)
        for depth in DEPTHS:
            beside(name, f"time slices, --depth {depth}", seconds, ["--depth", str(depth)])
    with tempfile.TemporaryDirectory() as place, broker(place) as socket:
        for name in ["training", "products"]:
            for percent in SHARES:
                beside(name, f"MPS, {percent} %", seconds, share(socket, percent), socket)


def shares():
    alone = Guest("products", 2, waits=False).result()
    say(case="share", percent=100, guest=alone)
    with tempfile.TemporaryDirectory() as place, broker(place) as socket:
        for percent in (10, 25, 50, 90):
            say(case="share", percent=percent, guest=Guest("products", 2, share(socket, percent), waits=False).result())


{"classes": classes, "neighbours": neighbours, "shares": shares}[args.what]()
