"""Loads of safetensors files: what is read is what was written, and a file that is wrong is an exception that says so."""

# PyTorch need not be installed where types are checked: then `import torch` leads to `headway/torch.py`.
# pyright: basic, reportAttributeAccessIssue=false, reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import headway as hw
import numpy as np
import pytest
from headway import _load, _native
from headway._safetensors import SafetensorsFile, open_all
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fake_gpu import Bytes, Driver, Memory

SLOT = 64 << 10


def written(path: Path, header: object, data: bytes, *, length: int | None = None) -> Path:
    """A file with that header, which says that it has `length` bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def saved(path: Path, tensors: dict[str, Bytes], metadata: dict[str, str] | None = None) -> Path:
    """A file of tensors of `uint8`, in that order."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    return written(path, header, b"".join(data.tobytes() for data in tensors.values()))


def random(size: int, seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def entry(dtype: str = "U8", shape: object = None, start: object = 0, end: object = 4) -> dict[str, object]:
    return {"dtype": dtype, "shape": [4] if shape is None else shape, "data_offsets": [start, end]}


WRONG: dict[str, tuple[object, bytes, str]] = {
    "no JSON": (b"{]", b"", "no JSON"),
    "no table": (b"[]", b"", "no table"),
    "a space first": (b' {"a":1}', b"", "no table"),
    "no text": (b'{"\xff":1}', b"", "no JSON"),
    "deep": (b"[" * 100_000, b"", "no JSON"),
    "a name twice": (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"", "twice"),
    "a key too many": ({"a": {**entry(), "more": 1}}, b"1234", "not described"),
    "no table of a tensor": ({"a": 3}, b"", "not described"),
    "an unknown type": ({"a": entry("U9")}, b"1234", "unknown type `U9`"),
    "a size below zero": ({"a": entry(shape=[-4])}, b"1234", "shape"),
    "a size that is true": ({"a": entry(shape=[True, 4])}, b"1234", "shape"),
    "a huge size": ({"a": entry(shape=[1 << 63])}, b"1234", "shape"),
    "a shape of other bytes": ({"a": entry(shape=[5])}, b"1234", "4 bytes"),
    "a product beyond all numbers": ({"a": entry(shape=[1 << 62, 1 << 62, 8])}, b"1234", "4 bytes"),
    "an end before its start": ({"a": entry(start=4, end=0)}, b"1234", "lies at"),
    "a start that is a text": ({"a": entry(start="0")}, b"1234", "lies at"),
    "an overlap": ({"a": entry(), "b": entry(start=2, end=6)}, b"123456", "overlaps `a`"),
    "the same bytes": ({"a": entry(), "b": entry()}, b"1234", "overlaps"),
    "a gap": ({"a": entry(), "b": entry(start=5, end=9)}, b"123456789", "begins at byte"),
    "out of range": ({"a": entry()}, b"123", "cut off"),
    "too long": ({"a": entry()}, b"12345", "behind its last tensor"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
}


# What the package that defines the format takes: of two tensors of a name it takes the last one.
LENIENT = {"a name twice", "a key too many"}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_wrong_is_refused_with_path_fact_and_remedy(what: str, tmp_path: Path) -> None:
    header, data, fact = WRONG[what]
    path = written(tmp_path / "wrong.safetensors", header, data)
    with pytest.raises(hw.FileError) as caught:
        SafetensorsFile(path)
    error = caught.value
    assert error.path == str(path) and str(path) in error.message and fact in error.message and error.help
    if what in LENIENT:
        return
    # The package that defines the format refuses it, too.
    safetensors = pytest.importorskip("safetensors")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(path.read_bytes())


LENGTHS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "has 0 bytes"),
    "seven bytes": (b"1234567", "has 7 bytes"),
    "a header that is too long": (struct.pack("<Q", 1 << 40), "the format allows"),
    "a header that is cut off": (struct.pack("<Q", 100) + b"{", "cut off"),
}


@pytest.mark.parametrize("what", LENGTHS)
def test_a_file_that_is_too_short_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "short.safetensors"
    path.write_bytes(LENGTHS[what][0])
    with pytest.raises(hw.FileError, match=LENGTHS[what][1]):
        SafetensorsFile(path)
    with pytest.raises(hw.NotFound):
        SafetensorsFile(tmp_path / "absent.safetensors")


def test_names_of_several_files_are_different(tmp_path: Path) -> None:
    first = saved(tmp_path / "1", {"a": random(4, 1)})
    second = saved(tmp_path / "2", {"b": random(4, 2), "a": random(4, 3)})
    with pytest.raises(hw.FileError, match="is in") as caught:
        open_all([first, second])
    assert (caught.value.path, caught.value.tensor) == (str(second), "a")
    with pytest.raises(hw.FileError, match="is in"):
        open_all([first, first])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=80))
