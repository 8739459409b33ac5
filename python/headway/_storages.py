"""Bytes of PyTorch's tensors between GPUs and page-locked memory, a storage at a time, so that what is tied stays tied."""

# PyTorch need not be installed where types are checked: then `import torch` leads to `headway/torch.py`.
# pyright: basic, reportAttributeAccessIssue=false, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

from headway import _native
from headway._copy import copy_bulk

# Storages begin at multiples of this in page-locked memory.
_ALIGN = 512


def bytes_of(tensor: Any) -> Any:
    """All bytes of the tensor's storage, as a tensor of `uint8`."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def storages(tensors: Iterable[Any]) -> dict[int, Any]:
    """The bytes of the storages of tensors by their addresses, each once and none of no bytes, in the order of the tensors."""
    found: dict[int, Any] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in found:
            found[storage.data_ptr()] = bytes_of(tensor)
    return found


def like(tensor: Any, storage_bytes: Any) -> Any:
    """A tensor like `tensor`, over other bytes."""
    import torch

    made = torch.empty(0, dtype=tensor.dtype, device=storage_bytes.device)
    return made.set_(storage_bytes.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


class HostMemory:
    """Page-locked memory that is given out again and again, whole; ordinary memory where there is no GPU.

    What was given out is free once no tensor over it is left.
    """

    def __init__(self, nbytes: int, gpu: int | None) -> None:
        self.nbytes = nbytes
        self._array: Any = None
        self._kept: Any
        if gpu is None:
            self._kept = (ctypes.c_uint8 * max(nbytes, 1))()
            self._address = ctypes.addressof(self._kept)
        else:
            self._kept = _native.PinnedMemory(max(nbytes, 1), gpu)
            self._address = self._kept.__array_interface__["data"][0]

    def is_free(self) -> bool:
        """Whether no tensor over it is left."""
        return self._array is None or self._array() is None

    def parts(self, sizes: Iterable[int]) -> list[Any]:
        """Tensors of `uint8` of these sizes, each of them a storage of its own."""
        import torch

        # Tensors keep the array, and the array keeps the memory.
        owner = (ctypes.c_uint8 * 1).from_address(self._address)
        self._array = weakref.ref(owner)
        made: list[Any] = []
        at = 0
        for size in sizes:
            part: Any = (ctypes.c_uint8 * size).from_address(self._address + at)
            part.kept = (owner, self._kept)
            made.append(torch.frombuffer(part, dtype=torch.uint8))
            at += aligned(size)
        return made


def aligned(nbytes: int) -> int:
    """What a storage takes of page-locked memory."""
    return -(-nbytes // _ALIGN) * _ALIGN


def move_all(pairs: Iterable[tuple[Any, Any]], stream: Any) -> list[Any]:
    """Queues copies of bytes in `stream`, each to the first of a pair, and gives their tickets; without a stream they are made at once."""
    if stream is None:
        for to, of in pairs:
            to.copy_(of)
        return []
    import torch

    # The stream is the current one, so that no copy waits for what another one was given.
    with torch.cuda.stream(stream):
        return [copy_bulk(to, of, stream) for to, of in pairs]
