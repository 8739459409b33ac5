"""Swaps two models: one leaves the GPU and the other comes in, as a server does that has more models than memory.

    python bench/demos/swap_models.py [--gib 8] [--rounds 5] [--quick] [--json FILE]

The program calls `a.to("cpu")` and `b.to("cuda")`. It runs plain and under `headway exec`; the case `headway` calls `headway.torch.move_out` and
`move_in` instead. The value is the median of a swap, and all bytes are compared at the end.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from demo import Case, Cpus, Demo, synchronize


def model(gib: float, seed: int, device: str) -> Any:
    import torch

    layers = max(1, round(gib * (1 << 30) / (2 * 4096 * 14336)))
    torch.manual_seed(seed)
    made = torch.nn.Sequential(*(torch.nn.Linear(4096, 14336, bias=False, dtype=torch.bfloat16, device="meta") for _ in range(layers)))
    made.to_empty(device=device)
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):
            parameter.view(torch.int16).fill_(seed * 1000 + number)
            parameter.view(torch.int16)[:, 0] = torch.arange(14336, dtype=torch.int16, device=device)
    return made.requires_grad_(False)


def is_whole(made: Any, seed: int) -> bool:
    import torch

    for number, parameter in enumerate(made.parameters()):
        words = parameter.view(torch.int16)
        places = torch.arange(14336, dtype=torch.int16, device=words.device)
        if not torch.equal(words[:, 0], places) or not bool((words[:, 1:] == seed * 1000 + number).all()):
            return False
    return True


def work(args: argparse.Namespace, case: str) -> dict[str, Any]:
    import torch

    gib, rounds = (min(args.gib, 1.0), 2) if args.quick else (args.gib, args.rounds)
    device = args.device
    a, b = model(gib, 1, device), model(gib, 2, device)
    if case == "headway":
        import headway.torch

        def out(made: Any) -> None:
            headway.torch.move_out(made)

        def into(made: Any) -> None:
            headway.torch.move_in(made)
    else:

        def out(made: Any) -> None:
            made.to("cpu")

        def into(made: Any) -> None:
            made.to(device)

    out(b)
    # Each model has been out and in once before anything counts.
    out(a), into(b), out(b), into(a)
    synchronize(device)
    times: list[float] = []
    with Cpus() as cpus:
        for _ in range(rounds):
            begun = time.perf_counter()
            out(a)
            into(b)
            synchronize(device)
            times.append(time.perf_counter() - begun)
            a, b = b, a
    into(b)
    synchronize(device)
    equal = is_whole(a, 1 + rounds % 2) and is_whole(b, 2 - rounds % 2)
    nbytes = sum(parameter.nbytes for parameter in a.parameters())
    median = statistics.median(times)
    more = {"GB out and in": round(2 * nbytes / 1e9, 2), "GB/s": round(2 * nbytes / median / 1e9, 1)}
    return {"value": median, "cpus": cpus.value, "equal": equal, "n": rounds, "more": more, "torch": torch.__version__}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gib", type=float, default=8.0, help="of each model")
    parser.add_argument("--rounds", type=int, default=5)


if __name__ == "__main__":
    Demo("swap of two models, out and in", "s", [Case("plain"), Case("exec", []), Case("headway")], work, add_arguments, __doc__ or "").main()
