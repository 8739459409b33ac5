"""Copies of arrays between host and GPU memory."""

from __future__ import annotations

import atexit
import json
import logging
import math
import operator
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from headway import _native
from headway._errors import OptionError
from headway._machine import Machine
from headway._units import path_text

if TYPE_CHECKING:
    import numpy
    from numpy.typing import DTypeLike

_log = logging.getLogger("headway.copy")

# Arrays of copies that have not ended outlive neither the process nor, in a child, their parent's threads.
atexit.register(_native.finish_copies)
os.register_at_fork(after_in_child=_native.leave_copies)


def copy(dst: object, src: object, *, stream: object = None) -> _native.Ticket:
    """Copies all elements of `src` to `dst`. One of them is in a GPU's memory, and the other in host memory.

    Without `stream`, the bytes are there when this returns; the copy begins behind the work of the stream that the GPU array's package uses
    now, where it tells, else behind that of the legacy default stream. With `stream`, this returns at once: the copy begins behind all that
    the stream was given, and what the stream is given later begins behind the copy. The copy is made in the GPU's primary context, as
    those of PyTorch, CuPy, JAX and Numba are.

    Until the ticket is done nobody may write `src`, or use `dst`, but in the order of the stream. Both are kept until then, also if the
    ticket is dropped. Other threads of Python run meanwhile.

    Args:
        dst: Where to: an array that can be written.
        src: From where: an array of the same shape, with elements of the same kind and size. Unsigned integers stand for bits of any kind.
        stream: A stream of PyTorch, CuPy, Numba or cuda.core, anything with `__cuda_stream__`, or the driver's handle as a number: 0 or 1
            is the legacy default stream, 2 the calling thread's.

    Arrays come by DLPack, the CUDA array interface, the buffer protocol or NumPy's array interface, and lie in rows without gaps.

    Raises:
        ArrayError: One of them cannot be copied as it is, or they do not fit: shape, type, strides, a target that is read-only.
        OptionError: `stream` is no stream.
        GpuError: There is no driver, or no GPU.
        CopyTimeout: A copy without a stream did not end within a minute. It goes on, and both arrays are kept for ever. A GPU that does not end
            copies that threads make keeps the call for up to ten minutes more, and then ends the process: it could write memory of others.
        CopyError: It was refused, as in a stream that is being captured, or it failed.
    """
    return _told(_native.copy(dst, src, stream, False))


def copy_bulk(dst: object, src: object, stream: object) -> _native.Ticket:
    """The same in a stream, with short turns: small copies of other streams wait less, and this one takes up to a fifth longer."""
    return _told(_native.copy(dst, src, stream, True))


def _told(ticket: _native.Ticket) -> _native.Ticket:
    if _log.isEnabledFor(logging.DEBUG):
        if ticket.done:
            _log.debug("copied %d bytes by %s in %d ns", ticket.nbytes, ticket.method, ticket.took_ns)
        else:
            _log.debug("queued a copy of %d bytes by %s", ticket.nbytes, ticket.method)
    return ticket


@dataclass(frozen=True)
class CopyMethod:
    """A method with what it would cost.

    Attributes:
        method: Its name, as `headway explain` has it.
        via: Its form, or an empty text.
        median_ns: Median of what such a copy takes, or `None` where it was not measured.
        p99_ns: The same for the slowest of a hundred.
        verdict: `"chosen"`, or `"rejected: "` and the reason.
        price: What it keeps busy, such as `cpus` and `pinned_bytes`, as in the JSON of `headway explain`.
    """

    method: str
    via: str
    median_ns: int | None
    p99_ns: int | None
    verdict: str
    price: dict[str, Any]


@dataclass(frozen=True)
class Explanation:
    """How a copy would be made, and what the methods cost. As a text it is for people.

    Attributes:
        method: How `copy` without a stream would make it now.
        threads: Threads that would help.
        basis: What that choice is based on: built-in figures of such computers, and what copies have taught.
        machine: Name of the machine file that the figures below are of.
        profile: Where these figures are from.
        question: What was asked of it.
        methods: Every method on that machine, the one with the least median first.
        why: What decided there.
    """

    method: str
    threads: int
    basis: str
    machine: str
    profile: str
    question: str
    methods: list[CopyMethod]
    why: list[str]

    @property
    def predicted_ns(self) -> int | None:
        """Nanoseconds that `method` would take by the machine file; `None` where it says nothing of it."""
        return next((found.median_ns for found in self.methods if found.method == self.method), None)

    def __str__(self) -> str:
        by = f"{self.method}, {self.threads} threads" if self.threads else self.method
        lines = [f"method   {by}: {self.basis}", f"figures  {self.question}, on {self.machine} ({self.profile})"]
        for found in self.methods:
            median = "not measured" if found.median_ns is None else f"{found.median_ns / 1e3:.1f} us"
            lines.append(f"  {' '.join([found.method, found.via]).strip():<16} {median:>14}  {found.verdict}")
        return "\n".join([*lines, *self.why])


