"""Copies of arrays, on a driver library that has no GPU behind it: its memory is host memory, and its streams are threads."""

from __future__ import annotations

import array
import asyncio
import ctypes
import gc
import logging
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import headway as hw
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_gpu import Array, Bytes, Driver, TableArray

PROTOCOLS = ["versioned", "unversioned", "interface"]
SIZES = [1, 3, 4096, 64 << 10, 100_001, (3 << 20) + 5]


def data(size: int, seed: int = 1) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size", SIZES)
def test_bytes_arrive_both_ways(driver: Driver, protocol: str, size: int) -> None:
    sent, gpu = data(size), Array(driver, (size,), np.uint8, protocol=protocol)
    there = hw.copy(gpu, sent)
    assert there.done and there.method is not None and there.nbytes == size
    assert (gpu.content() == sent).all() and gpu.exported == 0
    back = np.zeros_like(sent)
    hw.copy(back, gpu).wait()
    assert (back == sent).all() and gpu.exported == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size", SIZES)
def test_bytes_arrive_both_ways_in_a_stream(driver: Driver, protocol: str, size: int) -> None:
    stream = driver.stream()
    sent, gpu = data(size), Array(driver, (size,), np.uint8, protocol=protocol)
    back = np.zeros_like(sent)
    tickets = [hw.copy(gpu, sent, stream=stream), hw.copy(back, gpu, stream=stream)]
    for ticket in tickets:
        ticket.wait("60 s")
        assert ticket.done and ticket.took_ns is not None and ticket.took_ns > 0
    assert (back == sent).all() and gpu.exported == 0


def test_a_producer_gets_the_stream_and_never_the_forbidden_one(driver: Driver) -> None:
    gpu, stream = Array(driver, (4,), np.uint8), driver.stream()
    hw.copy(gpu, bytes(4))
    hw.copy(gpu, bytes(4), stream=stream).wait()
    hw.copy(gpu, bytes(4), stream=0).wait()
    hw.copy(gpu, bytes(4), stream=2).wait()
    assert [asked["stream"] for asked in gpu.asked] == [1, stream, 1, 1]
    assert gpu.asked[0]["max_version"][0] == 1 and gpu.asked[0]["copy"] is False
    # Who tells of its own stream is waited for.
    hw.copy(Array(driver, (4,), np.uint8, protocol="interface", stream=driver.stream()), bytes(4), stream=stream).wait()


def test_the_table_of_a_package_is_used_where_its_stream_is_the_copys(driver: Driver) -> None:
    sent, gpu, stream = data(1 << 20), TableArray(driver, (1 << 20,), np.uint8), driver.stream()
    for TableArray.current, order in ((None, {}), (stream, {}), (stream, {"stream": stream}), (None, {"stream": 1})):
        before = (TableArray.lent, TableArray.managed)
        gpu.content()[:] = 0
        hw.copy(gpu, sent, **order).wait()
        assert (gpu.content() == sent).all() and gpu.exported == 0 and not gpu.asked
        # What is used after the call is kept by its package.
        assert (TableArray.lent, TableArray.managed) == (before[0] + (not order), before[1] + len(order))
    # Its work in another stream is to come first, which only the package can order.
    hw.copy(gpu, sent, stream=driver.stream()).wait()
    assert len(gpu.asked) == 1 and gpu.exported == 0


def test_streams_come_in_many_forms(driver: Driver) -> None:
    number = driver.stream()

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, number)

    class Property:
        __cuda_stream__ = (0, number)

    class Torch:
        cuda_stream = number

    class CuPy:
        ptr = number

    class Numba:
        handle = ctypes.c_void_p(number)

    class NumbaDefault:
        handle = ctypes.c_void_p(0)

    gpu = Array(driver, (1000,), np.uint8)
    streams: list[object] = [number, Protocol(), Property(), Torch(), CuPy(), Numba(), NumbaDefault(), 0, 1, 2]
    sent = data(1000)
    for at, stream in enumerate(streams):
        sent = data(1000, at)
        hw.copy(gpu, sent, stream=stream).wait()
        assert (gpu.content() == sent).all(), stream
    for wrong in ["0", 1.0, True, -1, 1 << 80, object()]:
        with pytest.raises(hw.OptionError, match="no CUDA stream"):
            hw.copy(gpu, sent, stream=wrong)


