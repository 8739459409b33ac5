"""Headers of safetensors files, with every fact checked before a byte of a tensor is read."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headway._errors import FileError, NotFound, OptionError
from headway._units import is_a, path_text

# What the format allows, and so what a header may cost to read.
_HEADER_BYTES_MAX = 100_000_000
# Bits of an element, by the names of the format.
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a file.

    Attributes:
        name: Its name.
        dtype: Type of its elements, as the format calls it: `"BF16"`.
        shape: Number of elements along each index.
        start: Where its bytes begin in the file.
        nbytes: How many there are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class SafetensorsFile:
    """A file that is open, with its tensors in the order of their bytes.

    Attributes:
        path: Its path, as it was given.
        fd: Its descriptor, open for reading until `close`.
        tensors: Its tensors.
        metadata: What it says of itself.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path_text(path, "paths")
        try:
            # Who opens a pipe would wait for its other end.
            self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            message = f"there is no file `{self.path}`"
            raise NotFound(message, kind="file", help="give the path of a file that ends in `.safetensors`") from error
        try:
            self.tensors, self.metadata = self._read()
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def check_unchanged(self) -> None:
        """Whether the file is as it was when its header was read.

        Raises:
            FileError: It was written since then.
        """
        facts = os.fstat(self.fd)
        if (facts.st_size, facts.st_mtime_ns) != self.state:
            raise self.wrong("was written while it was read", "load it again when it is complete")

    def wrong(self, fact: str, help: str, tensor: str | None = None) -> FileError:
        """The exception for this file, of which `fact` is wrong."""
        whose = f"`{self.path}`: " if tensor is None else f"`{self.path}`: tensor `{tensor}` "
        error = FileError(whose + fact, kind="file", help=help)
        error.path, error.tensor = self.path, tensor
        return error

    def _read(self) -> tuple[list[TensorEntry], dict[str, str]]:
        again = "copy or download it again"
        facts = os.fstat(self.fd)
        if not stat.S_ISREG(facts.st_mode):
            raise self.wrong("is no file of bytes", "give the path of a file that ends in `.safetensors`")
        # Its header says nothing of what is written later.
        self.state = (facts.st_size, facts.st_mtime_ns)
        size = facts.st_size
        first = self._bytes(0, min(8, size))
        if len(first) < 8:
            raise self.wrong(f"has {size} bytes, and a safetensors file has 8 at least", again)
        length = int.from_bytes(first, "little")
        if length > _HEADER_BYTES_MAX:
            raise self.wrong(
                f"says that its header has {length} bytes, and the format allows {_HEADER_BYTES_MAX}",
                "it is damaged, or no safetensors file; a PyTorch checkpoint is read by `torch.load`",
            )
        if 8 + length > size:
            raise self.wrong(f"is cut off: its header ends at byte {8 + length}, and it has {size}", again)
        text = self._bytes(8, length)
        if len(text) < length:
            raise self.wrong("became shorter while its header was read", again)
        try:
            header: Any = json.loads(text.decode("utf-8"), object_pairs_hook=_pairs)
        except _Twice as error:
            raise self.wrong(f"has the name `{error.name}` twice in its header", "write it again, with each name once") from None
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"has a header that is no JSON: {error}", again) from error
        # The format has no space before it.
        if not _is_table(header) or not text.startswith(b"{"):
            raise self.wrong("has a header that is no table of tensors", again)
        metadata: Any = header.pop("__metadata__", None) or {}
        if not _is_table(metadata) or not all(isinstance(value, str) for value in metadata.values()):
            raise self.wrong("has `__metadata__` that is no table of texts", "write it again, with texts only")
        tensors = [self._entry(name, entry, 8 + length) for name, entry in header.items()]
        tensors.sort(key=lambda tensor: (tensor.start, tensor.nbytes))
        self._check_order(tensors, 8 + length, size)
        return tensors, metadata

    def _bytes(self, at: int, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0 and (part := os.pread(self.fd, count, at)):
            parts.append(part)
            at, count = at + len(part), count - len(part)
        return b"".join(parts)

    def _entry(self, name: str, entry: Any, data: int) -> TensorEntry:
        again = "write it again"
        if not _is_table(entry) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise self.wrong("is not described by `dtype`, `shape` and `data_offsets`", again, name)
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise self.wrong(f"has elements of the unknown type `{dtype}`", f"known are {', '.join(sorted(_BITS))}", name)
        if not _is_sizes(shape):
            raise self.wrong(f"has the shape {_short(shape)}", "a shape is a list of whole numbers from 0 to 2^63 - 1", name)
        if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise self.wrong(f"lies at {_short(offsets)}", "`data_offsets` are where it begins and where it ends", name)
        nbytes, bits = offsets[1] - offsets[0], math.prod(shape) * _BITS[dtype]
        if bits != 8 * nbytes:
            raise self.wrong(
                f"has {nbytes} bytes, and its shape {_short(shape)} of {dtype} takes {bits} bits", again, name
            )
        return TensorEntry(name, dtype, tuple(shape), data + offsets[0], nbytes)

    def _check_order(self, tensors: list[TensorEntry], data: int, size: int) -> None:
        end, before = data, ""
        for tensor in tensors:
            if tensor.start < end:
                text = f"overlaps `{before}`: it begins at byte {tensor.start}, and `{before}` ends at byte {end}"
                raise self.wrong(text, "write it again; in the format no tensor shares bytes with another one", tensor.name)
            if tensor.start > end:
                text = f"begins at byte {tensor.start}, and what is before it ends at byte {end}"
                raise self.wrong(text, "write it again; the format has no gaps", tensor.name)
            end, before = tensor.start + tensor.nbytes, tensor.name
        if end > size:
            last = next(tensor for tensor in tensors if tensor.start + tensor.nbytes > size)
            text = f"is cut off: it ends at byte {last.start + last.nbytes}, and the file has {size}"
            raise self.wrong(text, "copy or download the file again", last.name)
        if end < size:
            raise self.wrong(f"has {size - end} bytes behind its last tensor", "copy or download it again")


class _Twice(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Twice(name)
            seen.add(name)
    return table


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_sizes(value: Any) -> bool:
    return _is_list(value) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def open_all(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[SafetensorsFile]:
    """Opens all files; who calls closes them.

    Raises:
        OptionError: No path is given, or what is given is none.
        NotFound: There is no such file.
        FileError: One is damaged, or two have a tensor of the same name.
    """
    if not is_a(paths, os.PathLike, Iterable):
        raise OptionError(f"`paths` is `{paths!r}`", help="give the path of a file, or a list of paths")
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise OptionError("`paths` has no path", help="give the paths of all files of the model")
    files: list[SafetensorsFile] = []
    owners: dict[str, SafetensorsFile] = {}
    try:
        for path in given:
            file = SafetensorsFile(path)
            files.append(file)
            for tensor in file.tensors:
                other = owners.setdefault(tensor.name, file)
                if other is not file:
                    text = f"is in `{other.path}`, too"
                    raise file.wrong(text, "load files of one model together, each once", tensor.name)
    except BaseException:
        for file in files:
            file.close()
        raise
    return files
