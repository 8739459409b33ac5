"""Swaps two models: one leaves the GPU and the other comes in, as a server does that has more models than memory.

    python bench/demos/swap_models.py [--gib 8] [--rounds 5] [--beside] [--quick] [--json FILE]

The program calls `a.to("cpu")` and `b.to("cuda")`. It runs plain and under `headway exec`; the case `headway` calls `headway.torch.move_out` and
`move_in` instead. The value is the median of a swap, and all bytes are compared at the end. `--beside` has a third model give tokens meanwhile, in
another thread, and says what a token took before the swaps and during them.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from typing import Any

from demo import Case, Cpus, Demo, percentile, synchronize

# How long tokens are given before the swaps.
QUIET_S = 2.0


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


class Tokens:
    """A model that gives one token after the other, on a stream and a thread of its own."""

    def __init__(self, device: str) -> None:
        import torch

        self._device, self._stream = device, torch.cuda.Stream(device)
        self._weights = [torch.randn(1024, 1024, device=device, dtype=torch.bfloat16) for _ in range(2)]
        self._is_over = False
        self.times_us: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Tokens:
        self._thread.start()
        return self

    def __exit__(self, *_given: object) -> None:
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            while not self._is_over:
                begun = time.perf_counter()
                (self._weights[0] @ self._weights[1]).argmax().item()
                self.times_us.append((time.perf_counter() - begun) * 1e6)


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

    def swap() -> None:
        nonlocal a, b
        for _ in range(rounds):
            begun = time.perf_counter()
            out(a)
            into(b)
            # A device's other streams need not be idle.
            if device.startswith("cuda"):
                torch.cuda.current_stream(device).synchronize()
            times.append(time.perf_counter() - begun)
            a, b = b, a

    more: dict[str, Any] = {}
    if args.beside:
        with Tokens(device) as tokens:
            time.sleep(QUIET_S)
            quiet = len(tokens.times_us)
            with Cpus() as cpus:
                swap()
            during = tokens.times_us[quiet:]
        # The first ones begin slowly.
        idle = tokens.times_us[quiet // 2 : quiet]
        for name, taken in (("idle", idle), ("during", during)):
            more[f"tokens {name}"] = len(taken)
            for part, of in ((0.5, "median"), (0.99, "p99")):
                more[f"{name} {of} us"] = round(percentile(taken, part), 1)
    else:
        with Cpus() as cpus:
            swap()
    into(b)
    synchronize(device)
    equal = is_whole(a, 1 + rounds % 2) and is_whole(b, 2 - rounds % 2)
    nbytes = sum(parameter.nbytes for parameter in a.parameters())
    median = statistics.median(times)
    more |= {"GB out and in": round(2 * nbytes / 1e9, 2), "GB/s": round(2 * nbytes / median / 1e9, 1)}
    return {"value": median, "cpus": cpus.value, "equal": equal, "n": rounds, "more": more, "torch": torch.__version__}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gib", type=float, default=8.0, help="of each model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", action="store_true", help="give tokens of a third model meanwhile")


if __name__ == "__main__":
    Demo("swap of two models, out and in", "s", [Case("plain"), Case("exec", []), Case("headway")], work, add_arguments, __doc__ or "").main()
