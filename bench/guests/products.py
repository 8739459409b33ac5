#!/usr/bin/env python3
"""An ordinary PyTorch program: products of two 8192 x 8192 matrices (bf16), back to back. It knows nothing of Headway.

It runs for --seconds and prints one line of JSON: products, products a second. With --start it begins to count at that time (seconds since
1970), so that something else can run beside exactly these products. Two batches are always queued, so that the GPU never idles.
"""
import argparse
import json
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=4.0)
parser.add_argument("--start", type=float, default=0.0)
parser.add_argument("--width", type=int, default=8192)
arguments = parser.parse_args()

torch.manual_seed(1)
left, right = (torch.randn(arguments.width, arguments.width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
result = torch.empty_like(left)
BATCH = 16


def batch():
    for _ in range(BATCH):
        torch.matmul(left, right, out=result)
    event = torch.cuda.Event()
    event.record()
    return event


def run(until):
    """Keeps two batches queued; how many products ended."""
    queued, ended = [batch(), batch()], 0
    while time.time() < until:
        queued.pop(0).synchronize()
        ended += BATCH
        queued.append(batch())
    for event in queued:
        event.synchronize()
    return ended + BATCH * len(queued)


run(max(arguments.start, time.time() + 0.5))
began = time.time()
products = run(began + arguments.seconds)
seconds = time.time() - began
late = round(max(0.0, began - arguments.start), 2) if arguments.start else 0
print(json.dumps({"steps": products, "steps_per_s": round(products / seconds, 2), "late_start": late}))
