"""Arrays on GPUs of the driver library that has no GPU behind it, with the protocols that packages have.

The driver is that of the tests of `headway-cuda`. Its memory is host memory, so that a test can look at what arrived, and its streams are
threads.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SOURCE = Path(__file__).resolve().parents[2] / "crates/headway-cuda/tests/fake/fake.c"
Bytes = npt.NDArray[np.uint8]


def build(folder: Path) -> Path | None:
    """The driver library, built in `folder`; `None` without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "libfake.so"
    flags = ["-shared", "-fPIC", "-O2", "-pthread", "-DSTREAMS"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True)
    return library


class Driver:
    """The driver of this process, and GPU 0 of it.

    `is_used`: this process has one, and finds no real GPU.
    """

    is_used = False

    def __init__(self, library: Path) -> None:
        Driver.is_used = True
        self.path = library
        os.environ["HEADWAY_LIBCUDA"] = str(library)
        self._library = ctypes.CDLL(str(library))
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self.use()

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def use(self) -> None:
        """Makes the GPU's context the calling thread's."""
        self.call("cuCtxSetCurrent", self._context)

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        self.use()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        return address.value

    def free(self, address: int) -> None:
        self._library.cuCtxSetCurrent(self._context)
        self._library.cuMemFree_v2(ctypes.c_uint64(address))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        assert stream.value is not None
        return stream.value

    @contextmanager
    def held(self) -> Generator[None]:
        """Within it no copy of a stream ends."""
        self._library.headway_fake_hold(1)
        try:
            yield
        finally:
            self._library.headway_fake_hold(0)

    @contextmanager
    def capturing(self) -> Generator[None]:
        self._library.headway_fake_capture(1)
        try:
            yield
        finally:
            self._library.headway_fake_capture(0)

    def fail(self, call: str, code: int, at: int) -> None:
        """From the `at`-th such call on every call fails; this cannot be undone."""
        self._library.headway_fake_fail(call.encode(), code, at)


class Memory:
    """Memory of a GPU, which is freed with this."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.driver, self.nbytes = driver, nbytes
        self.address = driver.allocate(nbytes)

    def content(self) -> Bytes:
        """What is there."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address)) if self.nbytes else np.zeros(0, np.uint8)

    def __del__(self) -> None:
        self.driver.free(self.address)


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


