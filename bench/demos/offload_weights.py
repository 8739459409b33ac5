"""Generates tokens with weights that do not fit the GPU: each layer's are copied in when it is its turn, and dropped behind it.

    python bench/demos/offload_weights.py [--gib 8] [--tokens 5] [--quick] [--json FILE]

That is what `accelerate.cpu_offload` does: hooks around each layer, weights in ordinary memory, `tensor.to("cuda")`. It runs plain and under
`headway exec`. The value is the median time of a token. All outputs are compared with those of layers that are on the GPU one at a time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from demo import Case, Cpus, Demo, synchronize

WIDTH, INNER = 4096, 14336


def offloaded(layer: Any, device: str) -> None:
    """Has a layer's weights come in before it runs and go behind it."""
    home = {name: parameter.data for name, parameter in layer.named_parameters()}

    def before(module: Any, _inputs: Any) -> None:
        for name, parameter in module.named_parameters():
            parameter.data = home[name].to(device)

    def behind(module: Any, _inputs: Any, _output: Any) -> None:
        for name, parameter in module.named_parameters():
            parameter.data = home[name]

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(behind)


def work(args: argparse.Namespace, case: str) -> dict[str, Any]:
    import torch

    gib, tokens = (min(args.gib, 2.0), 3) if args.quick else (args.gib, args.tokens)
    device = args.device
    count = max(1, round(gib * (1 << 30) / (2 * 2 * WIDTH * INNER)))
    torch.manual_seed(1)
    layers: list[Any] = []
    for _ in range(count):
        up = torch.nn.Linear(WIDTH, INNER, bias=False, dtype=torch.bfloat16, device=device)
        down = torch.nn.Linear(INNER, WIDTH, bias=False, dtype=torch.bfloat16, device=device)
        layers.append(torch.nn.Sequential(up, torch.nn.SiLU(), down).to("cpu").requires_grad_(False))
    token = torch.randn(1, WIDTH, dtype=torch.bfloat16, device=device)

    def generate(value: Any) -> Any:
        for layer in layers:
            value = value + layer(value)
        return torch.nn.functional.layer_norm(value, (WIDTH,))

    with torch.no_grad():
        expected = token
        for layer in layers:
            expected = expected + layer.to(device)(expected)
            layer.to("cpu")
        expected = torch.nn.functional.layer_norm(expected, (WIDTH,))
        for layer in layers:
            offloaded(layer, device)
        generate(token)
        synchronize(device)
        times: list[float] = []
        equal = True
        with Cpus() as cpus:
            for _ in range(tokens):
                begun = time.perf_counter()
                made = generate(token)
                synchronize(device)
                times.append(time.perf_counter() - begun)
                equal = equal and bool(torch.equal(made, expected))
    nbytes = sum(parameter.nbytes for layer in layers for parameter in layer.parameters())
    median = statistics.median(times)
    more = {"GB a token": round(nbytes / 1e9, 2), "GB/s": round(nbytes / median / 1e9, 1)}
    return {"value": median * 1e3, "cpus": cpus.value, "equal": equal, "n": tokens, "more": more, "torch": torch.__version__}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gib", type=float, default=8.0, help="of weights")
    parser.add_argument("--tokens", type=int, default=5)


if __name__ == "__main__":
    Demo("weights offloaded per token", "ms", [Case("plain"), Case("exec", []), Case("exec --pin-once", ["--pin-once"])], work, add_arguments, __doc__ or "").main()
