#!/usr/bin/env python3
"""Ordinary programs that copy ordinary memory to and from a GPU. They know nothing of Headway.

large_copies.py CASE [--bytes N] [--times N]. Prints one line of JSON: seconds of each copy in order, the first one included,
CPU seconds of the process for each, and whether the bytes are equal.

Cases: `to` (tensor.to("cuda")), `copy` (into a host tensor that was written before), `cpu` (tensor.cpu(): fresh memory),
`asnumpy` (CuPy), `device_get` (JAX), `save` (torch.save of a state dict to a file in memory), `load` (from_pretrained of a random
checkpoint to the GPU).
"""
import argparse
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("case")
parser.add_argument("--bytes", type=int, default=1 << 30)
parser.add_argument("--times", type=int, default=8)
args = parser.parse_args()


def timed(action, before=lambda: None, synchronize=lambda: None):
    seconds, cpu = [], []
    result = None
    for _ in range(args.times):
        result = None
        before()
        synchronize()
        used, start = sum(os.times()[:2]), time.perf_counter()
        result = action()
        synchronize()
        seconds.append(time.perf_counter() - start)
        cpu.append(sum(os.times()[:2]) - used)
    return seconds, cpu, result


def with_torch():
    import torch

    torch.manual_seed(1)
    device = torch.randint(0, 255, (args.bytes,), dtype=torch.uint8, device="cuda")
    host = device.cpu()
    other = torch.empty_like(host).fill_(1)
    if args.case == "to":
        seconds, cpu, result = timed(lambda: host.to("cuda"), synchronize=torch.cuda.synchronize)
        return seconds, cpu, bool(torch.equal(result, device))
    if args.case == "copy":
        seconds, cpu, _ = timed(lambda: other.copy_(device), synchronize=torch.cuda.synchronize)
        return seconds, cpu, bool(torch.equal(other, host))
    seconds, cpu, result = timed(lambda: device.cpu(), synchronize=torch.cuda.synchronize)
    return seconds, cpu, bool(torch.equal(result, host))


def asnumpy():
    import cupy
    import numpy

    device = cupy.random.randint(0, 255, args.bytes, dtype=cupy.uint8)
    seconds, cpu, result = timed(lambda: cupy.asnumpy(device), synchronize=cupy.cuda.Device().synchronize)
    return seconds, cpu, bool(cupy.array_equal(cupy.asarray(result), device)) and isinstance(result, numpy.ndarray)


def device_get():
    import jax
    import jax.numpy as jnp
    import numpy

    host = numpy.random.default_rng(1).integers(0, 255, args.bytes, dtype=numpy.uint8)
    arrays = [jax.device_put(host) + jnp.uint8(index) for index in range(args.times)]
    jax.block_until_ready(arrays)
    turn = iter(arrays)
    # Each array is fetched once: JAX keeps what it has fetched.
    seconds, cpu, result = timed(lambda: jax.device_get(next(turn)))
    return seconds, cpu, bool(numpy.array_equal(result, host + numpy.uint8(args.times - 1)))


def save():
    import torch

    parts = {f"layer{index}": torch.randint(0, 255, (args.bytes // 16,), dtype=torch.uint8, device="cuda") for index in range(16)}
    path = "/dev/shm/headway-large-copies.pt"
    seconds, cpu, _ = timed(lambda: torch.save(parts, path), before=lambda: os.path.exists(path) and os.remove(path))
    again = torch.load(path, map_location="cuda")
    equal = all(bool(torch.equal(again[name], part)) for name, part in parts.items())
    os.remove(path)
    return seconds, cpu, equal


def load():
    import shutil

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = "/dev/shm/headway-checkpoint"
    if not os.path.exists(folder):
        hidden, layers = 4096, max(1, args.bytes // (2 * 180_000_000))
        config = LlamaConfig(hidden_size=hidden, intermediate_size=11008, num_hidden_layers=layers, num_attention_heads=32,
                             vocab_size=32000)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="2GB")
        torch.set_default_dtype(torch.float32)
        torch.cuda.empty_cache()
    action = lambda: LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda")
    seconds, cpu, model = timed(action, synchronize=torch.cuda.synchronize)
    from safetensors.torch import load_file
    files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    state, equal = model.state_dict(), True
    for name in files:
        for key, value in load_file(os.path.join(folder, name)).items():
            equal = equal and bool(torch.equal(state[key].cpu(), value))
    if os.environ.get("LAST"):
        shutil.rmtree(folder)
    return seconds, cpu, equal


cases = {"to": with_torch, "copy": with_torch, "cpu": with_torch, "asnumpy": asnumpy, "device_get": device_get, "save": save, "load": load}
seconds, cpu, equal = cases[args.case]()
rounded = lambda values: [round(value, 6) for value in values]
print(json.dumps({"case": args.case, "bytes": args.bytes, "seconds": rounded(seconds), "cpu": rounded(cpu), "equal": equal}))