@example(text=b"{}")
def test_any_header_is_read_or_refused(text: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "any", text, b"")
    try:
        SafetensorsFile(path).close()
    except hw.FileError as error:
        assert error.path == str(path)


LAYOUTS = st.lists(st.lists(st.sampled_from([0, 1, 5, 4095, 4096, 60_000, SLOT, 200_001]), max_size=6), min_size=1, max_size=3)


def run(
    gpu: int, files: list[SafetensorsFile], parts: list[tuple[int, int, int, int]], threads: int = 3
) -> _native.FileLoad:
    return _native.FileLoad(gpu, [(file.path, file.fd) for file in files], parts, threads, SLOT)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=LAYOUTS, keep=st.floats(0, 1), threads=st.integers(1, 4))
def test_every_layout_comes_to_a_gpu(
    driver: Driver, tmp_path: Path, layout: list[list[int]], keep: float, threads: int
) -> None:
    sent: dict[str, Bytes] = {}
    paths: list[Path] = []
    for number, sizes in enumerate(layout):
        tensors = {f"{number}.{at}": random(size, number * 100 + at) for at, size in enumerate(sizes)}
        sent.update(tensors)
        paths.append(saved(tmp_path / f"{number}.safetensors", tensors, {"of": "a test"}))
    files = open_all(paths)
    chosen = np.random.default_rng(len(sent))
    memories: dict[str, Memory] = {}
    parts: list[tuple[int, int, int, int]] = []
    for number, file in enumerate(files):
        assert file.metadata == {"of": "a test"}
        for tensor in file.tensors:
            if chosen.random() <= keep:
                memories[tensor.name] = Memory(driver, tensor.nbytes)
                parts.append((number, tensor.start, memories[tensor.name].address, tensor.nbytes))
    load = run(0, files, parts, threads)
    read = load.run()
    assert read is not None and load.moved_bytes == sum(part[3] for part in parts) <= sum(read)
    for name, memory in memories.items():
        assert (memory.content() == sent[name]).all(), name
    with pytest.raises(hw.OptionError, match="run already"):
        load.run()
    for file in files:
        file.close()


def test_a_file_that_changes_meanwhile_is_an_exception(driver: Driver, tmp_path: Path) -> None:
    size = 40 * SLOT
    path = saved(tmp_path / "cut.safetensors", {"a": random(size, 1)})
    memory = Memory(driver, size)
    with SafetensorsFile(path) as file:
        os.truncate(path, 5 * SLOT)
        load = run(0, [file], [(0, file.tensors[0].start, memory.address, size)])
        with pytest.raises(hw.FileError, match="became shorter") as caught:
            load.run()
    assert caught.value.path == str(path) and caught.value.help
    path = saved(tmp_path / "touched.safetensors", {"a": random(size, 1)})
    with SafetensorsFile(path) as file:
        load = run(0, [file], [(0, file.tensors[0].start, memory.address, size)])
        with driver.held():
            thread = _Result(load.run)
            end = time.monotonic() + 60
            while load.moved_bytes == 0:
                assert thread.is_alive() and time.monotonic() < end
                time.sleep(0.001)
            os.utime(path, (1, 1))
        with pytest.raises(hw.FileError, match="was written"):
            thread.result()


class _Result(threading.Thread):
    """What a function gives or raises, in a thread."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._value: object = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> object:
        self.join(60)
        if self._error:
            raise self._error
        return self._value


def test_a_load_can_be_stopped(driver: Driver, tmp_path: Path) -> None:
    size = 40 * SLOT
    memory = Memory(driver, size)
    with SafetensorsFile(saved(tmp_path / "a", {"a": random(size, 1)})) as file:
        load = run(0, [file], [(0, file.tensors[0].start, memory.address, size)])
        load.stop()
        assert load.run() is None and load.moved_bytes == 0


def test_memory_that_is_no_gpus_is_refused(driver: Driver, tmp_path: Path) -> None:
    host = random(4, 1)
    with SafetensorsFile(saved(tmp_path / "a", {"a": random(4, 1)})) as file:
        with pytest.raises(hw.CopyError, match="memory of this GPU"):
            run(0, [file], [(0, file.tensors[0].start, host.ctypes.data, 4)]).run()


def test_a_gpu_that_fails_is_an_error_of_the_load(library: Path, tmp_path: Path) -> None:
    path = saved(tmp_path / "a", {"a": random(40 * SLOT, 1)})
    code = f"""