def test_host_memory_comes_in_many_forms(driver: Driver) -> None:
    sent = data(1000)
    gpu = Array(driver, (1000,), np.uint8)
    sources: list[object] = [sent.tobytes(), bytearray(sent), memoryview(sent.tobytes()), array.array("B", sent.tobytes()), sent.reshape(1000)]
    for source in sources:
        gpu.content()[:] = 0
        hw.copy(gpu, source)
        assert (gpu.content() == sent).all(), type(source)
    target = bytearray(1000)
    hw.copy(target, gpu)
    assert target == sent.tobytes()
    # NumPy's interface, for types that have neither a format nor a DLPack type.
    times = np.array(["2026-11-27", "1970-01-01"], "datetime64[s]")
    gpu = Array(driver, (2,), np.uint64)
    hw.copy(gpu, times)
    assert gpu.content().tobytes() == times.tobytes()

    class OnlyDlpack:
        """As arrays of packages that do not have the buffer protocol."""

        __dlpack__, __dlpack_device__ = times.view(np.int64).__dlpack__, times.view(np.int64).__dlpack_device__

    hw.copy(Array(driver, (2,), np.int64), OnlyDlpack())


def test_read_only_targets_are_refused(driver: Driver) -> None:
    gpu = Array(driver, (4,), np.uint8)
    still = np.zeros(4, np.uint8)
    still.setflags(write=False)
    targets = [bytes(4), memoryview(bytes(4)), still]
    for target in targets:
        with pytest.raises(hw.ArrayError, match="`dst` is read-only") as caught:
            hw.copy(target, gpu)
        assert caught.value.argument == "dst" and caught.value.dst_shape == (4,) and caught.value.dst_dtype == "uint8"
    for protocol in ["versioned", "interface"]:
        with pytest.raises(hw.ArrayError, match="read-only"):
            hw.copy(Array(driver, (4,), np.uint8, protocol=protocol, flags=1), bytes(4))
        back = bytearray(4)
        hw.copy(back, Array(driver, (4,), np.uint8, protocol=protocol, flags=1))


def test_tensors_whose_bytes_are_not_their_values_are_refused(driver: Driver) -> None:
    class Conjugated(Array):
        def is_conj(self) -> bool:
            return True

    class ConjugatedByTable(TableArray):
        def is_conj(self) -> bool:
            return True

    for kind in (Conjugated, ConjugatedByTable):
        gpu = kind(driver, (4,), np.complex64)
        for order in ({}, {"stream": 0}):
            with pytest.raises(hw.ArrayError, match=r"resolve_conj\(\)") as caught:
                hw.copy(np.zeros(4, np.complex64), gpu, **order)
            assert caught.value.argument == "src" and gpu.exported == 0
        hw.copy(np.zeros(4, np.uint8), kind(driver, (4,), np.uint8))

    class Refuses(Array):
        """As PyTorch does whose interface of a GPU is quiet about it."""

        def __init__(self) -> None:
            super().__init__(driver, (4,), np.uint8, protocol="interface")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

        def __dlpack__(self, **_: object) -> object:
            raise BufferError("no values")

    with pytest.raises(hw.ArrayError, match="does not give its memory: no values"):
        hw.copy(bytearray(4), Refuses())


def test_arrays_of_jax_are_never_written(driver: Driver) -> None:
    still = type("ArrayImpl", (Array,), {"__module__": "jaxlib._jax"})(driver, (4,), np.uint8, protocol="unversioned")
    with pytest.raises(hw.ArrayError, match="`dst` is read-only"):
        hw.copy(still, bytes(4))
    hw.copy(bytearray(4), still)


def test_a_target_that_is_only_a_copy_is_refused(driver: Driver) -> None:
    gpu = Array(driver, (4,), np.uint8, flags=2)
    with pytest.raises(hw.ArrayError, match="only a copy"):
        hw.copy(gpu, bytes(4))
    hw.copy(bytearray(4), gpu)
    assert gpu.exported == 0


def test_offsets_are_counted(driver: Driver) -> None:
    for protocol in PROTOCOLS:
        sent, gpu = data(100), Array(driver, (100,), np.uint8, protocol=protocol, byte_offset=256)
        hw.copy(gpu, sent)
        assert (gpu.content() == sent).all() and (gpu.memory.content()[:256] == 0xA5).all()


def test_other_devices_are_refused(driver: Driver) -> None:
    with pytest.raises(hw.ArrayError, match="moves by itself"):
        hw.copy(Array(driver, (4,), np.uint8, device_type=13), bytes(4))
    with pytest.raises(hw.ArrayError, match="another kind"):
        hw.copy(Array(driver, (4,), np.uint8, device_type=10), bytes(4))
    with pytest.raises(hw.ArrayError, match=r"DLPack 2\.0"):
        hw.copy(Array(driver, (4,), np.uint8, major=2), bytes(4))
    with pytest.raises(hw.ArrayError, match="both arrays are in host memory"):
        hw.copy(bytearray(4), bytes(4))
    with pytest.raises(hw.ArrayError, match="both arrays are on GPUs"):
        hw.copy(Array(driver, (4,), np.uint8), Array(driver, (4,), np.uint8))
    with pytest.raises(hw.ArrayError, match="`src` is no array: `list`") as caught:
        hw.copy(Array(driver, (4,), np.uint8), [1, 2, 3, 4])
    assert caught.value.argument == "src" and isinstance(caught.value, ValueError)


