"""What Headway does for programs of PyTorch: loads of weights, checkpoints that nobody waits for, and models that make room for others.

    import headway.torch

    with headway.torch.use_for_safetensors():
        weights = safetensors.torch.load_file("model.safetensors", device="cuda")

    stager = headway.torch.Stager(optimizer)
    torch.distributed.checkpoint.async_save(state, checkpoint_id=path, async_stager=stager)

    headway.torch.move_out(model)       # to page-locked memory; its GPU memory is free for another model
    headway.torch.move_in(model)        # and back
"""

# PyTorch need not be installed where types are checked: then `import torch` leads to `headway/torch.py`.
# pyright: basic, reportAttributeAccessIssue=false, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headway._errors import OptionError
from headway._load import load_safetensors, place_of
from headway._storages import HostMemory, aligned, like, move_all, storages

if TYPE_CHECKING:
    import torch

__all__ = ["Move", "Stager", "move_in", "move_out", "use_for_safetensors"]


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
        OptionError: `device` is neither a GPU nor host memory.
    """

    def __init__(self, *, device: str | int | torch.device | None = None, threads: int | None = None) -> None:
        torch = _import()
        try:
            import safetensors
            import safetensors.torch
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("safetensors is not installed; `pip install safetensors`", name="safetensors") from error
        self._device = None if device is None else place_of(torch, device)
        self._threads = threads
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
            return self._device
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


class Move:
    """A module on its way. It is kept until all bytes are there, also if this is dropped.

    Attributes:
        nbytes: Bytes that are copied: those of each storage once.
    """

    def __init__(self, tickets: list[Any], nbytes: int) -> None:
        self._tickets = tickets
        self.nbytes = nbytes

    @property
    def done(self) -> bool:
        """Whether all bytes are there."""
        return all(ticket.done for ticket in self._tickets)

    def wait(self, timeout: float | None = 60.0) -> None:
        """Waits until all bytes are there. Other threads run meanwhile.

        Args:
            timeout: Seconds for each of its copies; `None` = as long as it takes.

        Raises:
            CopyTimeout: Time is up. The copies go on.
            CopyError: One failed.
        """
        for ticket in self._tickets:
            ticket.wait(timeout)
        self._tickets.clear()


class _Home:
    """Where a module's storages are while it is out."""

    def __init__(self) -> None:
        self.memory: HostMemory | None = None
        # Of each storage in the module's order.
        self.parts: list[Any] = []
        self.device: Any = None
        # Storages on the GPU that have the same bytes, by their addresses; what is written there must be copied again.
        self.inside: list[int] = []
        # The event behind the copies that write `parts`.
        self.written: Any = None


_homes: weakref.WeakKeyDictionary[Any, _Home] = weakref.WeakKeyDictionary()


def _tensors(module: Any) -> list[Any]:
    """Parameters with their gradients, and buffers, each once."""
    if not hasattr(module, "parameters") or not hasattr(module, "buffers"):
        raise OptionError(f"`{module!r}` is no module of PyTorch", help="give a `torch.nn.Module`")
    found: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        found[id(tensor)] = tensor
        grad = getattr(tensor, "grad", None)
        if grad is not None:
            found[id(grad)] = grad
    return list(found.values())


def _plain(tensors: Iterable[Any], what: str) -> None:
    for tensor in tensors:
        kind = type(tensor).__name__
        if kind not in ("Tensor", "Parameter", "Buffer") or tensor.layout is not _import().strided:
            raise OptionError(
                f"{what} has a tensor of the kind `{kind}` ({tensor.layout}), which has parts of its own",
                help="give plain dense tensors, as of modules that are not sharded",
            )


def _import() -> Any:
    import torch

    return torch


def _host_memory(nbytes: int, device: Any) -> HostMemory:
    """Page-locked memory for copies of a GPU."""
    return HostMemory(nbytes, device.index if device.type == "cuda" else None)


