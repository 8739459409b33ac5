"""Generates tokens while another stream copies a gigabyte out of the GPU again and again, as an offload of a cache does.

    python bench/demos/token_beside_offload.py [--seconds 4] [--quick] [--json FILE]

Each token is a product of two matrices and `argmax().item()`. The offload copies 1 GiB to page-locked memory with `non_blocking=True`, two copies queued
at a time. It runs plain and under `headway exec --aside`; `idle` has no offload. The value is the median of a step, and both results are
compared.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from demo import Case, Cpus, Demo, percentile, synchronize


class Offload:
    """Keeps two copies queued."""

    def __init__(self, nbytes: int, device: str) -> None:
        import torch

        self._torch = torch
        self.stream = torch.cuda.Stream(device)
        self.source = torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device=device)
        self.target = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        self.pending: list[Any] = []
        self.copies = 0

    def keep_busy(self) -> None:
        self.pending = [event for event in self.pending if not event.query()]
        while len(self.pending) < 2:
            with self._torch.cuda.stream(self.stream):
                self.target.copy_(self.source, non_blocking=True)
                event = self._torch.cuda.Event()
                event.record()
            self.pending.append(event)
            self.copies += 1

    def is_whole(self) -> bool:
        self.stream.synchronize()
        return bool(self._torch.equal(self.target, self.source.cpu()))


def work(args: argparse.Namespace, case: str) -> dict[str, Any]:
    import torch

    seconds = min(args.seconds, 2.0) if args.quick else args.seconds
    device = args.device
    torch.manual_seed(1)
    a = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
    b = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
    expected = int((a @ b).argmax().item())
    offload = None if case == "idle" else Offload(args.bulk, device)
    for _ in range(20):
        (a @ b).argmax().item()
    synchronize(device)
    times: list[float] = []
    equal = True
    with Cpus() as cpus:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            if offload:
                offload.keep_busy()
            begun = time.perf_counter()
            equal = (a @ b).argmax().item() == expected and equal
            times.append((time.perf_counter() - begun) * 1e6)
        if offload:
            offload.stream.synchronize()
    equal = equal and (offload is None or offload.is_whole())
    more: dict[str, Any] = {"p99 us": round(percentile(times, 0.99), 1), "longest us": round(max(times), 1)}
    if offload:
        more["offload GB/s"] = round(offload.copies * args.bulk / cpus.seconds / 1e9, 1)
    return {"value": percentile(times, 0.5), "cpus": cpus.value, "equal": equal, "n": len(times), "more": more, "torch": torch.__version__}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--bulk", type=int, default=1 << 30, help="bytes of a copy of the offload")


if __name__ == "__main__":
    cases = [Case("plain"), Case("exec", ["--aside"]), Case("idle")]
    Demo("token loop beside an offload, a step", "us", cases, work, add_arguments, __doc__ or "").main()
