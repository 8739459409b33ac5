"""What Headway does for programs of PyTorch: faster loads in the packages that load weights.

    import headway.torch

    with headway.torch.use_for_safetensors():
        weights = safetensors.torch.load_file("model.safetensors", device="cuda")
"""

# PyTorch need not be installed where types are checked, and its own are not all known.
# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headway._load import load_safetensors

if TYPE_CHECKING:
    import torch

__all__ = ["use_for_safetensors"]


class use_for_safetensors:  # noqa: N801, since it is called as a function, and `with` takes it too
    """From this call on, `safetensors.torch.load_file` and `safetensors.safe_open` load to GPUs by `headway.load_safetensors`.

    It holds for all modules that have imported these functions, under whatever name. `undo()` gives back the originals, and so does the end of a
    `with` statement. What is loaded to host memory, or for another framework than PyTorch, is loaded as before.

    `from_pretrained` of Transformers opens files for host memory, and moves each tensor afterwards. With `device` its files are loaded to that
    GPU at once:

        with headway.torch.use_for_safetensors(device="cuda"):
            model = AutoModel.from_pretrained(path, device_map="cuda")

    Args:
        device: Where everything that is opened for PyTorch is loaded to; `None` = to the GPU that the call names, and other calls as before.
        threads: As for `headway.load_safetensors`.

    Raises:
        ModuleNotFoundError: safetensors or PyTorch is not installed.
    """

    def __init__(self, *, device: str | int | torch.device | None = None, threads: int | None = None) -> None:
        import safetensors
        import safetensors.torch

        self._device, self._threads = device, threads
        originals: dict[str, Callable[..., Any]] = {"safe_open": safetensors.safe_open, "load_file": safetensors.torch.load_file}
        ours = {"safe_open": self._safe_open, "load_file": self._load_file}
        self._originals = originals
        # Where each was, with what is there now.
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
        pairs = [(originals[name], ours[name]) for name in originals]
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            for original, new in pairs:
                for name in [name for name, value in list(names.items()) if value is original]:
                    self._replaced.append((names, name, original, new))
                    names[name] = new

    def undo(self) -> None:
        """Gives back the originals. What others have put in their places since stays."""
        for names, name, original, new in self._replaced:
            if names.get(name) is new:
                names[name] = original
        self._replaced.clear()

    def __enter__(self) -> use_for_safetensors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()

    def _place(self, device: Any) -> Any:
        """The device to load to by Headway, or `None`."""
        import torch

        if self._device is not None:
            return torch.device("cuda", self._device) if isinstance(self._device, int) else torch.device(self._device)
        place: Any = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        return place if place.type == "cuda" else None

    def _load_file(self, filename: str | os.PathLike[str], device: Any = "cpu", **more: Any) -> dict[str, Any]:
        place = self._place(device)
        if place is None:
            return dict(self._originals["load_file"](filename, device=device, **more))
        return load_safetensors(filename, device=place, threads=self._threads)

    def _safe_open(self, filename: str | os.PathLike[str], framework: str, device: Any = "cpu", **more: Any) -> Any:
        place = self._place(device) if framework in ("pt", "torch", "pytorch") else None
        opened = self._originals["safe_open"](filename, framework=framework, device="cpu" if place is not None else device, **more)
        return opened if place is None else _Opened(opened, filename, place, self._threads)


class _Opened:
    """What `safe_open` gives, with tensors that are loaded together when the first one is asked for."""

    def __init__(self, opened: Any, path: str | os.PathLike[str], device: Any, threads: int | None) -> None:
        self._opened, self._path, self._device, self._threads = opened, path, device, threads
        self._lock = threading.Lock()
        # Tensors that nobody has yet; `None` before the load.
        self._loaded: dict[str, Any] | None = None

    def __enter__(self) -> _Opened:
        self._opened.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loaded = {}
        self._opened.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        # Names, metadata, and what later versions have.
        return getattr(self._opened, name)

    def get_tensor(self, name: str) -> Any:
        with self._lock:
            if self._loaded is None:
                self._loaded = load_safetensors(self._path, device=self._device, threads=self._threads)
            tensor = self._loaded.pop(name, None)
        # Whoever asks again gets another tensor, as from the original, which also says if there is none.
        return self._opened.get_tensor(name).to(self._device) if tensor is None else tensor

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self._opened.keys()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self, name, self._opened.get_slice(name))


class _Slice:
    """What `get_slice` gives: shape and type without a load, and parts of the loaded tensor."""

    def __init__(self, opened: _Opened, name: str, described: Any) -> None:
        self._opened, self._name, self._described = opened, name, described
        self._tensor: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._described, name)

    def __getitem__(self, index: Any) -> Any:
        # All of it is the caller's to keep; of parts the rest is kept for the next part.
        if index is ... and self._tensor is None:
            return self._opened.get_tensor(self._name)
        if self._tensor is None:
            self._tensor = self._opened.get_tensor(self._name)
        return self._tensor[index]