# A new one for each call would in the end be one that the program computes in: PyTorch has 32 of them, and gives them out in turns.
_streams: dict[tuple[int, str], Any] = {}


def _side_stream(device: Any, purpose: str) -> Any:
    """The stream for copies of a purpose, behind what the current one was given; `None` for host memory."""
    if device.type != "cuda":
        return None
    cuda = _import().cuda
    if (device.index, purpose) not in _streams:
        _streams[device.index, purpose] = cuda.Stream(device)
    stream = _streams[device.index, purpose]
    stream.wait_stream(cuda.current_stream(device))
    return stream


def move_out(module: torch.nn.Module, *, changed: bool = True, wait: bool = True) -> Move:
    """Moves parameters, their gradients and buffers of a module from its GPU to page-locked memory, and gives their GPU memory back to PyTorch.

    What is tied stays tied: every storage moves once, and all tensors over it stay views of it. The parameters are the same objects as before,
    with other data, so that optimizers go on. The copies begin behind what the current stream was given, in a stream of their own and in chunks,
    between which small copies of other streams are made.

    The page-locked memory stays the module's, until the module goes: the first call takes about a second for each 4 GiB to lock it, and later calls
    take what the bus takes.

    Args:
        module: Of which all tensors are on one GPU.
        changed: `False` = no parameter or buffer was written since `move_in`, as in inference: nothing is copied, and only memory is given back.
        wait: `False` = return at once. What is in host memory is valid once the answer's `wait` has returned; GPU memory is used again no sooner.

    Raises:
        OptionError: Tensors are on several devices or in host memory already, or are sharded or sparse.
        GpuError: There is no driver, or no GPU.
        CopyError: So much memory cannot be locked, or a copy failed.
    """
    device = _device_of(module, "move_out")
    if device.type != "cuda":
        raise OptionError("the module is in host memory already", help="`move_in(module)` moves it to a GPU")
    return _out(module, device, changed, wait)


def _device_of(module: Any, what: str) -> Any:
    tensors = _tensors(module)
    _plain(tensors, "the module")
    places = {tensor.device for tensor in tensors}
    if len(places) != 1:
        shown = ", ".join(sorted(map(str, places))) or "nothing"
        raise OptionError(f"`{what}` moves a module whose tensors are all on one device, and these are on {shown}", help="move its parts")
    return places.pop()


def _out(module: Any, device: Any, changed: bool, wait: bool) -> Move:
    tensors = _tensors(module)
    found = storages(tensors)
    sizes = [storage.numel() for storage in found.values()]
    home = _homes.setdefault(module, _Home())
    is_same = home.memory is not None and home.inside == list(found) and [part.numel() for part in home.parts] == sizes
    if home.memory is None or [part.numel() for part in home.parts] != sizes:
        home.parts.clear()
        home.memory = _host_memory(sum(map(aligned, sizes)), device)
        home.parts = home.memory.parts(sizes)
    home.device = device
    tickets: list[Any] = []
    copies = changed or not is_same
    if copies:
        stream = _side_stream(device, "out")
        tickets = move_all(zip(home.parts, found.values(), strict=True), stream)
        home.written = stream.record_event() if stream is not None else None
        for storage in found.values() if stream is not None else []:
            storage.record_stream(stream)
    _set(tensors, dict(zip(found, home.parts, strict=True)))
    home.inside = []
    moved = Move(tickets, sum(sizes) if copies else 0)
    if wait:
        moved.wait(None)
    return moved


def _set(tensors: list[Any], by_address: dict[int, Any]) -> None:
    """Gives tensors other storages, by the addresses of those that they have."""
    torch = _import()
    with torch.no_grad():
        for tensor in tensors:
            storage = tensor.untyped_storage()
            other = by_address.get(storage.data_ptr()) if storage.nbytes() else None
            device = next(iter(by_address.values())).device if by_address else tensor.device
            empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device) if other is None else None
            tensor.data = like(tensor, other) if empty is None else empty


