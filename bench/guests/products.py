#!/usr/bin/env python3
"""An ordinary PyTorch program: products of two 8192 x 8192 matrices (bf16), back to back. It knows nothing of Headway.

It runs for --seconds and prints one line of JSON: products, products a second. With --wait it says `ready` once it is warm, and begins to
count when standard input has a line, so that something else can run beside exactly these products. Two batches are always queued, so that the
GPU never idles.
"""
import argparse
import json
import select
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=4.0)
parser.add_argument("--wait", action="store_true")
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


def run(is_over):
    """Keeps two batches queued; how many products ended."""
    queued, ended = [batch(), batch()], 0
    while not is_over():
        queued.pop(0).synchronize()
        ended += BATCH
        queued.append(batch())
    for event in queued:
        event.synchronize()
    return ended + BATCH * len(queued)


def after(seconds):
    end = time.time() + seconds
    return lambda: time.time() >= end


run(after(0.5))
if arguments.wait:
    print("ready", flush=True)
    run(lambda: select.select([sys.stdin], [], [], 0)[0])
began = time.time()
products = run(after(arguments.seconds))
print(json.dumps({"steps": products, "steps_per_s": round(products / (time.time() - began), 2)}))