def test_memory_that_is_not_the_gpus_is_refused(driver: Driver) -> None:
    host = np.zeros(100, np.uint8)

    class Wrong:
        __cuda_array_interface__ = {**host.__array_interface__}

    with pytest.raises(hw.CopyError, match="neither is memory of this GPU"):
        hw.copy(Wrong(), host)


dtypes = st.sampled_from(["u1", "i1", "?", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8", "c16"])
sides = st.integers(0, 7)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(sides, max_size=4), dtype=dtypes, protocol=st.sampled_from(PROTOCOLS), stream=st.booleans(), cut=st.data())
def test_any_shape_is_copied_or_refused_by_its_strides(
    driver: Driver, shape: list[int], dtype: str, protocol: str, stream: bool, cut: st.DataObject
) -> None:
    whole = np.frombuffer(data(7**4 * 16).tobytes(), dtype)[: int(np.prod(shape, dtype=np.int64))].reshape(shape)
    part = whole
    if shape:
        cuts = cut.draw(st.lists(st.builds(slice, sides, sides, st.sampled_from([1, 1, 1, 2, -1])), max_size=len(shape)))
        part = whole[tuple(cuts)]
        part = part.transpose(cut.draw(st.permutations(range(part.ndim))))
    gpu = Array(driver, part.shape, dtype, protocol=protocol)
    order = {"stream": 0} if stream else {}
    if not part.flags.c_contiguous:
        with pytest.raises(hw.ArrayError, match="rows without gaps") as caught:
            hw.copy(gpu, part, **order)
        assert caught.value.src_shape == part.shape and caught.value.argument == "src"
        return
    hw.copy(gpu, part, **order).wait()
    assert gpu.content().tobytes() == part.tobytes()
    back = np.zeros_like(part)
    hw.copy(back, gpu, **order).wait()
    assert back.tobytes() == part.tobytes() and gpu.exported == 0


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(1, 4), max_size=3), other=st.lists(st.integers(1, 4), max_size=3), types=st.tuples(dtypes, dtypes))
def test_shapes_and_types_must_fit(driver: Driver, shape: list[int], other: list[int], types: tuple[str, str]) -> None:
    gpu, host = Array(driver, tuple(shape), types[0]), np.zeros(other, types[1])
    sizes = gpu.dtype.itemsize == host.dtype.itemsize
    fits = shape == other and sizes and (gpu.dtype.kind == host.dtype.kind or "u" in (gpu.dtype.kind, host.dtype.kind))
    if fits:
        hw.copy(gpu, host)
    else:
        with pytest.raises(hw.ArrayError) as caught:
            hw.copy(gpu, host)
        error = caught.value
        assert error.argument is None and error.dst_shape == tuple(shape) and error.src_shape == tuple(other)
        assert error.dst_dtype == gpu.dtype.name and error.src_dtype == host.dtype.name
        if shape == other:
            assert gpu.dtype.name in str(error) and host.dtype.name in str(error)
    assert gpu.exported == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(sides, min_size=1, max_size=3), protocol=st.sampled_from(["versioned", "interface"]), cut=st.data())
def test_strides_of_a_gpus_array_are_looked_at(driver: Driver, shape: list[int], protocol: str, cut: st.DataObject) -> None:
    model = np.zeros(shape, np.float32).transpose(cut.draw(st.permutations(range(len(shape)))))
    gpu = Array(driver, model.shape, np.float32, protocol=protocol, strides=model.strides)
    back = np.zeros(model.shape, np.float32)
    if model.flags.c_contiguous:
        hw.copy(back, gpu)
    else:
        with pytest.raises(hw.ArrayError, match="`src` does not lie in rows"):
            hw.copy(back, gpu)


