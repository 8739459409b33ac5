#!/usr/bin/env python3
"""Copies of ordinary memory of many sizes by an ordinary program, from its first copy on. It knows nothing of Headway.

first_second.py [--sizes MIB,MIB,..] [--cases to,copy,cpu] [--seconds S] [--start TIME]. Prints a line of JSON for each size and case:
copies, the first one, the median of the first ten and of the last half, the 99th percentile of that half (from 100 copies on), in
microseconds, CPU seconds for each second of copying, and whether the bytes are equal.

Cases: `to` (tensor.to("cuda")), `copy` (into a host tensor that was written before), `cpu` (tensor.cpu(): memory that the
allocator gives). With --start it waits for that time (seconds since 1970) before the first copy, so that processes copy together.
"""
import argparse
import json
import os
import statistics
import time

parser = argparse.ArgumentParser()
parser.add_argument("--sizes", default="1,2,4,8,16,32,64,1024")
parser.add_argument("--cases", default="to,copy,cpu")
parser.add_argument("--seconds", type=float, default=0.5)
parser.add_argument("--least", type=int, default=4)
parser.add_argument("--start", type=float, default=0)
args = parser.parse_args()

import numpy
import torch

torch.manual_seed(1)
synchronize = torch.cuda.synchronize


def by_driver(host):
    """On the GPU, by way of page-locked memory, which Headway leaves to the driver."""
    return host.pin_memory().to("cuda")


def cpu_seconds():
    return sum(os.times()[:2])


def timed(action):
    seconds, result = [], None
    used, begin = cpu_seconds(), time.perf_counter()
    while len(seconds) < args.least or time.perf_counter() - begin < args.seconds:
        result = None
        synchronize()
        start = time.perf_counter()
        result = action()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds, (cpu_seconds() - used) / (time.perf_counter() - begin), result


waited = False
for size in (int(text) << 20 for text in args.sizes.split(",")):
    device = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    host = torch.empty(size, dtype=torch.uint8)
    # Pages are there, and no copy of ordinary memory was made for it.
    host.numpy()[:] = numpy.resize(numpy.arange(251, dtype=numpy.uint8), size)
    other = torch.empty_like(host).fill_(1)
    actions = {
        "to": (lambda: host.to("cuda"), lambda result: torch.equal(result, by_driver(host))),
        "copy": (lambda: other.copy_(device), lambda result: torch.equal(by_driver(result), device)),
        "cpu": (lambda: device.cpu(), lambda result: torch.equal(by_driver(result), device)),
    }
    for case in args.cases.split(","):
        action, check = actions[case]
        synchronize()
        while not waited and time.time() < args.start:
            time.sleep(0.001)
        waited = True
        seconds, busy, result = timed(action)
        half = seconds[len(seconds) // 2 :]
        us = lambda value: round(value * 1e6, 1)
        line = {
            "case": case,
            "bytes": size,
            "copies": len(seconds),
            "first_us": us(seconds[0]),
            "first_ten_us": us(statistics.median(seconds[:10])),
            "median_us": us(statistics.median(half)),
            "p99_us": us(sorted(half)[int(len(half) * 0.99)]) if len(half) >= 100 else None,
            "gb_per_s": round(size / statistics.median(half) / 1e9, 2),
            "busy": round(busy, 2),
            "equal": bool(check(result)),
        }
        print(json.dumps(line), flush=True)
