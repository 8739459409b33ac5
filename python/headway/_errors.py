"""Exceptions, with their facts as attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A place in a file or text.

    Attributes:
        file: Name of the file, or of the text.
        line: Line, counted from 1.
        column: Column in characters, counted from 1.
        width: Characters that are meant, at least 1.
        source_line: The line itself.
    """

    file: str
    line: int
    column: int
    width: int
    source_line: str


class HeadwayError(Exception):
    """Something failed; the text says what, why and what to do.

    Attributes:
        kind: What kind of failure it is, in one word, as in the JSON of `headway`.
        message: The object and the fact, one line.
        help: What to do about it, or `None`.
        place: The place of a file that is wrong, or `None`.
        causes: What caused it, the nearest first.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "options",
        text: str | None = None,
        help: str | None = None,
        place: Place | None = None,
        causes: Sequence[str] = (),
    ) -> None:
        lines = [text or message, *(f"cause: {cause}" for cause in causes)]
        # A place's text ends with the remedy.
        if help is not None and place is None:
            lines.append(f"help: {help}")
        super().__init__("\n".join(lines))
        self.kind = kind
        self.message = message
        self.help = help
        self.place = place
        self.causes = tuple(causes)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross processes (`multiprocessing`, Ray) with all their facts.
        return _again, (type(self), self.args, self.__dict__.copy())


def _again(cls: type[HeadwayError], args: tuple[object, ...], facts: dict[str, object]) -> HeadwayError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class OptionError(HeadwayError, ValueError):
    """An argument that cannot be meant: a time without a unit, an unknown strategy, a run in which nothing arrives."""


class WorkloadError(HeadwayError, ValueError):
    """A workload that is wrong, mostly at a `place`, or that no plan can be made for."""


class MachineError(HeadwayError, ValueError):
    """A machine file that is wrong, mostly at a `place`, or a machine with fewer GPUs than were asked for."""


class NotFound(HeadwayError, LookupError):
    """There is no such machine or file."""


class GuestError(HeadwayError):
    """A program cannot get Headway's library in front of it."""


class GpuError(HeadwayError, RuntimeError):
    """There is no driver or no GPU that can be used."""


class ArrayError(HeadwayError, ValueError):
    """An array that cannot be copied as it is, or two that do not fit.

    Attributes:
        argument: `"dst"` or `"src"`; `None` = the two do not fit.
        dst_shape: Shape of the target, where it is known.
        dst_dtype: Type of its elements, as a text such as `"float32"`.
        src_shape: Shape of the source.
        src_dtype: Type of its elements.
    """

    argument: str | None = None
    dst_shape: tuple[int, ...] | None = None
    dst_dtype: str | None = None
    src_shape: tuple[int, ...] | None = None
    src_dtype: str | None = None


class CopyError(HeadwayError, RuntimeError):
    """A copy that the library or the GPU refused, or that failed. After a failure nothing is known of the target's bytes.

    Attributes:
        method: The method that could not be used, where that is the reason.
        completed_bytes: So many bytes from the beginning on are in place, where that is known.
        limit: Name of the limit that is reached, where that is the reason.
        limit_max: Its value.
    """

    method: str | None = None
    completed_bytes: int | None = None
    limit: str | None = None
    limit_max: int | None = None


class CopyTimeout(CopyError, TimeoutError):
    """Time is up. The copy goes on, and its arrays are kept.

    Attributes:
        after_ns: How long was waited, in nanoseconds.
    """

    after_ns: int | None = None


class Refused(HeadwayError):
    """A flow whose deadline cannot be promised. Nothing has changed.

    Attributes:
        suffers: The flow that could miss its deadline.
        proposals: What would help, a sentence each. Each was tested.
    """

    suffers: str | None = None
    proposals: tuple[str, ...] = ()


class FileError(HeadwayError, ValueError):
    """A file of tensors that is damaged, or that changed while it was read.

    Attributes:
        path: The file.
        tensor: Name of the tensor that is wrong, or `None`.
    """

    path: str | None = None
    tensor: str | None = None


class DefectError(HeadwayError):
    """A defect of Headway."""


_CLASSES: dict[str, type[HeadwayError]] = {
    "array": ArrayError,
    "copy": CopyError,
    "defect": DefectError,
    "file": FileError,
    "gpu": GpuError,
    "guest": GuestError,
    "machine": MachineError,
    "not-found": NotFound,
    "option": OptionError,
    "other": HeadwayError,
    "refused": Refused,
    "timeout": CopyTimeout,
    "workload": WorkloadError,
}


def exception(
    *,
    class_: str,
    kind: str,
    text: str,
    message: str,
    help: str | None,
    causes: Sequence[str],
    facts: Mapping[str, object],
    file: str | None = None,
    line: int = 0,
    column: int = 0,
    width: int = 0,
    source_line: str = "",
) -> HeadwayError:
    """The exception for an error of the native module, which calls this."""
    place = None if file is None else Place(file, line, column, width, source_line)
    error = _CLASSES[class_](message, kind=kind, text=text, help=help, place=place, causes=causes)
    for name, fact in facts.items():
        setattr(error, name, fact)
    return error
