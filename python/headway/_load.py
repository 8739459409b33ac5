"""Loads of safetensors files into tensors of PyTorch that own their memory."""

# PyTorch need not be installed where types are checked: then `import torch` leads to `headway/torch.py`.
# pyright: basic, reportAttributeAccessIssue=false, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

from headway import _native
from headway._errors import CopyTimeout, GpuError, NotFound, OptionError
from headway._safetensors import SafetensorsFile, TensorEntry, open_all

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("headway.load")

_THREADS = 8
_SLOT_BYTES = 2 << 20
# What a thread reads at once into host memory.
_READ_BYTES = 16 << 20
# From this size on PyTorch's allocator cuts a block from a larger one.
_LARGE_BYTES = 1 << 20
# Between two looks at how far a load is.
_LOOK_S = 0.1
# Tensors that a GPU may still write, since it did not end in time.
_kept: list[object] = []

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}

Progress = Callable[[int, int], object]


def load_safetensors(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    device: str | int | torch.device | Mapping[str, Any] | Callable[[str], Any] = "cuda",
    names: Iterable[str] | None = None,
    threads: int | None = None,
    progress: bool | Progress = False,
) -> dict[str, torch.Tensor]:
    """Loads tensors of safetensors files to GPUs, or to host memory. Each tensor owns its memory, from PyTorch's allocator.

    Threads read the files in parts of 2 MiB into page-locked memory, 32 MiB for each GPU, from where the GPU fetches them. What the page
    cache has is read from there; the rest is read from the disk past that cache. Other copies of the program stay short meanwhile, as
    Headway's copies leave them room. The load waits for what the current stream of each GPU was given, and the bytes are there for every
    stream when it returns. Other threads of Python run meanwhile, and Ctrl-C ends it.

    Args:
        paths: One file or several, with different tensors.
        device: Where to: what PyTorch takes, a table from a tensor's name to that, or a function from a name to that. Several GPUs are loaded
            at the same time.
        names: Only these tensors; `None` = all.
        threads: Threads for each GPU, or for host memory; `None` = 8, and together no more than there are CPUs.
        progress: `True` draws a bar on a terminal; a function is called with the bytes that are on their way and all of them, ten times a
            second and at the end.

    Returns:
        The tensors by their names, in the order of the files.

    Raises:
        NotFound: There is no such file, or no tensor of a name in `names`.
        FileError: A file is damaged, was changed meanwhile, or has a tensor that another one has, too.
        OptionError: `device` has no place for a tensor, or PyTorch has no such type.
        GpuError: There is no driver, or no GPU.
        CopyError: The GPU, or its driver.
        ModuleNotFoundError: PyTorch is not installed.
    """
    torch = _torch()
    files = open_all(paths)
    try:
        wanted = None if names is None else set(names)
        found = [(number, entry) for number, file in enumerate(files) for entry in file.tensors]
        if wanted is not None:
            absent = wanted - {entry.name for _, entry in found}
            if absent:
                shown = ", ".join(f"`{name}`" for name in sorted(absent)[:5])
                raise NotFound(f"no file has a tensor {shown}", kind="file", help="`names` are names as the files have them")
            found = [(number, entry) for number, entry in found if entry.name in wanted]
        groups: dict[Any, _Group] = {}
        for number, entry in found:
            place = _device(torch, device, entry.name)
            groups.setdefault(place, _Group(place)).parts.append((number, entry, _dtype(torch, files[number], entry)))
        _load(torch, files, list(groups.values()), threads, progress)
        loaded = {name: tensor for group in groups.values() for name, tensor in group.tensors.items()}
        return {entry.name: loaded[entry.name] for _, entry in found}
    finally:
        for file in files:
            file.close()


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        text = "PyTorch is not installed, and `load_safetensors` makes its tensors; `pip install torch`"
        raise ModuleNotFoundError(text, name="torch") from error
    return torch


def _device(torch: Any, device: Any, name: str) -> Any:
    if isinstance(device, Mapping):
        if name not in device:
            raise OptionError(f"`device` has no place for tensor `{name}`", help="add it, or name the tensors that you want in `names`")
        device = device[name]
    elif callable(device):
        device = device(name)
    place = place_of(torch, device)
    if place.type == "cuda" and place.index is None:
        try:
            return torch.device("cuda", torch.cuda.current_device())
        except (RuntimeError, AssertionError) as error:
            help = '`headway doctor` says what is missing; `device="cpu"` loads to host memory'
            raise GpuError(f"PyTorch finds no GPU: {error}", kind="backend", help=help) from error
    return place


