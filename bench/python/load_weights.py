"""Loads of weights by `headway.load_safetensors` beside safetensors, fastsafetensors, InstantTensor and the Run:ai model streamer.

    python bench/python/load_weights.py [--gib 8] [--rounds 5] [--quick] [--folder /dev/shm] [--only NAME,..] [--threads N] [--gpus N]
        [--beside] [--json FILE]

Makes a model of layers as large language models have them, in files in `--folder`, and loads it. Each loader runs in a process of its own, which
says what its first load took, then the median and the best of `--rounds` more. CPUs are CPU time of the process and its children divided by the
time. The bytes of the first and the last load are compared with the files', by sums. A loader whose package is not installed is left out, with a line. `--beside` also runs a token
loop on the same GPU in another thread, and says what a step took while Headway loads and while nothing does. `--gpus` loads one copy to each of
so many GPUs at the same time (Headway only). The files of a folder that already has them are used again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What a loader gives is kept until its sums were compared, and then let go.
Loader = Callable[[list[str], str], tuple[dict[str, Any], Callable[[], None]]]
LOADERS = ["headway", "safetensors", "fastsafetensors", "instanttensor", "runai"]


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def model(gib: float) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of `bfloat16` tensors, of about so many GiB."""
    hidden, inner = 4096, 14336
    layer = [
        ("input_layernorm.weight", (hidden,)),
        ("mlp.down_proj.weight", (hidden, inner)),
        ("mlp.gate_proj.weight", (inner, hidden)),
        ("mlp.up_proj.weight", (inner, hidden)),
        ("post_attention_layernorm.weight", (hidden,)),
        ("self_attn.k_proj.weight", (1024, hidden)),
        ("self_attn.o_proj.weight", (hidden, hidden)),
        ("self_attn.q_proj.weight", (hidden, hidden)),
        ("self_attn.v_proj.weight", (1024, hidden)),
    ]
    layer_bytes = sum(2 * shape[0] * (shape[1] if len(shape) > 1 else 1) for _, shape in layer)
    count = max(1, round(gib * (1 << 30) / layer_bytes))
    return [(f"model.layers.{number}.{name}", shape) for number in range(count) for name, shape in layer]