def explain(dst: object, src: object, *, machine: Machine | str | os.PathLike[str] | None = None) -> Explanation:
    """How `copy(dst, src)` would be made, and why not by other methods. Nothing is copied.

    Args:
        dst: As for `copy`.
        src: As for `copy`.
        machine: Whose figures are shown: a shipped name or a file; `None` = `machine.toml` in the current folder, which `headway measure`
            writes, else `h200-x1`.

    Raises:
        ArrayError: The two cannot be copied.
        GpuError: There is no driver, or no GPU.
        NotFound: There is no such machine.
    """
    if machine is None:
        file = _native.node_file()
        machine = file if os.path.exists(file) else "h200-x1"
    name = machine.name if isinstance(machine, Machine) else path_text(machine, "machine")
    method, threads, basis, found = _native.explain_copy(dst, src, name)
    explained = json.loads(found)
    return Explanation(
        method=method,
        threads=threads,
        basis=basis,
        machine=explained["machine"],
        profile=explained["profile"],
        question=explained["question"],
        methods=[_method(row) for row in explained["rows"]],
        why=explained["why"],
    )


def _method(row: dict[str, Any]) -> CopyMethod:
    known = ("method", "via", "median", "p99", "verdict")
    price = {key: value for key, value in row.items() if key not in known}
    return CopyMethod(row["method"], row["via"], row["median"], row["p99"], row["verdict"], price)


def pinned_empty(shape: SupportsIndex | Iterable[SupportsIndex], dtype: DTypeLike = float, *, gpu: int | None = None) -> numpy.ndarray[Any, Any]:
    """A NumPy array in page-locked memory, zeroed: copies of it to and from GPUs need no threads, and go at the speed of the link.

    The memory is given back when the array and all views of it are gone; it is used again for the next such array before more is locked.
    Locking takes about a second for 4 GiB. It is done for GPU number `gpu`, on whose side of the computer the memory lies, and all GPUs can
    use it.

    Args:
        shape: Number of elements along each index.
        dtype: What NumPy takes; no objects.
        gpu: The driver's number; `None` = the GPU that was used first.

    Raises:
        OptionError: The type has objects, the shape is none, or no memory has so many bytes.
        GpuError: There is no driver, or no GPU.
        CopyError: So much memory cannot be locked.
        ModuleNotFoundError: NumPy is not installed.
    """
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("NumPy is not installed, and `pinned_empty` makes its arrays; `pip install numpy`", name="numpy") from error
    kind = numpy.dtype(dtype)
    sizes = _sizes(shape)
    if kind.hasobject:
        raise OptionError(f"`dtype={kind}` has objects of Python, which no GPU reads; give a type of numbers")
    _check_gpu(gpu)
    count = math.prod(sizes)
    if max(count * kind.itemsize, *sizes, 0) > sys.maxsize:
        raise OptionError(f"`shape={shape!r}` of `{kind}` has more bytes than any memory; give a smaller shape")
    if count * kind.itemsize == 0:
        return numpy.empty(sizes, kind)
    memory = _native.PinnedMemory(count * kind.itemsize, gpu)
    return numpy.asarray(memory).view(kind).reshape(sizes)


def _check_gpu(gpu: object) -> None:
    if gpu is not None and not (isinstance(gpu, int) and 0 <= gpu < 1 << 31):
        raise OptionError(f"`gpu={gpu!r}` is no number of a GPU; they count from 0")


def _sizes(shape: SupportsIndex | Iterable[SupportsIndex]) -> tuple[int, ...]:
    """The shape as NumPy takes it: one whole number of any kind, or several."""
    try:
        if isinstance(shape, Iterable) and not isinstance(shape, str | bytes):
            sizes = tuple(operator.index(size) for size in shape)
        else:
            sizes = (operator.index(cast("SupportsIndex", shape)),)
    except TypeError as error:
        raise OptionError(f"`shape={shape!r}` is no whole number and not several; write a shape such as `4` or `(2, 3)`") from error
    if any(size < 0 for size in sizes):
        raise OptionError(f"`shape={shape!r}` has a size below zero; sizes are 0 or more")
    return sizes