def place_of(torch: Any, device: Any) -> Any:
    """A device of PyTorch that tensors can be loaded to. CUDA is not started for that.

    Raises:
        OptionError: It is neither a GPU nor host memory.
    """
    try:
        place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"`device={device!r}` is no device of PyTorch: {error}", help='give "cuda", "cuda:1" or "cpu"') from error
    if place.type not in ("cuda", "cpu"):
        raise OptionError(f"`device={device!r}` is neither a CUDA GPU nor host memory", help='give "cuda", "cuda:1" or "cpu"')
    return place


def _dtype(torch: Any, file: SafetensorsFile, entry: TensorEntry) -> Any:
    dtype = getattr(torch, _DTYPES.get(entry.dtype, ""), None)
    if dtype is None:
        text = f"has elements of {entry.dtype}, for which this PyTorch ({torch.__version__}) has no type"
        raise OptionError(str(file.wrong(text, "load the others by `names`, or use a later PyTorch", entry.name)))
    return dtype


@dataclass
class _Group:
    """What goes to one device."""

    device: Any
    parts: list[tuple[int, TensorEntry, Any]] = field(default_factory=lambda: [])
    tensors: dict[str, Any] = field(default_factory=lambda: {})

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for _, entry, _ in self.parts)


class _HostLoad:
    """Parts of files that are read into host memory. It has the methods of `_native.FileLoad`."""

    def __init__(self, files: list[SafetensorsFile], parts: list[tuple[int, int, memoryview]], threads: int) -> None:
        self._files, self._parts, self._threads = files, parts, threads
        self._stopped = False
        self._lock = threading.Lock()
        self.moved_bytes = 0

    def stop(self) -> None:
        self._stopped = True

    def run(self) -> tuple[int, int] | None:
        pieces = [
            (number, start + at, to[at : at + _READ_BYTES]) for number, start, to in self._parts for at in range(0, len(to), _READ_BYTES)
        ]
        with ThreadPoolExecutor(max(1, min(self._threads, len(pieces))), thread_name_prefix="headway-load") as pool:
            done = [pool.submit(self._read, *piece) for piece in pieces]
            wait(done, return_when=FIRST_EXCEPTION)
            failed = next((future for future in done if future.done() and future.exception()), None)
            if failed is not None:
                self._stopped = True
        if failed is not None:
            failed.result()
        if self._stopped:
            return None
        return (self.moved_bytes, 0)

    def _read(self, number: int, at: int, to: memoryview) -> None:
        file, done = self._files[number], 0
        while done < len(to) and not self._stopped:
            read = os.preadv(file.fd, [to[done:]], at + done)
            if read == 0:
                raise file.wrong("became shorter while it was read", "write it again, and load it then")
            done += read
        with self._lock:
            self.moved_bytes += done