class Kept(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array that can be looked for."""


@pytest.mark.parametrize("drops_ticket", [False, True])
def test_both_arrays_live_until_the_copy_has_ended(driver: Driver, drops_ticket: bool) -> None:
    stream = driver.stream()
    source, gpu = data(4 << 20).view(Kept), Array(driver, (4 << 20,), np.uint8)
    sent, memory = np.array(source), gpu.memory
    seen, gone = weakref.ref(source), weakref.ref(gpu)
    with driver.held():
        ticket: hw.Ticket | None = hw.copy(gpu, source, stream=stream)
        assert gpu.exported == 1
        del source, gpu
        if drops_ticket:
            ticket = None
        gc.collect()
        assert seen() is not None and gone() is not None
    if ticket is not None:
        ticket.wait()
        assert ticket.method == "staged"
        ticket.wait()
    else:
        eventually(lambda: seen() is None)
    gc.collect()
    assert seen() is None and gone() is None
    assert (memory.content() == sent).all()


def test_a_bytearray_cannot_be_resized_under_a_copy(driver: Driver) -> None:
    target = bytearray(1 << 20)
    with driver.held():
        ticket = hw.copy(target, Array(driver, (1 << 20,), np.uint8), stream=driver.stream())
        with pytest.raises(BufferError):
            target.append(0)
    ticket.wait()
    target.append(0)


def test_a_wait_ends_in_time_and_the_copy_goes_on(driver: Driver) -> None:
    gpu = Array(driver, (1 << 20,), np.uint8)
    with driver.held():
        ticket = hw.copy(gpu, bytes(1 << 20), stream=driver.stream())
        assert not ticket.done and ticket.took_ns is None and "under way" in repr(ticket)
        for timeout, after in ((0.01, 10_000_000), ("10 ms", 10_000_000), (0, 0)):
            with pytest.raises(hw.CopyTimeout) as caught:
                ticket.wait(timeout)
            assert caught.value.after_ns == after and isinstance(caught.value, TimeoutError)
        for wrong in (-1, float("nan"), "soon"):
            with pytest.raises(hw.OptionError):
                ticket.wait(wrong)
    ticket.wait(None)
    assert ticket.done and "done" in repr(ticket)


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_a_copy_without_a_stream_waits_for_that_of_its_array(driver: Driver, size: int) -> None:
    stream, sent, back = driver.stream(), data(size), np.zeros(size, np.uint8)
    gpu = Array(driver, (size,), np.uint8, protocol="interface", stream=stream)
    with driver.held():
        there = hw.copy(gpu, sent, stream=stream)
        waiting = threading.Thread(target=hw.copy, args=(back, gpu))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive() and not there.done and not back.any()
    waiting.join()
    assert (back == sent).all()


def test_ctrl_c_ends_a_wait(driver: Driver, ctrl_c: threading.Timer) -> None:
    with driver.held():
        ticket = hw.copy(Array(driver, (1 << 20,), np.uint8), bytes(1 << 20), stream=driver.stream())
        with pytest.raises(KeyboardInterrupt):
            ctrl_c.start()
            ticket.wait()
    ticket.wait()


def test_other_threads_run_while_one_waits(driver: Driver) -> None:
    ticks = 0
    with driver.held():
        ticket = hw.copy(Array(driver, (1 << 20,), np.uint8), bytes(1 << 20), stream=driver.stream())
        waiting = threading.Thread(target=ticket.wait)
        waiting.start()
        for _ in range(100):
            time.sleep(0.0005)
            ticks += 1
        assert not ticket.done
    waiting.join()
    assert ticks == 100 and ticket.done


def test_many_threads_copy(driver: Driver) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            driver.use()
            stream = driver.stream()
            gpu = Array(driver, (300_000,), np.uint8, protocol=PROTOCOLS[seed % 3])
            for at in range(10):
                sent, back = data(300_000, 100 * seed + at), np.zeros(300_000, np.uint8)
                if at % 2:
                    hw.copy(gpu, sent)
                    hw.copy(back, gpu)
                else:
                    hw.copy(gpu, sent, stream=stream)
                    hw.copy(back, gpu, stream=stream).wait()
                assert (back == sent).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_more_copies_than_the_library_queues_at_once(driver: Driver) -> None:
    stream = driver.stream()
    gpus = [Array(driver, (100,), np.uint8, protocol="interface") for _ in range(600)]
    tickets = [hw.copy(gpu, data(100, at), stream=stream) for at, gpu in enumerate(gpus)]
    for at, (ticket, gpu) in enumerate(zip(tickets, gpus, strict=True)):
        ticket.wait()
        assert (gpu.content() == data(100, at)).all()


def test_event_loops_wait(driver: Driver) -> None:
    stream = driver.stream()

    async def main() -> None:
        gpu, sent = Array(driver, (1 << 20,), np.uint8), data(1 << 20)
        with driver.held():
            ticket = hw.copy(gpu, sent, stream=stream)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wait(ticket), 0.05)
            assert not ticket.done
        assert await ticket is ticket
        assert ticket.done and (gpu.content() == sent).all()
        # Again, and for one that had ended at once.
        assert (await ticket).done and (await hw.copy(gpu, sent)).done
        back = [np.zeros_like(sent) for _ in range(5)]
        await asyncio.gather(*(wait(hw.copy(each, gpu, stream=stream)) for each in back))
        assert all((each == sent).all() for each in back)

    async def wait(ticket: hw.Ticket) -> None:
        await ticket

    asyncio.run(main())


def test_a_stream_that_is_being_captured_is_refused(driver: Driver) -> None:
    gpu, stream = Array(driver, (1 << 20,), np.uint8), driver.stream()
    with driver.capturing(), pytest.raises(hw.CopyError, match="being captured"):
        hw.copy(gpu, bytes(1 << 20), stream=stream)
    assert gpu.exported == 0
    hw.copy(gpu, bytes(1 << 20), stream=stream).wait()


def test_pinned_arrays_are_given_back_with_their_last_view(driver: Driver) -> None:
    made = hw.pinned_empty((50, 1000), np.float32)
    assert made.shape == (50, 1000) and made.dtype == np.float32 and made.flags.c_contiguous and not made.any()
    made[:] = data(200_000).view(np.float32).reshape(50, 1000)
    gpu = Array(driver, (50, 1000), np.float32)
    assert hw.copy(gpu, made).method == "dma" and gpu.content().tobytes() == made.tobytes()
    assert hw.copy(gpu, made, stream=driver.stream()).method == "dma"
    view, expected = made[10:20, 5], made[10:20, 5].copy()
    address = made.ctypes.data
    del made
    gc.collect()
    for _ in range(10):
        other = hw.pinned_empty((50, 1000), np.float32)
        assert other.ctypes.data != address
        other[:] = 7
        del other
    assert view.tobytes() == expected.tobytes()
    del view
    gc.collect()
    again = hw.pinned_empty((50, 1000), np.float32)
    assert again.ctypes.data == address and not again.any()
    assert hw.pinned_empty(3, "u1").shape == (3,) and hw.pinned_empty((0, 3)).shape == (0, 3)
    with pytest.raises(hw.OptionError):
        hw.pinned_empty(3, object)
    with pytest.raises(hw.OptionError):
        hw.pinned_empty((3, -1))
    with pytest.raises(hw.HeadwayError):
        hw.pinned_empty(1 << 62, np.uint8)
    for shape in (np.int64(4), [4], np.array([2, 2]), (np.int32(2), 2), ()):
        assert hw.pinned_empty(shape, "u1").shape == np.empty(shape, "u1").shape
    wrong: list[Any] = [-1, 1 << 64, (0, 1 << 64), (1 << 32, 1 << 32), 1.5, "1", "", b"1", None, (2, None), (2, "1")]
    for shape in wrong:
        with pytest.raises(hw.OptionError, match=re.escape(f"`shape={shape!r}`")):
            hw.pinned_empty(shape)
    bad: list[Any] = [-1, 1 << 64, "0"]
    for gpu in bad:
        with pytest.raises(hw.OptionError, match=f"`gpu={gpu!r}`"):
            hw.pinned_empty(4, gpu=gpu)


def test_objects_of_python_are_never_copied(driver: Driver) -> None:
    nested = np.dtype([("time", "M8[s]"), ("inner", [("O", "i4"), ("what", "O", (2,))])])
    plain = np.dtype([("O", "i4"), ("of", "i4")])
    arrays: list[Any] = [
        np.array([1, "two", None], object),
        np.zeros(3, [("number", "i8"), ("what", "O")]),
        np.zeros(3, nested),
        np.zeros(3, [("O", "i4"), ("inner", [("number", "i4"), ("what", "O")])]),
        memoryview(cast("Any", np.array([1, 2, 3], object))),
        (ctypes.py_object * 3)(*cast("Any", (1, 2, 3))),
    ]
    for array_of_objects in arrays:
        gpu = Array(driver, (3,), np.uint64)
        for dst, src, word in [(gpu, array_of_objects, "src"), (array_of_objects, gpu, "dst")]:
            with pytest.raises(hw.ArrayError, match=f"`{word}` has objects of Python") as refused:
                hw.copy(dst, src)
            assert refused.value.argument == word and refused.value.help
            with pytest.raises(hw.ArrayError, match="objects of Python"):
                hw.explain(dst, src)
    numbers = np.array([(1, 2), (3, 4)], plain)
    gpu = Array(driver, (2,), np.uint64)
    hw.copy(gpu, numbers)
    assert gpu.content().tobytes() == numbers.tobytes()


def test_an_explanation_says_what_the_copy_will_do(driver: Driver) -> None:
    gpu, host = Array(driver, (1 << 20,), np.uint8), data(1 << 20)
    explained = hw.explain(gpu, host, machine="h200-x1")
    # Some copies try a method that nobody has tried yet.
    agree = sum(hw.explain(gpu, host, machine="h200-x1").method == hw.copy(gpu, host).method for _ in range(20))
    assert explained.machine == "h200-x1" and agree > 10
    assert explained.methods[0].verdict == "chosen" and explained.methods[1].verdict.startswith("rejected: ")
    assert {"cpus", "pinned"} <= explained.methods[0].price.keys()
    assert explained.basis and str(explained).startswith(f"method   {explained.method}")
    assert hw.explain(gpu, hw.pinned_empty(1 << 20, np.uint8)).method == "dma"
    with pytest.raises(hw.ArrayError):
        hw.explain(gpu, host[:5])
    with pytest.raises(hw.NotFound):
        hw.explain(gpu, host, machine="nowhere")


def test_copies_go_to_logging(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    gpu = Array(driver, (1 << 20,), np.uint8)
    with caplog.at_level(logging.DEBUG, logger="headway.copy"):
        hw.copy(gpu, bytes(1 << 20))
        hw.copy(gpu, bytes(1 << 20), stream=0).wait()
    texts = [record.getMessage() for record in caplog.records if record.name == "headway.copy"]
    assert texts[0].startswith("copied 1048576 bytes by ") and any("queued" in text or "copied" in text for text in texts[1:])


def run(library: Path | str, code: str) -> str:
    """What a program prints that uses the driver library."""
    start = "import sys; from pathlib import Path; import headway as hw, numpy as np\nfrom fake_gpu import Array, Driver\n"
    # Python 3.12 warns of forks.
    warnings = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}
    environment = {**os.environ, **warnings, "HEADWAY_LIBCUDA": str(library), "HEADWAY_CACHE": "off"}
    make = f"driver = Driver(Path({str(library)!r}))\n" if isinstance(library, Path) else ""
    command = [sys.executable, "-c", start + make + code]
    # The folder of the tests, and not that of the package's sources.
    folder = Path(__file__).parent
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def test_a_program_may_end_while_copies_are_under_way(library: Path) -> None:
    code = """
import threading, time
stream = driver.stream()
driver._library.headway_fake_hold(1)
kept = [hw.copy(Array(driver, (1 << 20,), np.uint8), bytes(1 << 20), stream=stream) for _ in range(4)]
hw.copy(np.zeros(1 << 20, np.uint8), Array(driver, (1 << 20,), np.uint8), stream=stream)
threading.Thread(target=lambda: (time.sleep(0.3), driver._library.headway_fake_hold(0))).start()
print("ends")
"""
    assert run(library, code) == "ends\n"


def test_a_program_may_end_while_a_thread_tells_of_a_copy(library: Path) -> None:
    code = """
import threading, time
def then(error):
    begun.set()
    for _ in range(200):
        # Gives up the interpreter's lock, and takes it again.
        time.sleep(0.001)
    print("told")
begun = threading.Event()
gpu = Array(driver, (1 << 20,), np.uint8)
with driver.held():
    ticket = hw.copy(gpu, bytes(1 << 20), stream=driver.stream())
    ticket._when_done(then)
    print("ends")
begun.wait()
"""
    assert run(library, code) == "ends\ntold\n"


def test_a_program_may_end_while_daemon_threads_ask_for_arrays(library: Path) -> None:
    code = """
import threading, time
class Slow:
    # Runs Python, as the protocols of packages do.
    def __init__(self):
        self.array = Array(driver, (1 << 12,), np.uint8, protocol="interface")
    @property
    def __cuda_array_interface__(self):
        asked.set()
        time.sleep(0.01)
        return self.array.__cuda_array_interface__
class Kept(bytearray):
    def __del__(self):
        time.sleep(0.01)
def work(stream):
    gpu = Slow()
    while True:
        ticket = hw.copy(gpu, Kept(1 << 12), stream=stream)
        ticket.wait()
asked, stream = threading.Event(), driver.stream()
for own in [None, None, stream, stream]:
    threading.Thread(target=work, args=(own,), daemon=True).start()
asked.wait()
time.sleep(0.05)
print("ends")
"""
    assert run(library, code) == "ends\n"


def test_arrays_that_copy_when_they_go_find_the_places_of_copies_that_have_ended(library: Path) -> None:
    code = """
import time, weakref
class Going(np.ndarray):
    pass
def gone(reference):
    hw.copy(gpu, bytes(1000), stream=stream)
    told.append(time.monotonic())
gpu, stream, told, references = Array(driver, (1000,), np.uint8), driver.stream(), [], []
with driver.held():
    for _ in range(256):
        array = np.zeros(1000, np.uint8).view(Going)
        references.append(weakref.ref(array, gone))
        hw.copy(gpu, array, stream=stream)
        del array
end = time.monotonic() + 200
while len(told) < 256 and time.monotonic() < end:
    time.sleep(0.01)
print(len(told))
"""
    assert run(library, code) == "256\n"


def test_every_copy_waits_for_a_place_among_those_under_way(library: Path) -> None:
    code = """
import threading
gpu, stream = Array(driver, (1000,), np.uint8), driver.stream()
driver._library.headway_fake_hold(1)
tickets = [hw.copy(gpu, bytes(1000), stream=stream) for _ in range(256)]
threading.Timer(0.3, driver._library.headway_fake_hold, [0]).start()
hw.copy(gpu, bytes(1000))
print("copied")
"""
    assert run(library, code) == "copied\n"


def test_a_child_that_was_forked_while_a_gpu_was_opened_waits_for_nobody(library: Path) -> None:
    code = """
import os, signal, threading
gpu = Array(driver, (1000,), np.uint8)
thread = threading.Thread(target=hw.copy, args=(gpu, bytes(1000)))
thread.start()
if os.fork() == 0:
    signal.alarm(60)
    try:
        hw.copy(gpu, bytes(1000))
    except hw.HeadwayError:
        pass
    os._exit(0)
print(os.wait()[1])
thread.join()
"""
    assert run(library, code) == "0\n"


def test_errors_are_the_same_late_in_the_end_of_the_interpreter(library: Path) -> None:
    code = """
import os
class Owner:
    def __init__(self):
        self.ticket = hw.copy(Array(driver, (1000,), np.uint8), bytes(1000), stream=driver.stream())
        self.ticket.wait()
    def __del__(self, copy=hw.copy, write=os.write):
        self.ticket.wait(5)
        self.ticket.wait("5 s")
        try:
            copy(b"123", b"123")
        except Exception as error:
            write(1, type(error).__name__.encode())
import builtins
builtins.owner = Owner()
"""
    assert run(library, code) == "ArrayError"


def test_a_wait_at_the_end_can_be_interrupted(library: Path) -> None:
    code = """
import atexit, os, signal, threading
atexit.register(lambda: print("others end, too"))
driver._library.headway_fake_hold(1)
ticket = hw.copy(Array(driver, (1000,), np.uint8), bytes(1000), stream=driver.stream())
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    hw._native.finish_copies()
except KeyboardInterrupt:
    print("interrupted")
driver._library.headway_fake_hold(0)
"""
    assert run(library, code) == "interrupted\nothers end, too\n"


@pytest.mark.parametrize("kept", ["flows and copiers", "pinned memory"])
def test_a_program_ends_although_the_driver_waits_for_a_stream(library: Path, kept: str) -> None:
    opened = """
gpu = Array(driver, (2 << 20,), np.uint8)
hw.copy(gpu, bytes(2 << 20), stream=stream).wait()
flow = hw.machine("h200-x1").flow("camera", dst=gpu, src=hw.pinned_empty(2 << 20, np.uint8), period="1 s", deadline="1 s")
# Nor does the program free its memory.
fake_gpu.Memory.__del__ = lambda memory: None
"""
    everything = kept == "flows and copiers"
    code = f"""
import ctypes, fake_gpu
stream, flag = driver.stream(), hw.pinned_empty(8, np.uint8)
{opened if everything else ""}
# Nothing comes that this stream waits for; the driver lets no call in before, or none that frees memory.
driver.call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream), ctypes.c_uint64(flag.ctypes.data), 1, 0)
driver._library.headway_fake_keep_out({1 if everything else 2})
print("ends")
"""
    assert run(library, code) == "ends\n"


def test_first_copies_say_nothing_on_standard_error(library: Path) -> None:
    code = """
