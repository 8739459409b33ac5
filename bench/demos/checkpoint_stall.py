"""Trains, and saves a checkpoint every few steps with `torch.distributed.checkpoint.async_save`: how long does the training stand still?

    python bench/demos/checkpoint_stall.py [--gib 3.6] [--checkpoints 4] [--quick] [--folder DIR] [--json FILE]

It runs plain and under `headway exec`; the case `headway` gives `async_save` a `headway.torch.Stager`, and `idle` saves nothing. The value is the
longest call of `async_save` together with the step behind it, less a step's median: how long a checkpoint stalls the caller. The last checkpoint is
read again and compared with the state as it was.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from demo import Case, Cpus, Demo, percentile, synchronize


def work(args: argparse.Namespace, case: str) -> dict[str, Any]:
    import torch
    import torch.distributed.checkpoint as dcp

    warnings.filterwarnings("ignore")
    gib, checkpoints = (min(args.gib, 0.9), 2) if args.quick else (args.gib, args.checkpoints)
    device = args.device
    torch.manual_seed(1)
    width = 1024
    # Parameters and two states of AdamW, of 4 bytes each.
    count = max(1, round(gib * (1 << 30) / (3 * 4 * 8 * width * width)))
    layers = [torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)) for _ in range(count)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(args.batch, width, device=device)

    def step() -> float:
        loss = (model(batch) - 1.0).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    stager = None
    if case == "headway":
        import headway.torch

        stager = headway.torch.Stager(optimizer)
    for _ in range(5):
        step()
    if stager:
        stager.prepare(state())
    synchronize(device)
    folder = Path(tempfile.mkdtemp(prefix="headway-demo-", dir=args.folder))
    calls: list[float] = []
    stalls: list[float] = []
    steps: list[float] = []
    saving: Any = None
    saved: Any = None
    equal = True
    try:
        quiet = [timed(step) for _ in range(args.every)]
        usual = percentile(quiet, 0.5)
        with Cpus() as cpus:
            # The first one, in which memory is locked for the first time, does not count.
            for number in range(checkpoints + 1):
                if case != "idle":
                    ended(saving)
                    if number:
                        shutil.rmtree(folder / str(number - 1), ignore_errors=True)
                    if number == checkpoints:
                        saved = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
                    given = {"async_stager": stager} if stager else {}
                    begun = time.perf_counter()
                    saving = dcp.async_save(state(), checkpoint_id=folder / str(number), no_dist=True, **given)
                    call = time.perf_counter() - begun
                else:
                    call = 0.0
                first = timed(step)
                if number:
                    calls.append(call)
                    stalls.append(call + first - usual)
                    steps.append(call + first)
                taken = [timed(step) for _ in range(args.every)]
                if number:
                    steps += taken
            ended(saving)
        if saved is not None:
            loaded = {"model": {name: torch.empty_like(tensor) for name, tensor in saved.items()}}
            dcp.load(loaded, checkpoint_id=folder / str(checkpoints), no_dist=True)
            equal = all(torch.equal(loaded["model"][name], tensor) for name, tensor in saved.items())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    nbytes = sum(tensor.nbytes for tensor in model.parameters()) * 3
    more = {
        "GB": round(nbytes / 1e9, 2),
        "longest call ms": round(max(calls, default=0.0) * 1e3, 1),
        "step median ms": round(percentile(steps, 0.5) * 1e3, 2),
        "p99 ms": round(percentile(steps, 0.99) * 1e3, 2),
        "quiet ms": round(usual * 1e3, 2),
    }
    return {"value": max(stalls) * 1e3, "cpus": cpus.value, "equal": equal, "n": len(steps), "more": more, "torch": torch.__version__}


def timed(step: Any) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def ended(saving: Any) -> None:
    """Waits until a checkpoint is written."""
    if saving is not None:
        getattr(saving, "upload_completion", saving).result()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gib", type=float, default=3.6, help="of parameters and optimizer together")
    parser.add_argument("--checkpoints", type=int, default=4)
    parser.add_argument("--every", type=int, default=30, help="steps between two checkpoints")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--folder", default="/dev/shm", help="where checkpoints are written")


if __name__ == "__main__":
    cases = [Case("plain"), Case("exec", []), Case("headway"), Case("idle")]
    Demo("stall of a checkpoint", "ms", cases, work, add_arguments, __doc__ or "").main()