def _load(torch: Any, files: list[SafetensorsFile], groups: list[_Group], threads: int | None, progress: bool | Progress) -> None:
    if threads is None:
        cpus = len(os.sched_getaffinity(0))
        threads = max(1, min(_THREADS, cpus // max(1, len(groups))))
    if not isinstance(threads, Integral) or threads < 1:
        raise OptionError(f"`threads={threads!r}` is no number of threads; give 1 or more")
    begun = time.perf_counter()
    loads = [_prepare(torch, files, group, threads) for group in groups]
    total = sum(group.nbytes for group in groups)
    shown = _Bar() if progress is True else progress if callable(progress) else None
    read = run_all(loads, (lambda moved: shown(moved, total)) if shown else None, [group.tensors for group in groups])
    for file in files:
        file.check_unchanged()
    if isinstance(shown, _Bar):
        shown.end()
    if _log.isEnabledFor(logging.DEBUG):
        took = time.perf_counter() - begun
        cached, direct = (sum(counts) for counts in zip((0, 0), *read, strict=True))
        _log.debug("loaded %d bytes in %.0f ms: %d from the page cache, %d from disks", total, took * 1e3, cached, direct)


def _prepare(torch: Any, files: list[SafetensorsFile], group: _Group, threads: int) -> _native.FileLoad | _HostLoad:
    """Allocates the tensors of a group, and says what is read into them."""
    on_gpu = group.device.type == "cuda"
    if on_gpu:
        _reserve(torch, group)
    for _, entry, dtype in group.parts:
        group.tensors[entry.name] = torch.empty(entry.shape, dtype=dtype, device=group.device)
    if not on_gpu:
        host = [(number, entry.start, _bytes_of(torch, group.tensors[entry.name])) for number, entry, _ in group.parts if entry.nbytes]
        return _HostLoad(files, host, threads)
    # The memory may have been another tensor's, which queued work still uses.
    ready = torch.cuda.Event()
    ready.record(torch.cuda.current_stream(group.device))
    ready.synchronize()
    # Only files of which this GPU gets something.
    used = {number: at for at, number in enumerate(dict.fromkeys(number for number, _, _ in group.parts))}
    parts = [(used[number], entry.start, group.tensors[entry.name].data_ptr(), entry.nbytes) for number, entry, _ in group.parts]
    opened = [(files[number].path, files[number].fd) for number in used]
    return _native.FileLoad(group.device.index, opened, parts, threads, _SLOT_BYTES)


def _reserve(torch: Any, group: _Group) -> None:
    """Has PyTorch's allocator get the memory of all large tensors from the driver at once, which takes less than one after the other."""
    sizes = [math.ceil(entry.nbytes / 512) * 512 for _, entry, _ in group.parts if entry.nbytes > _LARGE_BYTES]
    if len(sizes) < 2:
        return
    free = torch.cuda.memory_reserved(group.device) - torch.cuda.memory_allocated(group.device)
    if free >= sum(sizes):
        return
    try:
        torch.empty(sum(sizes), dtype=torch.uint8, device=group.device)
    except torch.cuda.OutOfMemoryError:
        # In parts it may fit.
        return


def _bytes_of(torch: Any, tensor: Any) -> memoryview:
    """The bytes of a tensor in host memory."""
    import ctypes

    memory = (ctypes.c_uint8 * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B")


def run_all(
    loads: list[Any], moved: Callable[[int], object] | None = None, keep: Iterable[object] = ()
) -> list[tuple[int, int]]:
    """Runs loads at the same time, and returns what each says. If one fails, the others end, and the first error is raised."""
    with ThreadPoolExecutor(max(1, len(loads)), thread_name_prefix="headway-loads") as pool:
        running: list[Future[tuple[int, int] | None]] = [pool.submit(load.run) for load in loads]
        try:
            for _ in _until_ended(running):
                if moved:
                    moved(sum(load.moved_bytes for load in loads))
            results = [future.result() for future in running]
        except BaseException as error:
            for load in loads:
                load.stop()
            # Also if another Ctrl-C ends the wait, since the loads go on.
            kept = list(keep)
            _kept.append(kept)
            wait(running)
            if not any(isinstance(future.exception(), CopyTimeout) for future in running) and not isinstance(error, CopyTimeout):
                _kept[:] = [one for one in _kept if one is not kept]
            raise
    if moved:
        moved(sum(load.moved_bytes for load in loads))
    # One is stopped only where another one has failed.
    return [result for result in results if result is not None]


def _until_ended(running: list[Future[Any]]) -> Iterator[None]:
    """Yields from time to time, until all have ended or one has failed, whose error is raised."""
    while True:
        done, left = wait(running, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        if not left:
            return
        yield


class _Bar:
    """A bar on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._shows = sys.stderr.isatty()
        self._drawn = False

    def __call__(self, moved: int, total: int) -> None:
        if not self._shows or total == 0:
            return
        width, took = 30, time.perf_counter() - self._begun
        full = width * moved // total
        rate = moved / took / 1e9 if took > 0 else 0.0
        text = f"\rloading [{'#' * full}{' ' * (width - full)}] {moved / 1e9:.1f} of {total / 1e9:.1f} GB, {rate:.1f} GB/s"
        print(text, end="", file=sys.stderr, flush=True)
        self._drawn = True

    def end(self) -> None:
        if self._drawn:
            print(file=sys.stderr)