for size in (100, 8 << 20, 8 << 20):
    hw.copy(Array(driver, (size,), np.uint8), bytes(size))
print("copied")
"""
    assert run(library, code) == "copied\n"


def test_a_subinterpreter_is_refused(library: Path) -> None:
    pytest.importorskip("_xxsubinterpreters")
    code = """
import _xxsubinterpreters as interpreters
own = interpreters.create()
try:
    interpreters.run_string(own, "import headway")
except interpreters.RunFailedError as error:
    print("subinterpreter" in str(error))
"""
    assert run(library, code) == "True\n"


def test_threads_and_children_copy_also_behind_the_end_of_copies(library: Path) -> None:
    code = """
import os, signal, threading
gpu, stream = Array(driver, (1000,), np.uint8), driver.stream()
ended, lock = threading.Event(), threading.Lock()
def work():
    # As a thread that others wait for, and that has a lock that they need.
    ended.wait()
    with lock:
        hw.copy(gpu, bytes(1000))
        print(hw.copy(gpu, bytes(1000), stream=stream).wait())
thread = threading.Thread(target=work, daemon=True)
thread.start()
hw._native.finish_copies()
ended.set()
thread.join()
with lock:
    if os.fork() == 0:
        signal.alarm(60)
        try:
            hw.copy(b"1", b"1")
        except hw.ArrayError:
            os._exit(0)
    print(os.wait()[1])