from headway import _native
from headway._safetensors import SafetensorsFile
from fake_gpu import Driver, Memory
from pathlib import Path
import headway as hw
driver = Driver(Path({str(library)!r}))
memory = Memory(driver, {40 * SLOT})
file = SafetensorsFile({str(path)!r})
def load():
    part = (0, file.tensors[0].start, memory.address, {40 * SLOT})
    return _native.FileLoad(0, [(file.path, file.fd)], [part], 3, {SLOT}).run() is not None
print(load())
driver.fail("cuMemcpyHtoDAsync_v2", 700, 9)
try:
    load()
except hw.CopyError as error:
    print(type(error).__name__)
"""
    environment = {**os.environ, "HEADWAY_LIBCUDA": str(library), "HEADWAY_CACHE": "off"}
    # The folder of the tests, and not that of the package's sources.
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "CopyError"], done.stderr


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_drawn_on_terminals_only(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", shown)
    bar = _load._Bar()
    for moved in (0, 5 * 10**9, 10**10):
        bar(moved, 10**10)
    bar(0, 0)
    bar.end()
    text = shown.getvalue()
    assert ("5.0 of 10.0 GB" in text and f"[{'#' * 30}]" in text and text.endswith("\n")) if is_terminal else not text


def test_paths_that_are_none_are_refused() -> None:
    paths: Any
    for paths in ([], 3, None):
        with pytest.raises(hw.OptionError, match="`paths`.*\n.*path"):
            open_all(paths)
    paths = [3]
    with pytest.raises(hw.OptionError, match="^`paths=3` is no path"):
        open_all(paths)


@pytest.mark.parametrize("error", [RuntimeError("Found no NVIDIA driver"), AssertionError("not compiled with CUDA")])
def test_without_a_driver_loads_to_a_gpu_are_errors_of_the_gpu(error: Exception) -> None:
    torch = MagicMock()
    torch.device.return_value = MagicMock(type="cuda", index=None)
    torch.cuda.current_device.side_effect = error
    # A program that forks later may ask so: CUDA is started by loads only.
    assert _load.place_of(torch, "cuda").type == "cuda" and not torch.cuda.method_calls
    with pytest.raises(hw.GpuError, match=f"{error}\n.*headway doctor") as raised:
        _load._device(torch, "cuda", "a")
    assert raised.value.kind == "backend"


def test_without_pytorch_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="PyTorch is not installed"):
        hw.load_safetensors(tmp_path / "a")


class TestWithPyTorch:
    """Loads to host memory, by PyTorch without a GPU."""

    @pytest.fixture(autouse=True)
    def packages(self) -> None:
        self.torch: Any = pytest.importorskip("torch")
        self.safetensors: Any = pytest.importorskip("safetensors.torch")

    def model(self) -> dict[str, Any]:
        torch = self.torch
        torch.manual_seed(1)
        kinds = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]
        tensors = {f"layer.{at}": (torch.randn(3, at + 1, 5) * 10).to(kind) for at, kind in enumerate(kinds)}
        return {**tensors, "empty": torch.empty(0, 4), "number": torch.tensor(3.5), "large": torch.randn(3 << 20)}

    def same(self, left: dict[str, Any], right: dict[str, Any]) -> bool:
        torch = self.torch
        assert sorted(left) == sorted(right)
        return all(
            left[name].dtype == right[name].dtype
            and left[name].shape == right[name].shape
            and torch.equal(left[name].contiguous().view(-1).view(torch.uint8), right[name].contiguous().view(-1).view(torch.uint8))
            for name in left
        )

    def test_tensors_are_as_they_were_saved_and_own_their_memory(self, tmp_path: Path) -> None:
        model = self.model()
        half = len(model) // 2
        paths = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
        self.safetensors.save_file(dict(list(model.items())[:half]), paths[0])
        self.safetensors.save_file(dict(list(model.items())[half:]), paths[1])
        seen: list[tuple[int, int]] = []
        loaded = hw.load_safetensors(paths, device="cpu", progress=lambda moved, total: seen.append((moved, total)))
        assert self.same(loaded, model)
        assert seen[-1][0] == seen[-1][1] == sum(tensor.nbytes for tensor in model.values())
        storages = [tensor.untyped_storage() for tensor in loaded.values()]
        assert all(storage.nbytes() == tensor.nbytes for storage, tensor in zip(storages, loaded.values(), strict=True))
        paths[0].unlink()
        assert self.same(loaded, model)

    def test_some_names_and_places(self, tmp_path: Path) -> None:
        model, path = self.model(), tmp_path / "a.safetensors"
        self.safetensors.save_file(model, path)
        some = hw.load_safetensors(path, device={"number": "cpu"}, names=["number"])
        assert list(some) == ["number"] and some["number"].item() == 3.5
        assert self.same(hw.load_safetensors(path, device=lambda name: "cpu"), model)
        with pytest.raises(hw.OptionError, match="no place for tensor"):
            hw.load_safetensors(path, device={"number": "cpu"})
        with pytest.raises(hw.NotFound, match="`absent`"):
            hw.load_safetensors(path, device="cpu", names=["absent"])
        with pytest.raises(hw.OptionError, match="no device of PyTorch"):
            hw.load_safetensors(path, device="gpu")
        with pytest.raises(hw.OptionError, match="neither a CUDA GPU"):
            hw.load_safetensors(path, device="meta")
        with pytest.raises(hw.OptionError, match="threads"):
            hw.load_safetensors(path, device="cpu", threads=0)

    def test_tensors_on_gpus_are_filled_from_the_files_that_have_them(self, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = self.torch

        class OnGpu:
            def __init__(self, shape: Any, dtype: Any) -> None:
                self.nbytes = torch.empty(shape, dtype=dtype).nbytes
                self.memory = Memory(driver, self.nbytes)

            def data_ptr(self) -> int:
                return self.memory.address

        class Pretended:
            """PyTorch with memory of the driver that has no GPU."""

            cuda = MagicMock(**{"current_device.return_value": 0, "memory_reserved.return_value": 0, "memory_allocated.return_value": 0})
            __version__ = "0"

            def __getattr__(self, name: str) -> Any:
                return getattr(torch, name)

            def empty(self, shape: Any, *, dtype: Any, device: Any) -> OnGpu:
                assert device == torch.device("cuda", 0)
                return OnGpu(shape, dtype)

        monkeypatch.setattr(_load, "_torch", Pretended)
        model, paths = self.model(), [tmp_path / f"{number}.safetensors" for number in range(3)]
        names = list(model)
        for number, path in enumerate(paths):
            self.safetensors.save_file({name: model[name] for name in names[number::3]}, path)
        # Nothing of the first file.
        wanted = [name for number in (1, 2) for name in names[number::3]]
        loaded: Any = hw.load_safetensors(paths, names=wanted)
        assert sorted(loaded) == sorted(wanted)
        for name, made in loaded.items():
            sent = model[name].contiguous().view(-1).view(torch.uint8).numpy()
            assert (made.memory.content()[: made.nbytes] == sent).all(), name

    def test_a_type_that_pytorch_has_not_is_said(self, tmp_path: Path) -> None:
        path = written(tmp_path / "six", {"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, b"123")
        with pytest.raises(hw.OptionError, match="has no type"):
            hw.load_safetensors(path, device="cpu")

    def test_the_functions_of_safetensors_use_it_until_that_is_undone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import headway.torch

        loads: list[object] = []

        def counted(*given: Any, **named: Any) -> Any:
            loads.append(given)
            return hw.load_safetensors(*given, **named)

        monkeypatch.setattr(headway.torch, "load_safetensors", counted)
        model, path = self.model(), tmp_path / "a.safetensors"
        self.safetensors.save_file(model, path)
        originals = (self.safetensors.load_file, self.safetensors.safe_open)
        with headway.torch.use_for_safetensors(device="cpu"):
            assert self.safetensors.load_file is not originals[0]
            assert self.same(self.safetensors.load_file(path), model)
            with self.safetensors.safe_open(path, framework="pt") as opened:
                assert sorted(opened.keys()) == sorted(model) and len(loads) == 1
                part = opened.get_slice("layer.3")
                assert part.get_shape() == [3, 4, 5] and part.get_dtype() == "I64" and len(loads) == 1
                assert self.torch.equal(part[1:, 2], model["layer.3"][1:, 2]) and len(loads) == 2
                assert self.torch.equal(part[0], model["layer.3"][0])
                assert self.same({name: opened.get_slice(name)[...] for name in opened.keys()}, model)
                assert self.same(opened.get_tensors(), model) and len(loads) == 2
            with self.safetensors.safe_open(path, framework="np") as opened:
                assert isinstance(opened.get_tensor("layer.0"), np.ndarray)
        assert (self.safetensors.load_file, self.safetensors.safe_open) == originals
        in_force = headway.torch.use_for_safetensors()
        assert self.same(self.safetensors.load_file(path), model) and len(loads) == 2
        in_force.undo()
        assert (self.safetensors.load_file, self.safetensors.safe_open) == originals
