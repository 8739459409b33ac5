#!/usr/bin/env python3
"""Ordinary programs that copy in every way that frameworks offer. They know nothing of Headway.

roads.py CASE prints one line of JSON: a hash of all bytes that came back and how many copies' bytes were wrong. A framework that is not
installed ends the program with status 77. `roads.py --list` prints the cases.
"""
import argparse
import hashlib
import json
import os
import sys
import tempfile
import threading

BYTES = 256 << 20
cases, digest, wrong = {}, hashlib.blake2b(digest_size=16), 0


def case(function):
    cases[function.__name__] = function
    return function


def pattern(count, seed=1):
    import numpy

    return numpy.random.default_rng(seed).integers(0, 1 << 30, count, dtype=numpy.int32)


def seen(array, expected=None):
    import numpy

    global wrong
    array = numpy.ascontiguousarray(array)
    digest.update(memoryview(array).cast("B"))
    if expected is not None and not numpy.array_equal(array, expected):
        wrong += 1


@case
def torch_to_cpu():
    import torch

    for count in (3, 1000, 262_147, 1_048_576, 4_194_309, BYTES // 4):
        host = pattern(count, count)
        there = torch.from_numpy(host).to("cuda")
        seen(there.cpu().numpy(), host)
        back = torch.empty(count, dtype=torch.int32)
        back.copy_(there)
        seen(back.numpy(), host)
        seen((there * 2).cpu().numpy(), host * 2)
        if count > 10:
            seen(there[: count // 2 * 2].reshape(2, -1)[:, 1:].cpu().numpy(), host[: count // 2 * 2].reshape(2, -1)[:, 1:])


@case
def torch_non_blocking():
    import torch

    streams = [torch.cuda.Stream() for _ in range(4)]
    hosts = [pattern(BYTES // 16, i) for i in range(4)]
    for pinned in (True, False):
        sources = [torch.from_numpy(host) for host in hosts]
        sources = [source.pin_memory() if pinned else source.clone() for source in sources]
        backs = [torch.empty_like(source, pin_memory=pinned) for source in sources]
        for round in range(3):
            for stream, source, back in zip(streams, sources, backs):
                with torch.cuda.stream(stream):
                    there = source.to("cuda", non_blocking=True)
                    back.copy_(there + round, non_blocking=True)
                    small = there[:7].sum().to("cpu", non_blocking=True)
            torch.cuda.synchronize()
            for host, back in zip(hosts, backs):
                seen(back.numpy(), host + round)
            seen(small.numpy())


class Items:
    """A data set of arrays that are made on the fly."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return pattern(1 << 19, index)


def loaded(method):
    import torch
    from torch.utils.data import DataLoader

    for pinned in (True, False):
        loader = DataLoader(Items(), batch_size=4, num_workers=2, pin_memory=pinned, multiprocessing_context=method)
        for number, batch in enumerate(loader):
            there = batch.to("cuda", non_blocking=True)
            back = there.cpu().numpy()
            for row in range(4):
                seen(back[row], pattern(1 << 19, number * 4 + row))
    torch.cuda.synchronize()


@case
def torch_loader_fork():
    loaded("fork")


@case
def torch_loader_spawn():
    loaded("spawn")


@case
def torch_capture():
    import torch

    host = pattern(BYTES // 16)
    static, result = torch.zeros(1 << 20, device="cuda"), torch.empty(1 << 20, pin_memory=True)
    (static + 1).sum().item()
    stop, failed = threading.Event(), []

    def copies():
        try:
            while not stop.is_set():
                there = torch.from_numpy(host).to("cuda")
                if not torch.equal(there.cpu(), torch.from_numpy(host)):
                    failed.append("bytes")
        except Exception as error:
            failed.append(str(error))

    for mode in ("thread_local", "relaxed"):
        stop.clear()
        thread = threading.Thread(target=copies)
        thread.start()
        for round in range(8):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode=mode):
                static.add_(1)
                result.copy_(static, non_blocking=True)
            graph.replay()
            torch.cuda.synchronize()
            seen(result.numpy())
        stop.set()
        thread.join()
    assert not failed, failed


@case
def torch_save_load():
    import torch

    host = pattern(BYTES // 4)
    state = {"a": torch.from_numpy(host).to("cuda"), "b": torch.arange(1000, device="cuda")}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "state")
        torch.save(state, path)
        for options in ({}, {"mmap": True}):
            again = torch.load(path, map_location="cuda", **options)
            seen(again["a"].cpu().numpy(), host)
            seen(again["b"].cpu().numpy())


@case
def torch_profiler():
    import torch
    from torch.profiler import ProfilerActivity, profile

    host = pattern(BYTES // 8)
    torch.zeros(1, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            seen(torch.from_numpy(host).to("cuda").cpu().numpy(), host)
        torch.cuda.synchronize()
    assert profiler.key_averages()


@case
def torch_threads():
    import torch

    torch.zeros(1, device="cuda")
    results = [None] * 32

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            host = pattern((1 << 20) + number * 1001, number)
            for _ in range(3):
                back = torch.from_numpy(host).to("cuda").cpu().numpy()
            results[number] = (back, host)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for back, host in results:
        seen(back, host)


@case
def safetensors_pretrained():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=4, num_attention_heads=16, vocab_size=32_000)
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        LlamaForCausalLM(config).save_pretrained(folder)
        model = LlamaForCausalLM.from_pretrained(folder, device_map={"": 0} if installed("accelerate") else None).to("cuda")
    for _, value in sorted(model.state_dict().items()):
        seen(value.float().cpu().numpy())


def installed(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


@case
def cupy_asarray():
    import cupy
    import numpy

    for count in (5, 262_147, BYTES // 4):
        host = pattern(count, count)
        there = cupy.asarray(host)
        seen(cupy.asnumpy(there), host)
        seen(cupy.asnumpy(there + 1), host + 1)
        out = numpy.empty_like(host)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            (there * 3).get(out=out, stream=stream, blocking=False)
            stream.synchronize()
        seen(out, host * 3)
    grid = cupy.asarray(pattern(4 << 20).reshape(2048, 2048))
    seen(cupy.asnumpy(grid[:, 100:1100]))
    target = cupy.zeros((2048, 2048), cupy.int32)
    target[:1024] = cupy.asarray(pattern(2 << 20, 4).reshape(1024, 2048))
    seen(cupy.asnumpy(target))


@case
def numba_kernel():
    from numba import cuda

    @cuda.jit
    def add(array, what):
        at = cuda.grid(1)
        if at < array.size:
            array[at] += what

    for count in (1000, BYTES // 16):
        host = pattern(count, 3)
        there = cuda.to_device(host)
        add[(count + 255) // 256, 256](there, 5)
        seen(there.copy_to_host(), host + 5)
        add[(count + 255) // 256, 256](host, 7)
        seen(host)


@case
def jax_half_gib():
    import_jax(512 << 20)


@case
def jax_two_gib():
    import_jax(2 << 30)


def import_jax(size):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    host = pattern(size // 4, 9)
    there = jax.device_put(host, jax.devices("gpu")[0])
    seen(jax.device_get(there), host)
    seen(jax.device_get(there[:1000] * 2), host[:1000] * 2)


@case
def triton_kernel():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, count, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(y + at, tl.load(x + at, mask=at < count) + 3, mask=at < count)

    host = pattern(BYTES // 16)
    x = torch.from_numpy(host).to("cuda")
    y = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), block=1024)
    seen(y.cpu().numpy(), host + 3)


@case
def onnx_session():
    import numpy
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise ImportError("onnxruntime without CUDA")
    from onnx import TensorProto, helper

    shape = [1024, 4096]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
    x = pattern(4 << 20).astype(numpy.float32).reshape(shape)
    seen(session.run(None, {"x": x})[0], x + x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", nargs="?")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(cases))
        return 0
    try:
        cases[arguments.case]()
    except ImportError as error:
        print(json.dumps({"skipped": str(error)}))
        return 77
    print(json.dumps({"bytes": digest.hexdigest(), "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
