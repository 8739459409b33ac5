#!/usr/bin/env python3
"""An ordinary PyTorch program: a token loop beside an offload. It knows nothing of Headway.

Each step multiplies two matrices, takes the largest element's place, and reads it (`.item()`, or --small bytes into
page-locked memory). Beside it an offload copies --bulk bytes to page-locked memory again and again, with
`copy_(non_blocking=True)` in a stream of its own, or in a second process (--other-process, --stranger). Bytes of both are compared.
Prints one line of JSON: step times in microseconds (n, median, p99, max) and the offload's rate in GB/s.
"""
import argparse
import json
import multiprocessing
import os
import statistics
import threading
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=4.0)
parser.add_argument("--bulk", type=int, default=1 << 30)
parser.add_argument("--small", type=int, default=0, help="bytes of the small copy; 0 = one token by .item()")
parser.add_argument("--idle", action="store_true", help="no offload")
parser.add_argument("--other-process", action="store_true", help="the offload is another process's")
parser.add_argument("--stranger", action="store_true", help="as --other-process, and that process is no guest of Headway")
parser.add_argument("--ordinary", action="store_true", help="a thread offloads to ordinary memory")


class Offload:
    """Copies the same bytes out of the GPU over and over, two copies queued at a time."""

    def __init__(self, nbytes):
        self.stream = torch.cuda.Stream()
        self.source = torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device="cuda")
        self.target = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self.expected = self.source.cpu()
        self.pending = []
        self.ends = []
        self.start = None

    def keep_busy(self):
        if self.start is None:
            self.start = torch.cuda.Event(enable_timing=True)
            self.start.record(self.stream)
        self.pending = [event for event in self.pending if not event.query()]
        while len(self.pending) < 2:
            with torch.cuda.stream(self.stream):
                self.target.copy_(self.source, non_blocking=True)
                event = torch.cuda.Event(enable_timing=True)
                event.record()
            self.pending.append(event)
            self.ends.append(event)

    def result(self):
        self.stream.synchronize()
        seconds = self.start.elapsed_time(self.ends[-1]) / 1e3
        whole = bool(torch.equal(self.target, self.expected))
        return {"gb_per_s": len(self.ends) * self.source.numel() / seconds / 1e9, "copies": len(self.ends), "equal": whole}


class OrdinaryOffload:
    """A thread that copies the same bytes out of the GPU into ordinary memory over and over."""

    def __init__(self, nbytes):
        self.source = torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device="cuda")
        self.expected = self.source.cpu()
        self.target = torch.empty(nbytes, dtype=torch.uint8).fill_(1)
        self.copies, self.seconds, self.stop = 0, 0.0, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            start = time.perf_counter()
            while not self.stop:
                self.target.copy_(self.source)
                self.copies += 1
            self.seconds = time.perf_counter() - start

    def keep_busy(self):
        if not self.thread.is_alive():
            self.thread.start()

    def result(self):
        self.stop = True
        self.thread.join()
        equal = bool(torch.equal(self.target, self.expected))
        return {"gb_per_s": self.copies * self.source.numel() / self.seconds / 1e9, "copies": self.copies, "equal": equal}


def neighbour(nbytes, ready, stop, answer):
    offload = Offload(nbytes)
    torch.cuda.synchronize()
    ready.set()
    while not stop.is_set():
        offload.keep_busy()
        time.sleep(0.002)
    answer.put(offload.result())


def main():
    args = parser.parse_args()
    torch.manual_seed(1)
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    expected = int((a @ b).argmax().item())
    small = torch.randint(0, 255, (max(args.small, 1),), dtype=torch.uint8, device="cuda")
    small_there = torch.empty(max(args.small, 1), dtype=torch.uint8, pin_memory=True)
    small_expected = small.cpu()
    offload, process = None, None
    if args.other_process or args.stranger:
        context = multiprocessing.get_context("spawn")
        ready, stop, answer = context.Event(), context.Event(), context.Queue()
        process = context.Process(target=neighbour, args=(args.bulk, ready, stop, answer))
        preload = os.environ.pop("LD_PRELOAD", None) if args.stranger else None
        process.start()
        if preload is not None:
            os.environ["LD_PRELOAD"] = preload
        ready.wait(120)
    elif not args.idle:
        offload = (OrdinaryOffload if args.ordinary else Offload)(args.bulk)
    torch.cuda.synchronize()
    times, wrong = [], 0
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        if offload:
            offload.keep_busy()
        start = time.perf_counter_ns()
        place = (a @ b).argmax()
        if args.small:
            small_there.copy_(small, non_blocking=True)
            torch.cuda.current_stream().synchronize()
        else:
            wrong += int(place.item()) != expected
        times.append((time.perf_counter_ns() - start) / 1e3)
        if args.small and len(times) % 64 == 0:
            wrong += not torch.equal(small_there, small_expected)
            small_there.zero_()
    result = {"n": len(times), "median_us": statistics.median(times), "wrong": wrong}
    times.sort()
    result["p99_us"] = times[min(len(times) - 1, int(len(times) * 0.99))]
    result["max_us"] = times[-1]
    if offload:
        result["offload"] = offload.result()
    if process:
        stop.set()
        result["offload"] = answer.get(timeout=120)
        process.join(30)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