def move_in(module: torch.nn.Module, device: str | int | torch.device | None = None, *, wait: bool = True) -> Move:
    """Moves a module that `move_out` has moved back to a GPU.

    What the current stream is given later begins when the bytes are there. The copies are made in a stream of their own.

    Args:
        module: One that is out.
        device: Where to; `None` = where it was.
        wait: `False` = return at once; the module may be used in the current stream, and in others once the answer's `wait` has returned.

    Raises:
        OptionError: The module is not out, or `device` is no GPU.
        CopyError: A copy failed.
        torch.OutOfMemoryError: The GPU has no room for it; the module stays out.
    """
    torch = _import()
    home = _homes.get(module)
    if home is None or home.memory is None or _device_of(module, "move_in").type != "cpu" or home.inside:
        raise OptionError("the module is not out", help="`move_out(module)` moves it out; `module.to(device)` moves others in")
    place = home.device if device is None else torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    if place.type != home.device.type:
        raise OptionError(f"`device={device!r}` is no GPU", help='give "cuda" or "cuda:1"')
    return _in(module, home, place, wait)


def _in(module: Any, home: _Home, device: Any, wait: bool) -> Move:
    torch = _import()
    tensors = _tensors(module)
    found = storages(tensors)
    there = [torch.empty(storage.numel(), dtype=torch.uint8, device=device) for storage in found.values()]
    stream = _side_stream(device, "in")
    if stream is not None and home.written is not None:
        stream.wait_event(home.written)
    tickets = move_all(zip(there, found.values(), strict=True), stream)
    if stream is not None:
        torch.cuda.current_stream(device).wait_stream(stream)
    # What was added to the module meanwhile has no place in page-locked memory.
    is_same = list(found) == [part.data_ptr() for part in home.parts]
    _set(tensors, dict(zip(found, there, strict=True)))
    home.device = device
    home.inside = [to.data_ptr() for to in there] if is_same else []
    moved = Move(tickets, sum(to.numel() for to in there))
    if wait:
        moved.wait(None)
    return moved