"""
    assert run(library, code) == "None\n0\n"


def test_an_array_that_awaits_a_copy_when_it_goes_ends(library: Path) -> None:
    code = """
import asyncio, threading
class Going(bytearray):
    def __del__(self):
        async def wait():
            return await hw.copy(gpu, bytes(1000), stream=stream)
        told.append(asyncio.run(wait()).done)
        gone.set()
gpu, stream, told, gone = Array(driver, (1000,), np.uint8), driver.stream(), [], threading.Event()
with driver.held():
    hw.copy(gpu, Going(1000), stream=stream)
print(gone.wait(60), told)
"""
    assert run(library, code) == "True [True]\n"


def test_a_copy_is_awaited_also_behind_the_end_of_copies(library: Path) -> None:
    code = """
import asyncio
# Handlers run in the opposite order: as one that was registered before the package was imported.
hw._native.finish_copies()
gpu, stream = Array(driver, (1 << 20,), np.uint8), driver.stream()
async def main():
    with driver.held():
        ticket = hw.copy(gpu, bytes(1 << 20), stream=stream)
        waits = asyncio.ensure_future(wait(ticket))
        await asyncio.sleep(0)
    print(await asyncio.wait_for(waits, 60) is ticket)
async def wait(ticket):
    return await ticket
asyncio.run(main())
"""
    assert run(library, code) == "True\n"


def test_a_gpu_that_fails_is_an_error_of_its_copies(library: Path) -> None:
    code = """
