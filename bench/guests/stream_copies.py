#!/usr/bin/env python3
"""Copies of ordinary memory in the order of a PyTorch stream, by libheadway.so: stream_copies.py LIBRARY [--times N]

For each size and direction by turns: the driver's copy (`copy_`), headway_copy, and headway_copy_async with a wait; of the last also how
long the call itself took. Then a token loop (a product of two matrices, argmax, .item()) beside an offload of 1 GiB to ordinary
memory, again and again: by another thread with `copy_`, and by the loop's own thread with headway_copy_async. Bytes are compared.
Prints one line of JSON for each; times in microseconds.
"""
import argparse
import ctypes
import json
import resource
import statistics
import threading
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("--times", type=int, default=12)
parser.add_argument("--seconds", type=float, default=2.5)
arguments = parser.parse_args()

library = ctypes.CDLL(arguments.library)
library.headway_last_error.restype = ctypes.c_char_p
POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t
library.headway_copy.argtypes = [POINTER, POINTER, POINTER, SIZE, POINTER, POINTER]
library.headway_copy_async.argtypes = [POINTER, POINTER, POINTER, SIZE, POINTER, POINTER]
library.headway_ticket_wait.argtypes = [POINTER, ctypes.c_uint64]
library.headway_ticket_query.argtypes = [POINTER]
library.headway_ticket_free.argtypes = [POINTER]


def check(status):
    if status != 0:
        raise RuntimeError(f"status {status}: {library.headway_last_error().decode()}")


torch.cuda.init()
torch.empty(1, device="cuda")
copier = ctypes.c_void_p()
check(library.headway_copier_open(-1, None, ctypes.byref(copier)))
stream = torch.cuda.Stream()


def queue(to, source):
    ticket = ctypes.c_void_p()
    check(library.headway_copy_async(copier, to.data_ptr(), source.data_ptr(), to.numel(), stream.cuda_stream, ctypes.byref(ticket)))
    return ticket


def copy_driver(to, source):
    with torch.cuda.stream(stream):
        to.copy_(source)
    stream.synchronize()


def copy_waiting(to, source):
    check(library.headway_copy(copier, to.data_ptr(), source.data_ptr(), to.numel(), stream.cuda_stream, None))


calls = []


def copy_ticket(to, source):
    start = time.perf_counter()
    ticket = queue(to, source)
    calls.append((time.perf_counter() - start) * 1e6)
    check(library.headway_ticket_wait(ticket, 60_000_000_000))
    library.headway_ticket_free(ticket)


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def summary(values):
    values = sorted(values)
    p99 = values[len(values) * 99 // 100] if len(values) >= 100 else None
    return {"n": len(values), "median_us": statistics.median(values), "p99_us": p99, "max_us": values[-1]}


def sizes():
    for nbytes in (1 << 20, 4 << 20, 16 << 20, 256 << 20, 1 << 30):
        host = torch.randint(0, 255, (nbytes,), dtype=torch.uint8)
        there = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        back = torch.zeros(nbytes, dtype=torch.uint8)
        ways = {"copy_": copy_driver, "headway_copy": copy_waiting, "headway_copy_async": copy_ticket}
        for direction, (to, source) in {"in": (there, host), "out": (back, there)}.items():
            times = {name: [] for name in ways}
            busy = dict.fromkeys(ways, 0.0)
            calls.clear()
            # The first two of each are not counted: threads start and memory is page-locked.
            for round_ in range(arguments.times + 2):
                for name, way in ways.items():
                    to.zero_()
                    torch.cuda.synchronize()
                    before, start = cpu(), time.perf_counter()
                    way(to, source)
                    took = time.perf_counter() - start
                    equal = bool(torch.equal(to.cpu(), host))
                    if not equal:
                        raise RuntimeError(f"{name} {direction} {nbytes}: other bytes")
                    if round_ >= 2:
                        times[name].append(took * 1e6)
                        busy[name] += cpu() - before if nbytes >= 1 << 28 else 0
            for name in ways:
                line = {"case": name, "direction": direction, "bytes": nbytes, "equal": True, **summary(times[name])}
                line["gb_per_s"] = nbytes / line["median_us"] / 1e3
                if name == "headway_copy_async":
                    line["call_us"] = statistics.median(calls[2:])
                print(json.dumps(line), flush=True)


def token_loop(name, start_offload, step_offload, end_offload):
    left, right = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
    expected = (left @ right).argmax().item()
    state, times, wrong = start_offload(), [], 0
    until = time.perf_counter() + arguments.seconds
    while time.perf_counter() < until:
        step_offload(state)
        start = time.perf_counter()
        wrong += (left @ right).argmax().item() != expected
        times.append((time.perf_counter() - start) * 1e6)
    print(json.dumps({"case": f"token loop, {name}", "wrong": wrong, **summary(times), "offload": end_offload(state)}), flush=True)


def loops():
    nbytes = 1 << 30
    source = torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device="cuda")
    expected = source.cpu()
    target = torch.zeros(nbytes, dtype=torch.uint8)

    def result(copies, begun):
        seconds = time.perf_counter() - begun
        return {"gb_per_s": copies * nbytes / seconds / 1e9, "copies": copies, "equal": bool(torch.equal(target, expected))}

    def thread_begin():
        state = {"stop": False, "copies": 0, "begun": time.perf_counter()}

        def work():
            while not state["stop"]:
                copy_driver(target, source)
                state["copies"] += 1

        state["thread"] = threading.Thread(target=work)
        state["thread"].start()
        return state

    def thread_end(state):
        state["stop"] = True
        state["thread"].join()
        return result(state["copies"], state["begun"])

    def tickets_begin():
        return {"tickets": [], "copies": 0, "begun": time.perf_counter(), "call_us": []}

    def tickets_step(state):
        while state["tickets"] and library.headway_ticket_query(state["tickets"][0]) == 0:
            library.headway_ticket_free(state["tickets"].pop(0))
            state["copies"] += 1
        if not state["tickets"]:
            start = time.perf_counter()
            state["tickets"].append(queue(target, source))
            state["call_us"].append((time.perf_counter() - start) * 1e6)

    def tickets_end(state):
        for ticket in state["tickets"]:
            check(library.headway_ticket_wait(ticket, 60_000_000_000))
            library.headway_ticket_free(ticket)
            state["copies"] += 1
        return {**result(state["copies"], state["begun"]), "call_us": statistics.median(state["call_us"])}

    token_loop("alone", dict, lambda state: None, lambda state: None)
    token_loop("copy_ in a thread", thread_begin, lambda state: None, thread_end)
    token_loop("headway_copy_async", tickets_begin, tickets_step, tickets_end)


sizes()
loops()
library.headway_copier_close(copier)
