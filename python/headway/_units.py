"""Times and sizes that users give."""

from __future__ import annotations

import os
from typing import cast

from headway import _native
from headway._errors import OptionError

Time = str | int
"""A text such as `"33 ms"`, or nanoseconds."""
Size = str | int
"""A text such as `"4 MiB"`, or bytes."""


def nanoseconds(time: Time) -> int:
    """Nanoseconds of a time.

    Raises:
        OptionError: It has no unit, or is below zero.
    """
    return _native.parse_time(time) if isinstance(time, str) else _whole(time, "33 ms")


def nbytes(size: Size) -> int:
    """Bytes of a size.

    Raises:
        OptionError: It has no unit, or is below zero.
    """
    return _native.parse_size(size) if isinstance(size, str) else _whole(size, "4 MiB")


def time_text(time: Time) -> str:
    """A time as workload files have it."""
    return time if isinstance(time, str) else f"{_whole(time, '33 ms')} ns"


def size_text(size: Size) -> str:
    """A size as workload files have it."""
    return size if isinstance(size, str) else f"{_whole(size, '4 MiB')} B"


def path_text(path: object, argument: str) -> str:
    """A path as a text.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"`{argument}={path!r}` is no path; give a text or a `pathlib.Path`")
    return os.fsdecode(cast("str | os.PathLike[str]", path))


def is_a(value: object, *kinds: type) -> bool:
    """Whether a user gave what the types say. `True` is no number."""
    return isinstance(value, kinds) and not isinstance(value, bool)


def _whole(number: object, example: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise OptionError(f"`{number!r}` is no time or size; write a text such as \"{example}\", or a whole number of ns or bytes")
    if not 0 <= number < 1 << 63:
        raise OptionError(f"`{number}` is {'negative' if number < 0 else 'too large'}; write a whole number of ns or bytes below 2^63")
    return number
