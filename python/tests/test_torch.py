"""Checkpoints that are staged, and modules that move out and in, by PyTorch without a GPU: host memory stands for a GPU's."""

# PyTorch need not be installed where types are checked: then `import torch` leads to `headway/torch.py`.
# pyright: basic, reportAttributeAccessIssue=false, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import headway as hw
import numpy as np
import pytest

from fake_gpu import Array, Driver

torch: Any = pytest.importorskip("torch")
hwt: Any = pytest.importorskip("headway.torch")

CPU = torch.device("cpu")


class Tied(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A module with all that can share memory: a tied weight, a view as a parameter, a buffer twice, and one that is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(16, 8)
        self.head = torch.nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight
        flat = torch.randn(64)
        self.first = torch.nn.Parameter(flat[:32].view(4, 8))
        self.second = torch.nn.Parameter(flat[32:].view(8, 4).t())
        self.register_buffer("mean", torch.randn(5).to(torch.bfloat16))
        self.register_buffer("again", self.mean[1:3])
        self.register_buffer("none", torch.empty(0, 3), persistent=False)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.embedding(tokens) @ (self.first.t() @ self.second))


@pytest.fixture
def module() -> Any:
    torch.manual_seed(1)
    return Tied()


def values(module: Any) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def same(module: Any, before: dict[str, Any]) -> bool:
    now = {name: tensor for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
    return list(now) == list(before) and all(torch.equal(now[name], before[name]) for name in before)


def is_tied(module: Any) -> bool:
    def storage(tensor: Any) -> int:
        return int(tensor.untyped_storage().data_ptr())

    return bool(
        module.head.weight is module.embedding.weight
        and storage(module.first) == storage(module.second)
        and storage(module.mean) == storage(module.again)
    )


def test_what_is_tied_moves_once_and_stays_tied(module: Any) -> None:
    module(torch.tensor([1, 2])).sum().backward()
    before, grads = values(module), {name: tensor.grad.clone() for name, tensor in module.named_parameters()}
    parameters = [id(parameter) for parameter in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    tied = module.embedding.weight.nbytes + 64 * 4 + module.mean.nbytes
    for _ in range(2):
        moved = hwt._out(module, CPU, True, True)
        assert moved.done and moved.nbytes >= tied and same(module, before) and is_tied(module)
        assert [id(parameter) for parameter in module.parameters()] == parameters
        out = {name: tensor.data_ptr() for name, tensor in module.named_parameters()}
        hwt._in(module, hwt._homes[module], CPU, True)
        assert same(module, before) and is_tied(module)
        assert all(tensor.data_ptr() != out[name] for name, tensor in module.named_parameters())
        assert all(torch.equal(tensor.grad, grads[name]) for name, tensor in module.named_parameters())
    optimizer.step()
    assert not same(module, before)


def test_what_did_not_change_is_not_copied_out_again(module: Any) -> None:
    before = values(module)
    assert hwt._out(module, CPU, False, True).nbytes > 0
    hwt._in(module, hwt._homes[module], CPU, True)
    assert hwt._out(module, CPU, False, True).nbytes == 0 and same(module, before)
    hwt._in(module, hwt._homes[module], CPU, True)
    # Another tensor in the place of one is noticed, whatever was said.
    module.first = torch.nn.Parameter(torch.ones(4, 8))
    before = values(module)
    assert hwt._out(module, CPU, False, True).nbytes > 0 and same(module, before)


def test_page_locked_memory_goes_with_its_module(module: Any) -> None:
    hwt._out(module, CPU, True, True)
    memory = hwt._homes[module].memory
    assert not memory.is_free()
    count = len(hwt._homes)
    del module
    gc.collect()
    assert len(hwt._homes) <= count


def test_a_module_that_is_where_it_is_to_go_is_refused(module: Any) -> None:
    with pytest.raises(hw.OptionError, match="in host memory already"):
        hwt.move_out(module)
    with pytest.raises(hw.OptionError, match="is not out"):
        hwt.move_in(module)
    with pytest.raises(hw.OptionError, match="all on one device"):
        hwt.move_out(torch.nn.ReLU())
    module.mean = torch.empty(5, device="meta")
    with pytest.raises(hw.OptionError, match="all on one device"):
        hwt.move_out(module)
    hwt._out(Tied(), CPU, True, True)


class Stream:
    """In the place of a CUDA stream: notes what it waits for."""

    def __init__(self) -> None:
        self.waited: list[Any] = []

    def record_event(self) -> Any:
        return ("event", self)

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)

    def wait_stream(self, other: Any) -> None:
        pass


def test_a_move_in_waits_for_the_move_out_of_the_same_module(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {"out": Stream(), "in": Stream()}

    def copies(pairs: Any, stream: Any) -> Any:
        for to, source in pairs:
            to.copy_(source)
        return []

    monkeypatch.setattr(hwt, "_side_stream", lambda device, purpose: streams[purpose])
    monkeypatch.setattr(hwt, "move_all", copies)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *given: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    before = values(module)
    hwt._out(module, CPU, True, False)
    hwt._in(module, hwt._homes[module], CPU, False)
    assert streams["in"].waited == [("event", streams["out"])] and same(module, before)


class CpuStager(hwt.Stager):  # type: ignore[misc, unused-ignore]
    """Takes host memory for a GPU's."""

    def _is_away(self, tensor: Any) -> bool:
        return bool(tensor.numel() > 1)


def trained(module: Any) -> Any:
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.tensor([1, 2, 3])).sum().backward()
    optimizer.step()
    return optimizer


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return bool(torch.equal(left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


@pytest.mark.parametrize("kind", [hwt.Stager, CpuStager])
def test_a_staged_state_stays_as_it_was(module: Any, kind: Any) -> None:
    optimizer = trained(module)
    stager = kind(optimizer)
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "more": [(1, "a"), {"b": None}]}
    before = {"model": {name: tensor.clone() for name, tensor in state["model"].items()}}
    staged = stager.stage(state).result(60)
    stager.synchronize_staging()
    assert equal(staged, state) and not stager.should_synchronize_after_execute
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert equal(staged["model"], before["model"])
    # What shares memory shares it in the copy.
    copies = staged["model"]
    assert copies["head.weight"].data_ptr() == copies["embedding.weight"].data_ptr()
    assert copies["first"].untyped_storage().data_ptr() == copies["second"].untyped_storage().data_ptr()
    optimizer.step()
    stager.close()
    optimizer.step()


def test_memory_of_a_state_that_was_written_is_used_again(module: Any) -> None:
    stager = CpuStager()
    state = {"model": module.state_dict()}
    stager.prepare({"model": [torch.zeros(2)]})
    stager.prepare(state)
    locked = list(stager._memories)
    assert len(locked) == 2
    first = stager.stage(state).result(60)
    address = first["model"]["first"].data_ptr()
    second = stager.stage(state).result(60)
    assert second["model"]["first"].data_ptr() != address
    with pytest.raises(hw.OptionError, match="2 staged states are still in use"):
        stager.stage(state)
    # A view of a part keeps all of it.
    part = first["model"]["mean"].view(-1)[:1]
    del first
    gc.collect()
    with pytest.raises(hw.OptionError, match="still in use"):
        stager.stage(state)
    del part
    gc.collect()
    third = stager.stage(state).result(60)
    assert third["model"]["first"].data_ptr() == address and stager._memories == locked
    stager.close()


def test_page_locked_memory_is_kept_until_its_copies_have_ended(driver: Driver) -> None:
    sizes = [5 << 20, 100, 70_000]
    memory = hwt.HostMemory(sum(map(hwt.aligned, sizes)), 0)
    parts, stream = memory.parts(sizes), driver.stream()
    there = [Array(driver, (size,), np.uint8) for size in sizes]
    sent = [np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8) for size in sizes]
    for array, data in zip(there, sent, strict=True):
        array.content()[:] = data
    with driver.held():
        tickets = [hw.copy(part, array, stream=stream) for part, array in zip(parts, there, strict=True)]
        assert {ticket.method for ticket in tickets} == {"dma"}
        del parts
        gc.collect()
        assert not memory.is_free()
    while tickets:
        tickets.pop().wait()
    gc.collect()
    assert memory.is_free()
    assert all((part.numpy() == data).all() for part, data in zip(memory.parts(sizes), sent, strict=True))


def test_a_failed_copy_is_the_error_of_whoever_waits(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = trained(module)
    stager = CpuStager(optimizer)

    def fails(pairs: Any, stream: Any) -> Any:
        if list(pairs):
            raise hw.CopyError("the GPU is gone")
        return []

    monkeypatch.setattr(hwt, "move_all", fails)
    only = {"first": module.first}
    staged = stager.stage(only)
    with pytest.raises(hw.CopyError, match="gone"):
        staged.result(60)
    with pytest.raises(hw.CopyError, match="gone"):
        stager.synchronize_staging()
    optimizer.step()
    stager.close()


def test_a_staging_that_is_cancelled_or_refused_keeps_nobody_waiting(module: Any) -> None:
    optimizer = trained(module)
    stager, begins = CpuStager(optimizer), threading.Event()
    stager._pool.submit(begins.wait)
    only = {"first": module.first}
    assert stager.stage(only).cancel()
    optimizer.step()
    stager.synchronize_staging()
    begins.set()
    stager.close()
    with pytest.raises(RuntimeError):
        stager.stage(only)
    stager.synchronize_staging()


@pytest.mark.filterwarnings("ignore")
def test_distributed_checkpoints_are_saved_and_read(module: Any, tmp_path: Path) -> None:
    dcp: Any = pytest.importorskip("torch.distributed.checkpoint")
    optimizer = trained(module)
    stager = CpuStager(optimizer)
    protocol: Any = pytest.importorskip("torch.distributed.checkpoint.staging").AsyncStager
    assert isinstance(stager, protocol)
    before = values(module)
    for number in range(3):
        saving = dcp.async_save({"model": module.state_dict()}, checkpoint_id=tmp_path / str(number), async_stager=stager, no_dist=True)
        written = getattr(saving, "upload_completion", saving)
        written.result()
        del saving, written
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    state = {"model": module.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "2", no_dist=True)
    module.load_state_dict(state["model"])
    assert same(module, before)
    stager.close()


@pytest.mark.filterwarnings("ignore")
def test_parts_of_distributed_tensors_are_staged_and_saved(tmp_path: Path) -> None:
    dist: Any = torch.distributed
    tensors: Any = pytest.importorskip("torch.distributed.tensor")
    dcp: Any = pytest.importorskip("torch.distributed.checkpoint")
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        sent = torch.randn(6, 4)
        parameter = torch.nn.Parameter(tensors.distribute_tensor(sent, mesh, [tensors.Shard(0)]))
        stager = CpuStager()
        state = {"weight": parameter}
        stager.prepare(state)
        staged = stager.stage(state).result(60)["weight"]
        assert type(staged).__name__ == "DTensor" and staged.placements == parameter.placements
        assert torch.equal(staged.to_local(), sent) and staged.to_local().data_ptr() != parameter.to_local().data_ptr()
        del staged
        dcp.async_save(state, checkpoint_id=tmp_path / "saved", async_stager=stager).upload_completion.result()
        with torch.no_grad():
            parameter.zero_()
        dcp.load(state, checkpoint_id=tmp_path / "saved")
        assert torch.equal(parameter.to_local(), sent)
        stager.close()
    finally:
        dist.destroy_process_group()


def test_options_that_cannot_be_are_said(module: Any) -> None:
    with pytest.raises(hw.OptionError, match="buffers=0"):
        hwt.Stager(buffers=0)
    with pytest.raises(hw.OptionError, match="parts of its own"):
        hwt.Stager().stage({"a": torch.eye(3).to_sparse()})
