"""Copies between arrays of PyTorch, CuPy, JAX, Numba and NumPy on a GPU: bytes, order of streams, lifetimes, errors, threads.

    python bench/python/gpu_interop.py

Each check is printed with `ok`, `left out` (a package is missing) or `FAILED`; the exit status is 1 if one failed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

import headway as hw


class LeftOut(Exception):
    """Something is missing for a check."""


def need(name: str) -> Any:
    try:
        module = __import__(name, fromlist=["_"])
    except ImportError as error:
        raise LeftOut(str(error)) from error
    return module


def data(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 1) -> np.ndarray:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).view(dtype).reshape(shape)


def same(a: Any, b: Any) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


SIZES = [1, 3, 1000, 16 << 10, 64 << 10, 100_001, 1 << 20, (5 << 20) + 7, 64 << 20]
checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    checks.append(function)
    return function


@check
def torch_sizes_both_ways() -> None:
    torch = need("torch")
    for size in SIZES:
        a = data((size,), np.uint8, size)
        t = torch.zeros(size, dtype=torch.uint8, device="cuda")
        hw.copy(t, a)
        assert same(t.cpu().numpy(), a), size
        b = np.zeros_like(a)
        ticket = hw.copy(b, t)
        assert ticket.done and ticket.method and ticket.took_ns and ticket.nbytes == size
        assert same(b, a), size


@check
def torch_dtypes() -> None:
    torch = need("torch")
    for dtype in (np.float16, np.float32, np.float64, np.int8, np.int64, np.bool_, np.complex64, np.uint8):
        a = data((7, 5), np.uint8).astype(dtype) if dtype is np.bool_ else data((7, 5), dtype)
        t = torch.zeros((7, 5), dtype=torch.from_numpy(a.copy()).dtype, device="cuda")
        hw.copy(t, a)
        assert same(t.cpu().numpy(), a), dtype
    # NumPy has no bfloat16: its bits are.
    t = torch.zeros(9, dtype=torch.bfloat16, device="cuda")
    bits = data((9,), np.uint16)
    hw.copy(t, bits)
    assert same(t.view(torch.int16).cpu().numpy(), bits)


@check
def torch_views_and_byte_offsets() -> None:
    torch = need("torch")
    t = torch.zeros((10, 100), dtype=torch.float32, device="cuda")
    a = data((3, 100))
    hw.copy(t[4:7], a)
    assert same(t[4:7].cpu().numpy(), a) and float(t[:4].abs().sum() + t[7:].abs().sum()) == 0
    try:
        hw.copy(t[:, ::2], np.zeros((10, 50), np.float32))
    except hw.ArrayError as error:
        assert error.argument == "dst" and error.dst_shape == (10, 50)
    else:
        raise AssertionError("a tensor with gaps was accepted")


@check
def torch_cpu_tensors_are_host_memory() -> None:
    torch = need("torch")
    a = torch.arange(100_000, dtype=torch.int32)
    t = torch.zeros_like(a, device="cuda")
    hw.copy(t, a)
    assert torch.equal(t.cpu(), a)
    pinned = torch.zeros_like(a).pin_memory()
    ticket = hw.copy(pinned, t)
    assert torch.equal(pinned, a) and ticket.method == "dma", ticket


@check
def torch_conjugated_tensors_are_not_copied_as_they_lie() -> None:
    torch = need("torch")
    conjugated = torch.full((4,), 1 + 2j, dtype=torch.complex64, device="cuda").conj()
    negated = torch._neg_view(torch.ones(4, device="cuda"))
    for t, target in ((conjugated, np.zeros(4, np.complex64)), (negated, np.zeros(4, np.float32))):
        for order in ({}, {"stream": torch.cuda.current_stream()}, {"stream": torch.cuda.Stream()}):
            try:
                hw.copy(target, t, **order)
            except hw.ArrayError as error:
                assert error.argument == "src", error
            else:
                raise AssertionError(f"{t} became {target}")
    b = np.zeros(4, np.complex64)
    hw.copy(b, conjugated.resolve_conj())
    assert (b == 1 - 2j).all(), b


@check
def torch_order_with_the_current_stream() -> None:
    """A copy without a stream sees what kernels of the current stream write, also where that is no default stream."""
    torch = need("torch")
    n = 32 << 20
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for value in range(5):
                t = torch.zeros(n, dtype=torch.uint8, device="cuda")
                torch.cuda._sleep(20_000_000)
                t.fill_(value + 1)
                b = np.zeros(n, np.uint8)
                hw.copy(b, t)
                assert (b == value + 1).all(), value


@check
def torch_order_in_a_stream() -> None:
    """The copy begins behind what its stream was given, what comes later begins behind the copy, and the call does not wait."""
    torch = need("torch")
    n = 32 << 20
    stream = torch.cuda.Stream()
    a = data((n,), np.uint8)
    t = torch.zeros(n, dtype=torch.uint8, device="cuda")
    hw.copy(t, a, stream=stream).wait()
    expected = torch.from_numpy(a).to("cuda")
    for value in range(5):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            t.fill_(7)
            begun = time.perf_counter()
            ticket = hw.copy(t, a, stream=stream)
            called = time.perf_counter() - begun
            after = t + 1
            assert not ticket.done, "the kernel in front takes 0.1 s"
            assert called < 0.05, called
            b = np.zeros_like(a)
            back = hw.copy(b, after, stream=stream)
        try:
            ticket.wait(0.001)
        except hw.CopyTimeout as error:
            assert error.after_ns == 1_000_000
        ticket.wait()
        back.wait("20 s")
        assert ticket.done and back.done
        assert torch.equal(t, expected), value
        assert same(b, a + 1), value


@check
def streams_of_all_kinds() -> None:
    torch = need("torch")
    stream = torch.cuda.Stream()

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, stream.cuda_stream)

    class Pointer:
        ptr = stream.cuda_stream

    streams: list[Any] = [stream, stream.cuda_stream, Protocol(), Pointer(), 0, 1, 2, torch.cuda.default_stream()]
    try:
        import cupy

        streams += [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null, cupy.cuda.Stream.ptds]
    except ImportError:
        pass
    try:
        from numba import cuda

        streams += [cuda.stream(), cuda.default_stream()]
    except ImportError:
        pass
    try:
        from cuda.core import Device

        device = Device()
        device.set_current()
        streams.append(device.create_stream())
    except Exception as error:  # noqa: BLE001
        print(f"   without cuda.core: {error}")
    for at, each in enumerate(streams):
        a = data((3 << 20,), np.uint8, at)
        t = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        hw.copy(t, a, stream=each).wait()
        b = np.zeros_like(a)
        hw.copy(b, t, stream=each).wait()
        assert same(a, b), each
    for wrong in ("stream", 1.5, -1, object()):
        try:
            hw.copy(np.zeros(1, np.uint8), torch.zeros(1, dtype=torch.uint8, device="cuda"), stream=wrong)
        except hw.OptionError:
            continue
        raise AssertionError(wrong)


@check
def a_stream_that_is_being_captured_is_refused() -> None:
    torch = need("torch")
    t = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    refused = None
    with torch.cuda.graph(graph):
        try:
            hw.copy(t, np.zeros(1 << 20, np.uint8), stream=torch.cuda.current_stream())
        except hw.CopyError as error:
            refused = error
        t.add_(1)
    assert refused is not None and "captured" in str(refused), refused


@check
def arrays_live_until_the_copy_has_ended() -> None:
    torch = need("torch")
    stream = torch.cuda.Stream()
    n = 32 << 20

    class Kept(np.ndarray):
        pass

    for drops_ticket in (False, True):
        source = data((n,), np.uint8).view(Kept)
        copy_of = np.array(source)
        seen = weakref.ref(source)
        t = torch.zeros(n, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        gc.collect()
        # More than a second on any GPU.
        with torch.cuda.stream(stream):
            torch.cuda._sleep(4_000_000_000)
        ticket: Any = hw.copy(t, source, stream=stream)
        del source
        is_kept = seen() is not None
        assert is_kept or stream.query(), "the source went while it was being copied"
        if drops_ticket:
            del ticket
            is_kept = seen() is not None
            assert is_kept or stream.query(), "the source went with its ticket"
            end = time.monotonic() + 10
            while seen() is not None and time.monotonic() < end:
                time.sleep(0.01)
        else:
            ticket.wait()
        assert seen() is None, "the source is kept after the copy"
        stream.synchronize()
        assert same(t.cpu().numpy(), copy_of)


@check
def a_program_may_end_while_copies_are_under_way() -> None:
    need("torch")
    code = """