def make_files(folder: Path, gib: float, files: int) -> list[str]:
    """Writes the model, unless it is there."""
    import torch
    from safetensors.torch import save_file

    tensors = model(gib)
    share = -(-len(tensors) // files)
    paths: list[str] = []
    for number in range(files):
        part = tensors[number * share : (number + 1) * share]
        if not part:
            break
        path = folder / f"headway-weights-{gib}-{number + 1}-of-{files}.safetensors"
        paths.append(str(path))
        if path.exists():
            continue
        generator = torch.Generator().manual_seed(number)
        base = torch.randint(-(2**15), 2**15 - 1, (68 << 20,), dtype=torch.int16, generator=generator)
        made: dict[str, Any] = {}
        for at, (name, shape) in enumerate(part):
            elements = 1
            for size in shape:
                elements *= size
            made[name] = base[at * 4099 :][:elements].clone().view(torch.bfloat16).reshape(shape)
        save_file(made, str(path) + ".part")
        os.rename(str(path) + ".part", path)
    return paths


def by_headway(args: argparse.Namespace) -> Loader:
    import headway as hw
    from headway import _load

    threads = args.threads
    # What is tried out here may become what everybody gets.
    if args.slot_mib:
        _load._SLOT_BYTES = int(args.slot_mib * (1 << 20))

    def load(paths: list[str], device: str) -> tuple[dict[str, Any], Callable[[], None]]:
        return hw.load_safetensors(paths, device=device, threads=threads), lambda: None

    return load


def by_safetensors() -> Loader:
    from safetensors.torch import load_file

    def load(paths: list[str], device: str) -> tuple[dict[str, Any], Callable[[], None]]:
        loaded: dict[str, Any] = {}
        for path in paths:
            loaded.update(load_file(path, device=device))
        return loaded, lambda: None

    return load


def by_fastsafetensors() -> Loader:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load(paths: list[str], device: str) -> tuple[dict[str, Any], Callable[[], None]]:
        loader = SafeTensorsFileLoader(SingleGroup(), device=device, nogds=True)
        loader.add_filenames({0: paths})
        buffers = loader.copy_files_to_device()
        loaded = {name: buffers.get_tensor(name) for name in loader.get_keys()}

        def close() -> None:
            buffers.close()
            loader.close()

        return loaded, close

    return load


def by_instanttensor() -> Loader:
    import instanttensor

    def load(paths: list[str], device: str) -> tuple[dict[str, Any], Callable[[], None]]:
        loaded: dict[str, Any] = {}
        with instanttensor.safe_open(paths, framework="pt", device=device) as opened:
            for name, tensor in opened.tensors():
                loaded[name] = tensor
        return loaded, lambda: None

    return load


def by_runai() -> Loader:
    from runai_model_streamer import SafetensorsStreamer

    def load(paths: list[str], device: str) -> tuple[dict[str, Any], Callable[[], None]]:
        loaded: dict[str, Any] = {}
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(paths, device=device)
            for name, tensor in streamer.get_tensors():
                loaded[name] = tensor
        return loaded, lambda: None

    return load


def loader_of(name: str, args: argparse.Namespace) -> Loader:
    if name == "headway":
        return by_headway(args)
    return {"safetensors": by_safetensors, "fastsafetensors": by_fastsafetensors, "instanttensor": by_instanttensor, "runai": by_runai}[name]()


def sums(loaded: dict[str, Any]) -> dict[str, int]:
    """For each tensor the sum of its words, each times a number of its place."""
    import torch

    found: dict[str, int] = {}
    for name, tensor in loaded.items():
        words = tensor.contiguous().view(-1).view(torch.int64)
        places = torch.arange(1, 2 * len(words), 2, device=words.device)
        found[name] = int((words * places).sum())
    return found


def expected(paths: list[str]) -> dict[str, int]:
    from safetensors.torch import load_file

    found: dict[str, int] = {}
    for path in paths:
        found.update(sums(load_file(path, device="cpu")))
    return found


def child(args: argparse.Namespace) -> None:
    """Loads with one loader, and prints a line of JSON."""
    import torch

    name, paths = args.child, args.paths
    device = args.device
    try:
        load = loader_of(name, args)
    except ImportError as error:
        print(json.dumps({"loader": name, "left_out": f"cannot be imported: {error}"}))
        return
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.init()
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
    want = {name: int(value) for name, value in json.loads(Path(args.sums).read_text()).items()}
    nbytes = sum(os.path.getsize(path) for path in paths)
    rows: list[dict[str, float]] = []
    equal = True
    for number in range(args.rounds + 1):
        begun, cpu = time.perf_counter(), cpu_seconds()
        loaded, close = load(paths, device)
        if on_gpu:
            torch.cuda.synchronize()
        took = time.perf_counter() - begun
        rows.append({"s": took, "cpus": (cpu_seconds() - cpu) / took})
        if number in (0, args.rounds):
            equal = equal and sums(loaded) == want
        del loaded
        close()
        gc.collect()
        if on_gpu and args.empty:
            torch.cuda.empty_cache()
    warm = rows[1:]
    row: dict[str, Any] = {
        "loader": name,
        "device": torch.cuda.get_device_name() if on_gpu else "host memory",
        "torch": torch.__version__,
        "files": len(paths),
        "bytes": nbytes,
        "first_s": rows[0]["s"],
        "first_gb_per_s": nbytes / rows[0]["s"] / 1e9,
        "first_cpus": rows[0]["cpus"],
        "n": len(warm),
        "equal": equal,
    }
    if warm:
        median = statistics.median(row["s"] for row in warm)
        row |= {
            "median_s": median,
            "gb_per_s": nbytes / median / 1e9,
            "best_gb_per_s": nbytes / min(row["s"] for row in warm) / 1e9,
            "cpus": statistics.median(row["cpus"] for row in warm),
        }
    print(json.dumps(row))


def beside(args: argparse.Namespace) -> None:
    """A token loop while nothing loads, and while Headway or safetensors loads in another thread."""
    import torch

    device, paths = args.device, args.paths
    a = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
    b = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16)
    stream = torch.cuda.Stream(device)

    def steps(seconds: float, until: threading.Thread | None = None) -> list[float]:
        times: list[float] = []
        with torch.cuda.stream(stream):
            end = time.perf_counter() + seconds
            while time.perf_counter() < end and (until is None or until.is_alive()):
                begun = time.perf_counter()
                int((a @ b).argmax().item())
                times.append((time.perf_counter() - begun) * 1e6)
        return times

    def said(times: list[float]) -> dict[str, float]:
        times = sorted(times)
        return {"n": len(times), "median_us": times[len(times) // 2], "p99_us": times[min(len(times) - 1, len(times) * 99 // 100)], "max_us": times[-1]}

    steps(0.5)
    idle = said(steps(args.seconds))
    for name in args.only.split(","):
        try:
            load = loader_of(name, args)
        except ImportError:
            continue
        loads = 0
        begun = time.perf_counter()

        def again() -> None:
            nonlocal loads
            while time.perf_counter() - begun < args.seconds:
                loaded, close = load(paths, device)
                torch.cuda.synchronize(device) if name != "headway" else None
                del loaded
                close()
                loads += 1

        loaded, close = load(paths, device)
        del loaded
        close()
        thread = threading.Thread(target=again)
        begun = time.perf_counter()
        thread.start()
        times = steps(args.seconds + 30, thread)
        thread.join()
        took = time.perf_counter() - begun
        rate = loads * sum(os.path.getsize(path) for path in paths) / took / 1e9
        print(json.dumps({"loader": name, "beside": "token loop", "idle": idle, "while_loading": said(times), "loads": loads, "gb_per_s": rate}))


def several(args: argparse.Namespace) -> None:
    """One copy of the model to each of several GPUs at the same time, beside one to one GPU."""
    import headway as hw
    import torch

    by_headway(args)
    nbytes = sum(os.path.getsize(path) for path in args.paths)
    for gpus in (1, args.gpus):
        rates: list[float] = []
        cpus: list[float] = []
        for _ in range(args.rounds + 1):
            def to(number: int) -> None:
                hw.load_safetensors(args.paths, device=f"cuda:{number}", threads=args.threads)

            threads = [threading.Thread(target=to, args=(number,)) for number in range(gpus)]
            begun, cpu = time.perf_counter(), cpu_seconds()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = time.perf_counter() - begun
            rates.append(gpus * nbytes / took / 1e9)
            cpus.append((cpu_seconds() - cpu) / took)
        print(json.dumps({"loader": "headway", "gpus": gpus, "gb_per_s": statistics.median(rates[1:]), "cpus": statistics.median(cpus[1:]), "device": torch.cuda.get_device_name()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--files", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--threads", type=int, help="of headway, for each GPU")
    parser.add_argument("--slot-mib", type=float, help="of headway: bytes of a slot")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--only", default=",".join(LOADERS), help="loaders, with commas between them")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each token loop")
    parser.add_argument("--empty", action="store_true", help="give memory back to the driver between loads")
    parser.add_argument("--quick", action="store_true", help="2 GiB, 2 rounds")
    parser.add_argument("--keep", action="store_true", help="keep the files")
    parser.add_argument("--json", type=Path, help="also write the lines there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--sums", help=argparse.SUPPRESS)
    parser.add_argument("--paths", nargs="*", default=[], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.gib, args.rounds, args.seconds = min(args.gib, 2.0), 2, 2.0
    if args.child == "beside":
        return beside(args)
    if args.child == "several":
        return several(args)
    if args.child:
        return child(args)

    paths = make_files(args.folder, args.gib, args.files)
    sums_file = args.folder / f"headway-weights-sums-{os.getpid()}.json"
    sums_file.write_text(json.dumps(expected(paths)))
    common = ["--device", args.device, "--rounds", str(args.rounds), "--sums", str(sums_file), "--seconds", str(args.seconds), "--only", args.only]
    common += ["--gpus", str(args.gpus), *(["--threads", str(args.threads)] if args.threads else []), *(["--empty"] if args.empty else [])]
    common += [*(["--slot-mib", str(args.slot_mib)] if args.slot_mib else [])]
    children = args.only.split(",") + (["beside"] if args.beside else []) + (["several"] if args.gpus > 1 else [])
    lines: list[dict[str, Any]] = []
    try:
        for name in children:
            command = [sys.executable, __file__, "--child", name, *common, "--paths", *paths]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600)
            found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode != 0:
                found.append({"loader": name, "left_out": f"ended with status {done.returncode}"})
            for line in found:
                lines.append(line)
                show(line)
    finally:
        sums_file.unlink()
        if not args.keep:
            for path in paths:
                os.unlink(path)
    if args.json:
        args.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


def show(line: dict[str, Any]) -> None:
    if "left_out" in line:
        print(f"{line['loader']:<16} left out: {line['left_out']}")
    elif "beside" in line:
        idle, busy = line["idle"], line["while_loading"]
        print(f"{line['loader']:<16} token loop: median {idle['median_us']:.0f} us idle, {busy['median_us']:.0f} while it loads;", end=" ")
        print(f"p99 {idle['p99_us']:.0f}, {busy['p99_us']:.0f}; loads {line['gb_per_s']:.1f} GB/s")
    elif "gpus" in line:
        print(f"{line['loader']:<16} {line['gpus']} GPUs at the same time: {line['gb_per_s']:.1f} GB/s together, {line['cpus']:.1f} CPUs")
    else:
        warm = f"then {line['gb_per_s']:6.1f} GB/s (best {line['best_gb_per_s']:.1f}), {line['cpus']:4.1f} CPUs" if "gb_per_s" in line else ""
        wrong = "" if line["equal"] else "  WRONG BYTES"
        print(f"{line['loader']:<16} first {line['first_gb_per_s']:6.1f} GB/s, {line['first_cpus']:4.1f} CPUs; {warm}{wrong}", flush=True)


if __name__ == "__main__":
    main()