class Stager:
    """Copies a state to page-locked memory beside the training, for `torch.distributed.checkpoint.async_save`.

        stager = headway.torch.Stager(optimizer)
        saving = None
        for step, batch in enumerate(data):
            loss(model(batch)).backward()
            optimizer.step()
            if step % 100 == 0:
                if saving: saving.upload_completion.result()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                saving = torch.distributed.checkpoint.async_save(state, checkpoint_id=f"ckpt/{step}", async_stager=stager)

    A call of `stage` returns at once. What `optimizers` write, which are their parameters and states, is copied by a thread in a stream of its own, while
    the next step computes; their next `step` waits on the GPU for what is left, the host does not. All else, such as buffers of the module, is
    copied in the order of the current stream. Without `optimizers` all is, so that the next kernels wait for the copies. Tensors in host memory
    are copied by the caller. Of a `DTensor` each process stages its part.

    Copies are made in chunks, between which small copies of other streams are made. Page-locked memory is used again once a checkpoint has been
    written: when nothing refers to the staged state any more. The first calls lock theirs, about a second for each 4 GiB; `prepare` does it before.

    Whoever writes parameters in another way than by `step` of these optimizers calls `synchronize_staging` before.

    Args:
        optimizers: Those of the state.
        buffers: Staged states that there may be at a time, each with page-locked memory of its own; one more is refused.
    """

    # Of the protocol of older PyTorch: nobody waits in `async_save`.
    _synchronize_after_execute = False

    def __init__(self, *optimizers: torch.optim.Optimizer, buffers: int = 2) -> None:
        if buffers < 1:
            raise OptionError(f"`buffers={buffers}` is no number of staged states; give 1 or more")
        for optimizer in optimizers:
            if not hasattr(optimizer, "register_step_pre_hook"):
                given = type(optimizer).__name__
                raise OptionError(f"`{given}` is no optimizer of PyTorch", help="give the optimizers whose `step` writes the state, or nothing")
        self._optimizers = optimizers
        self._buffers_max = buffers
        self._memories: list[HostMemory] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headway-stager")
        # What `synchronize_staging` waits for, and what the next step of an optimizer does.
        self._last: _Queued | None = None
        self._queued: _Queued | None = None
        self._hooks = [optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers]

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Of the protocol of PyTorch: `False`."""
        return self._synchronize_after_execute

    def prepare(self, state_dict: dict[str, Any]) -> None:
        """Locks memory for states like this one, all that there may be at a time, so that no checkpoint waits for that.

        Raises:
            CopyError: So much memory cannot be locked.
        """
        found: dict[int, Any] = {}
        _walk(state_dict, found)
        away = storages(tensor for tensor in map(_local, found.values()) if self._is_away(tensor))
        nbytes = sum(aligned(storage.numel()) for storage in away.values())
        self._memories = [memory for memory in self._memories if not memory.is_free() or memory.nbytes >= nbytes]
        for storage in list(away.values())[:1]:
            while len(self._memories) < self._buffers_max:
                self._memories.append(_host_memory(nbytes, storage.device))

    def stage(self, state_dict: dict[str, Any]) -> Future[dict[str, Any]]:
        """A copy of the state in host memory, as it is for the current stream now.

        Raises:
            OptionError: It has sparse tensors or others with parts of their own, or too many earlier states are still being written.
            CopyError: So much memory cannot be locked.
        """
        torch = _import()
        found: dict[int, Any] = {}
        _walk(state_dict, found)
        tensors = [_local(tensor) for tensor in found.values()]
        _plain(tensors, "the state")
        away = storages(tensor for tensor in tensors if self._is_away(tensor))
        places = {storage.device for storage in away.values()}
        if len(places) > 1:
            raise OptionError("the state is on several GPUs", help="stage the parts of each GPU by a stager of its own")
        # What is in host memory may be written at once.
        by_address = {address: storage.clone() for address, storage in storages(tensor for tensor in tensors if not self._is_away(tensor)).items()}
        device = places.pop() if places else torch.device("cpu")
        memory = self._memory(sum(aligned(storage.numel()) for storage in away.values()), device)
        parts = memory.parts(storage.numel() for storage in away.values()) if memory else []
        by_address |= dict(zip(away, parts, strict=True))
        with torch.no_grad():
            made = {key: _wrapped(tensor, _over(_local(tensor), by_address)) for key, tensor in found.items()}
        staged = _rebuilt(state_dict, made)
        later = self._written_by_optimizers() if away else set()
        stream = _side_stream(device, "stage")
        now = [(part, storage) for (address, storage), part in zip(away.items(), parts, strict=True) if address not in later]
        rest = [(part, storage) for (address, storage), part in zip(away.items(), parts, strict=True) if address in later]
        tickets = move_all(now, stream)
        if stream is not None and now:
            torch.cuda.current_stream(device).wait_stream(stream)
        queued = _Queued(device)
        future = self._pool.submit(self._finish, queued, rest, tickets, stream, staged)
        future.add_done_callback(queued.give_up)
        self._queued = self._last = queued
        return future

    def _finish(self, queued: _Queued, rest: list[tuple[Any, Any]], tickets: list[Any], stream: Any, staged: Any) -> Any:
        try:
            try:
                tickets += move_all(rest, stream)
                if stream is not None:
                    queued.event = _import().cuda.Event()
                    queued.event.record(stream)
            finally:
                queued.ready.set()
            for ticket in tickets:
                ticket.wait(None)
        except BaseException as error:
            queued.ended.set_exception(error)
            raise
        queued.ended.set_result(None)
        return staged

    def _is_away(self, tensor: Any) -> bool:
        """Whether it is copied by Headway: it is in a GPU's memory."""
        return bool(tensor.device.type == "cuda")

    def _memory(self, nbytes: int, device: Any) -> HostMemory | None:
        if nbytes == 0:
            return None
        free = [memory for memory in self._memories if memory.is_free()]
        fitting = next((memory for memory in free if memory.nbytes >= nbytes), None)
        if fitting:
            return fitting
        for memory in free:
            self._memories.remove(memory)
        if len(self._memories) >= self._buffers_max:
            raise OptionError(
                f"{len(self._memories)} staged states are still in use",
                help="wait for the result of an earlier `async_save` first, or give the stager more `buffers`",
            )
        made = _host_memory(nbytes, device)
        self._memories.append(made)
        return made

    def _written_by_optimizers(self) -> set[int]:
        """Addresses of the storages that only `step` writes."""
        written: set[int] = set()
        for optimizer in self._optimizers:
            found: dict[int, Any] = {}
            _walk([group["params"] for group in optimizer.param_groups], found)
            _walk(list(optimizer.state.values()), found)
            written.update(tensor.untyped_storage().data_ptr() for tensor in map(_local, found.values()))
        return written

    def _before_step(self, *_given: Any) -> None:
        """Has the current stream wait for the copies of what is written now."""
        queued = self._queued
        if queued is None:
            return
        queued.ready.wait()
        if queued.event is not None:
            _import().cuda.current_stream(queued.device).wait_event(queued.event)
        self._queued = None

    def synchronize_staging(self) -> None:
        """Waits until the last state is in host memory, so that everything may be written."""
        if self._last is not None:
            self._last.ended.result()

    def close(self) -> None:
        """Waits for what is under way, and gives its memory back once checkpoints are written."""
        self._pool.shutdown(wait=True)
        for hook in self._hooks:
            hook.remove()
        self._memories.clear()