import numpy as np, torch, headway as hw
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    torch.cuda._sleep(1_000_000_000)
for _ in range(8):
    t = torch.zeros(32 << 20, dtype=torch.uint8, device="cuda")
    hw.copy(t, np.ones(32 << 20, np.uint8), stream=stream)
    held = hw.copy(np.ones(32 << 20, np.uint8), t, stream=stream)
print("ends")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "ends\n" and not done.stderr, done


@check
def many_copies_are_under_way() -> None:
    torch = need("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
    sources = [data((100_000,), np.uint8, seed) for seed in range(1000)]
    targets = torch.zeros((1000, 100_000), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    tickets = [hw.copy(targets[at], source, stream=stream) for at, source in enumerate(sources)]
    for ticket in tickets:
        ticket.wait()
    for at, source in enumerate(sources):
        assert same(targets[at].cpu().numpy(), source), at


@check
def threads_copy_and_others_run() -> None:
    torch = need("torch")
    failures: list[BaseException] = []
    ticks = 0
    ended = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not ended.wait(0.0005):
            ticks += 1

    def work(seed: int) -> None:
        try:
            a = data((8 << 20,), np.uint8, seed)
            t = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda")
            stream = torch.cuda.Stream()
            stream.synchronize()
            torch.cuda.synchronize()
            for at in range(20):
                b = np.zeros_like(a)
                if at % 2:
                    hw.copy(t, a)
                    hw.copy(b, t)
                else:
                    hw.copy(t, a, stream=stream)
                    hw.copy(b, t, stream=stream).wait()
                assert same(a, b), (seed, at)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    ticker = threading.Thread(target=tick)
    ticker.start()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    ticker.join()
    assert not failures, failures
    assert ticks > 10, ticks


@check
def asyncio_waits() -> None:
    torch = need("torch")
    stream = torch.cuda.Stream()
    a = data((16 << 20,), np.uint8)
    t = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()

    async def main() -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.001)
                beats += 1

        task = asyncio.create_task(beat())
        ticket = await hw.copy(t, a, stream=stream)
        assert ticket.done and beats > 5, beats
        b = np.zeros_like(a)
        await asyncio.gather(hw_wait(hw.copy(b, t, stream=stream)), hw_wait(hw.copy(b, t, stream=stream)))
        assert same(a, b)
        task.cancel()

    async def hw_wait(ticket: hw.Ticket) -> None:
        await ticket

    asyncio.run(main())


@check
def pinned_arrays_live_as_long_as_their_views() -> None:
    torch = need("torch")
    t = torch.zeros((100, 1000), dtype=torch.float64, device="cuda")
    a = hw.pinned_empty((100, 1000), np.float64)
    assert a.shape == (100, 1000) and a.dtype == np.float64 and a.flags.c_contiguous and a.flags.writeable and not a.any()
    a[:] = data((100, 1000), np.float64)
    ticket = hw.copy(t, a)
    assert ticket.method == "dma", ticket
    view = a[50:, :]
    del a
    gc.collect()
    assert same(t.cpu().numpy()[50:], view)
    view[:] = 1
    addresses = set()
    for _ in range(20):
        big = hw.pinned_empty(256 << 20, np.uint8)
        addresses.add(big.ctypes.data)
        del big
        gc.collect()
    assert len(addresses) <= 2, "page-locked memory is not given back"


@check
def the_explanation_is_of_the_copy() -> None:
    torch = need("torch")
    a = data((64 << 20,), np.uint8)
    t = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    explained = hw.explain(t, a)
    print("   " + str(explained).replace("\n", "\n   "))
    assert explained.methods and explained.basis
    assert hw.explain(t, hw.pinned_empty(64 << 20, np.uint8)).method == "dma"


@check
def read_only_and_odd_sources() -> None:
    torch = need("torch")
    text = os.urandom(100_000)
    t = torch.zeros(100_000, dtype=torch.uint8, device="cuda")
    for source in (text, bytearray(text), memoryview(text), np.frombuffer(text, np.uint8)):
        t.zero_()
        hw.copy(t, source)
        assert t.cpu().numpy().tobytes() == text, type(source)
    for target in (text, memoryview(text), np.frombuffer(text, np.uint8)):
        try:
            hw.copy(target, t)
        except hw.ArrayError as error:
            assert error.argument == "dst" and "read-only" in str(error), error
        else:
            raise AssertionError(type(target))
    target = bytearray(100_000)
    hw.copy(target, t)
    assert bytes(target) == text
    scalar = np.zeros((), np.float32)
    hw.copy(scalar, torch.tensor(3.5, device="cuda"))
    assert scalar == 3.5
    hw.copy(np.zeros((0, 5), np.float32), torch.zeros((0, 5), device="cuda"))


@check
def cupy_both_ways() -> None:
    cupy = need("cupy")
    for size in SIZES:
        a = data((size,), np.uint8, size)
        x = cupy.zeros(size, cupy.uint8)
        hw.copy(x, a)
        assert same(cupy.asnumpy(x), a), size
        b = np.zeros_like(a)
        hw.copy(b, x)
        assert same(b, a), size
    with cupy.cuda.Stream(non_blocking=True) as stream:
        a = data((8 << 20,), np.uint8)
        x = cupy.zeros(8 << 20, cupy.uint8)
        ticket = hw.copy(x, a, stream=stream)
        y = x + cupy.uint8(1)
        b = np.zeros_like(a)
        hw.copy(b, y, stream=stream).wait()
        assert ticket.done and same(b, a + 1)


@check
def jax_sources() -> None:
    jax = need("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        raise LeftOut("JAX has no GPU")
    for size in (1, 1000, 1 << 20, 16 << 20):
        a = data((size,), np.int32, size)
        j = jax.numpy.asarray(a) * 2
        b = np.zeros_like(a)
        hw.copy(b, j)
        assert same(b, a * 2), size
    try:
        hw.copy(j, b)
    except hw.ArrayError as error:
        assert "read-only" in str(error), error
    else:
        raise AssertionError("an array of JAX was written")
    # Work that was begun a moment ago comes first.
    big = jax.numpy.asarray(data((4096, 4096), np.uint8).astype(np.float32) / 256)
    made = big
    for _ in range(20):
        made = (made @ big) / 4096
    b = np.zeros((4096, 4096), np.float32)
    hw.copy(b, made)
    assert same(b, np.asarray(made))


@check
def numba_both_ways() -> None:
    cuda = need("numba.cuda")
    for size in (1, 1000, 1 << 20, 16 << 20):
        a = data((size,), np.float32, size)
        d = cuda.device_array(size, np.float32)
        hw.copy(d, a)
        assert same(d.copy_to_host(), a), size
        b = np.zeros_like(a)
        hw.copy(b, d)
        assert same(b, a), size
    stream = cuda.stream()
    a = data((8 << 20,), np.uint8)
    d = cuda.to_device(np.zeros_like(a), stream=stream)
    hw.copy(d, a, stream=stream).wait()
    hw.copy(d, a)
    assert same(d.copy_to_host(), a)


@check
def two_gpus() -> None:
    torch = need("torch")
    if torch.cuda.device_count() < 2:
        raise LeftOut("one GPU only")
    a = data((8 << 20,), np.uint8)
    tensors = [torch.zeros(8 << 20, dtype=torch.uint8, device=f"cuda:{at}") for at in range(2)]
    for t in tensors:
        hw.copy(t, a)
        assert same(t.cpu().numpy(), a)
    with torch.cuda.device(1):
        stream = torch.cuda.Stream()
        hw.copy(tensors[1], a, stream=stream).wait()

        class Interface:
            __cuda_array_interface__ = tensors[1].__cuda_array_interface__

        b = np.zeros_like(a)
        hw.copy(b, Interface())
        assert same(a, b)


@check
def a_forked_child_is_told() -> None:
    torch = need("torch")
    t = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    ticket = hw.copy(t, np.zeros(1 << 20, np.uint8), stream=torch.cuda.Stream())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                ticket.wait()
                code = 0 if ticket.took_ns is not None else 2
            except hw.HeadwayError:
                code = 0
            try:
                hw.copy(np.zeros(1 << 20, np.uint8), t)
                code = 3
            except (hw.HeadwayError, RuntimeError):
                pass
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    ticket.wait()


@check
def import_is_quick_and_brings_nothing() -> None:
    code = "import time; t = time.perf_counter(); import headway; print(time.perf_counter() - t)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    print(f"   import headway: {1e3 * sorted(times)[2]:.1f} ms")
    assert sorted(times)[2] < 0.15


def main() -> int:
    faults = 0
    for each in checks:
        begun = time.monotonic()
        try:
            each()
            word = "ok"
        except LeftOut as reason:
            word = f"left out: {reason}"
        except BaseException:  # noqa: BLE001
            faults += 1
            word = "FAILED"
            traceback.print_exc()
        print(f"{each.__name__.replace('_', ' ')}: {word} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{len(checks)} checks, {faults} failed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