gpu, stream = Array(driver, (1 << 20,), np.uint8), driver.stream()
driver._library.headway_fake_hold(1)
ticket = hw.copy(gpu, bytes(1 << 20), stream=stream)
driver.fail("any", 700, 0)
driver._library.headway_fake_hold(0)
for copy in (lambda: ticket.wait(), lambda: ticket.done, lambda: hw.copy(gpu, bytes(1 << 20)), lambda: hw.copy(gpu, bytes(1 << 20), stream=stream)):
    try:
        copy()
    except hw.CopyError as error:
        print(type(error).__name__)
"""
    assert run(library, code).split() == ["CopyError"] * 4


def test_an_event_loop_hears_of_a_gpu_that_fails(library: Path) -> None:
    code = """
import asyncio
async def main():
    gpu, stream = Array(driver, (1 << 20,), np.uint8), driver.stream()
    driver._library.headway_fake_hold(1)
    ticket = hw.copy(gpu, bytes(1 << 20), stream=stream)
    asyncio.get_running_loop().call_later(0.2, driver.fail, "any", 700, 0)
    try:
        await asyncio.wait_for(asyncio.ensure_future(wait(ticket)), 30)
    except hw.CopyError as error:
        print(type(error).__name__)
    driver._library.headway_fake_hold(0)