class Unversioned(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("manager", ctypes.c_void_p), ("deleter", Deleter))


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Array:
    """An array of a GPU. `protocol` is what it has of: `"versioned"`, `"unversioned"`, `"interface"`.

    `exported` counts tensors that were given and not given back, and `asked` has what `__dlpack__` was called with.
    """

    _exports: dict[int, tuple[object, ...]] = {}
    _deleters: list[object] = []

    def __init__(
        self,
        driver: Driver,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        *,
        protocol: str = "versioned",
        strides: tuple[int, ...] | None = None,
        byte_offset: int = 0,
        flags: int = 0,
        major: int = 1,
        device_type: int = 2,
        stream: int | None = None,
    ) -> None:
        self.shape, self.dtype, self.strides = shape, np.dtype(dtype), strides
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self.byte_offset, self.flags, self.major, self.device_type, self.stream = byte_offset, flags, major, device_type, stream
        self.memory = Memory(driver, self.nbytes + byte_offset)
        self.exported = 0
        self.asked: list[dict[str, Any]] = []
        self._protocol = protocol

    def content(self) -> Bytes:
        return self.memory.content()[self.byte_offset :]

    def __getattr__(self, name: str) -> Any:
        protocols: dict[str, tuple[str, Callable[[], Any]]] = {
            "__dlpack__": ("versioned", lambda: self._dlpack),
            "__cuda_array_interface__": ("interface", self._interface),
        }
        if name == "__dlpack_device__" and self._protocol in ("versioned", "unversioned"):
            return lambda: (self.device_type, 0)
        if name == "__dlpack__" and self._protocol == "unversioned":
            return self._old_dlpack
        if name in protocols and protocols[name][0] == self._protocol:
            return protocols[name][1]()
        raise AttributeError(name)

    def _interface(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.memory.address + self.byte_offset, bool(self.flags & 1)),
            "strides": self.strides,
            "stream": self.stream,
        }

    def _dlpack(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: object = None, copy: bool | None = None) -> object:
        self.asked.append({"stream": stream, "max_version": max_version, "copy": copy})
        managed = Versioned(major=self.major, minor=0, flags=self.flags)
        return self._capsule(managed, b"dltensor_versioned")

    def _old_dlpack(self, stream: int | None = None) -> object:
        self.asked.append({"stream": stream})
        return self._capsule(Unversioned(), b"dltensor")

    def _capsule(self, managed: Versioned | Unversioned, name: bytes) -> object:
        tensor = managed.tensor
        shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        tensor.data, tensor.byte_offset = self.memory.address, self.byte_offset
        tensor.device_type, tensor.device_id = self.device_type, 0
        tensor.ndim = len(self.shape)
        tensor.code, tensor.bits, tensor.lanes = CODES[self.dtype.kind], 8 * self.dtype.itemsize, 1
        tensor.shape = shape
        kept: list[object] = [managed, shape, self]
        if self.strides is not None:
            strides = (ctypes.c_int64 * len(self.strides))(*(stride // self.dtype.itemsize for stride in self.strides))
            tensor.strides = strides
            kept.append(strides)

        seen = weakref.ref(self)

        def delete(address: int) -> None:
            lender = seen()
            assert lender is not None
            lender.exported -= 1
            # Once: a second call finds nothing.
            del Array._exports[address]

        deleter = Deleter(delete)
        Array._deleters.append(deleter)
        managed.deleter = deleter
        address = ctypes.addressof(managed)
        Array._exports[address] = tuple(kept)
        self.exported += 1
        return _api.PyCapsule_New(address, name, None)


class _Table(ctypes.Structure):
    """`DLPackExchangeAPI`."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_of", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("tensor_of", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


_Of = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_CurrentStream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class TableArray(Array):
    """An array that also gives itself by DLPack's C table, as those of new PyTorch do.

    `lent` and `managed` count by which of its functions, and `current` is the stream that its package uses now.
    """

    lent = 0
    managed = 0
    current: int | None = None


def _tensor_of(given: TableArray, place: int) -> int:
    managed = Versioned()
    given._capsule(managed, b"dltensor_versioned")  # pyright: ignore[reportPrivateUsage]
    given.exported -= 1
    TableArray.lent += 1
    ctypes.memmove(place, ctypes.addressof(managed.tensor), ctypes.sizeof(DLTensor))
    return 0


def _managed_of(given: TableArray, place: int) -> int:
    managed = Versioned(major=1)
    given._capsule(managed, b"dltensor_versioned")  # pyright: ignore[reportPrivateUsage]
    TableArray.managed += 1
    ctypes.c_void_p.from_address(place).value = ctypes.addressof(managed)
    return 0


def _current_stream(kind: int, gpu: int, place: Any) -> int:
    assert (kind, gpu) == (2, 0)
    place[0] = ctypes.c_void_p(TableArray.current)
    return 0


_functions = (_Of(_managed_of), _Of(_tensor_of), _CurrentStream(_current_stream))
_managed, _lent, _current = (ctypes.cast(function, ctypes.c_void_p).value for function in _functions)
_older = _Table(major=1, managed_of=_managed, tensor_of=_lent, current_stream=_current)
# A table of a version to come, which leads to the one that can be used.
_table = _Table(major=9, older=ctypes.addressof(_older))
# A capsule does not copy its name.
_name = b"dlpack_exchange_api"
setattr(TableArray, "__dlpack_c_exchange_api__", _api.PyCapsule_New(ctypes.addressof(_table), _name, None))