class _Queued:
    """Copies that a stager's thread queues."""

    def __init__(self, device: Any) -> None:
        self.device = device
        # Whether all are queued, with the event behind them.
        self.ready = threading.Event()
        self.event: Any = None
        # Without the state, which nobody is to keep.
        self.ended: Future[None] = Future()

    def give_up(self, staging: Future[Any]) -> None:
        """Nobody waits for a staging that was cancelled before it began."""
        if staging.cancelled():
            self.ready.set()
            self.ended.set_result(None)


def _walk(value: Any, found: dict[int, Any]) -> None:
    """Adds all tensors of a nested state, by their identity."""
    if isinstance(value, _import().Tensor):
        found[id(value)] = value
    elif isinstance(value, dict):
        for inner in value.values():
            _walk(inner, found)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _walk(inner, found)


def _rebuilt(value: Any, made: dict[int, Any]) -> Any:
    """The same state with other tensors; lists and tables are new ones."""
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, dict):
        return {key: _rebuilt(inner, made) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rebuilt(inner, made) for inner in value]
    if isinstance(value, tuple):
        inner = [_rebuilt(inner, made) for inner in value]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    return value


def _is_distributed(tensor: Any) -> bool:
    return type(tensor).__name__ == "DTensor"


def _local(tensor: Any) -> Any:
    """What this process has of a tensor: a part of a `DTensor`, and all of others."""
    return tensor._local_tensor if _is_distributed(tensor) else tensor


def _wrapped(tensor: Any, local: Any) -> Any:
    """The tensor of which `local` is what this process has, distributed as `tensor` is."""
    return type(tensor)(local, tensor._spec, requires_grad=False) if _is_distributed(tensor) else local


def _over(tensor: Any, by_address: dict[int, Any]) -> Any:
    """A tensor like `tensor` over the storage for its own."""
    storage = tensor.untyped_storage()
    if storage.nbytes():
        return like(tensor, by_address[storage.data_ptr()])
    return _import().empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