async def wait(ticket):
    await ticket
asyncio.run(main())
"""
    assert run(library, code) == "CopyError\n"


def test_a_forked_child_is_told_so(library: Path) -> None:
    code = """
import os
gpu = Array(driver, (1 << 20,), np.uint8)
with driver.held():
    ticket = hw.copy(gpu, bytes(1 << 20), stream=driver.stream())
    if os.fork() == 0:
        told = []
        for use in (ticket.wait, lambda: ticket.done, lambda: hw.copy(gpu, bytes(1 << 20))):
            try:
                use()
            except hw.HeadwayError as error:
                told.append("fork" in str(error))
        # As a child of `multiprocessing` ends that ends by itself: with what it runs at exit.
        import atexit
        atexit._run_exitfuncs()
        os._exit(0 if told == [True] * 3 else 1)
    print(os.wait()[1])
ticket.wait()
print(ticket.done)
"""
    assert run(library, code) == "0\nTrue\n"


def test_without_a_driver_the_error_has_the_remedy() -> None:
    code = """
class Nowhere:
    __cuda_array_interface__ = {"version": 3, "shape": (4,), "typestr": "|u1", "data": (4096, False)}
for use in (lambda: hw.copy(Nowhere(), bytes(4)), lambda: hw.explain(Nowhere(), bytes(4)), lambda: hw.pinned_empty(4)):
    try:
        use()
    except hw.GpuError as error:
        print(error.kind, "/nowhere" in str(error), "install the NVIDIA driver" in str(error))
"""
    assert run("/nowhere/libcuda.so.1", code) == "backend True True\n" * 3
