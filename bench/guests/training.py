#!/usr/bin/env python3
"""An ordinary PyTorch training loop. It knows nothing of Headway.

Six transformer layers, batches from page-locked memory, the loss read in each step (`.item()`). After a few steps that do not count it
runs for --seconds and prints one line of JSON: steps, steps a second, times of a step in microseconds. With --wait it says `ready` once it is
warm, and begins to count when standard input has a line, so that something else can run beside exactly these steps.
"""
import argparse
import json
import select
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10.0)
parser.add_argument("--wait", action="store_true")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--length", type=int, default=256)
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--warm-up", type=int, default=10)
arguments = parser.parse_args()

torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = True
layer = torch.nn.TransformerEncoderLayer(arguments.width, 16, 4 * arguments.width, dropout=0.0, batch_first=True)
model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.nn.Linear(arguments.width, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
shape = (arguments.batch, arguments.length, arguments.width)
batches = [torch.randn(shape).pin_memory() for _ in range(8)]


def step(number):
    batch = batches[number % len(batches)].to("cuda", non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = (model(batch) - 1.0).float().square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


for number in range(arguments.warm_up):
    first = step(number)
if arguments.wait:
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        step(0)
times, began = [], time.time()
while time.time() - began < arguments.seconds:
    before = time.perf_counter()
    last = step(len(times))
    times.append((time.perf_counter() - before) * 1e6)
seconds = time.time() - began
times.sort()
print(json.dumps({
    "steps": len(times), "steps_per_s": round(len(times) / seconds, 2), "median_us": round(times[len(times) // 2]),
    "p99_us": round(times[len(times) * 99 // 100]) if len(times) >= 100 else None, "max_us": round(times[-1]),
    "first_loss": round(first, 4), "last_loss": round(last, 4),
}))
