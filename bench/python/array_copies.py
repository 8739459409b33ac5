"""Copies of `headway.copy` beside those of PyTorch, CuPy and JAX, in one run on a GPU. The bytes of every copy are compared.

    python bench/python/array_copies.py [--gib 1] [--rounds 10] [--small 2000]

A package that is not installed is left out. The table is for people, and the last line is the same as JSON: times in nanoseconds.
CPUs are CPU time of the process divided by the time of the copies. JAX has its memory when it asks for it (XLA_PYTHON_CLIENT_PREALLOCATE).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

import headway as hw

Row = dict[str, Any]


def optional(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        print(f"left out: {name}: {error}", file=sys.stderr)
        return None


torch, cupy, jax = optional("torch"), optional("cupy"), optional("jax")
rows: list[Row] = []


def measure(name: str, nbytes: int, rounds: int, copy: Callable[[], Any], same: Callable[[Any], bool]) -> Row:
    """Times `copy`, each with an answer that `same` compares; the first two warm up."""
    for _ in range(2):
        assert same(copy()), f"{name}: wrong bytes"
    times: list[int] = []
    cpu = 0
    for _ in range(rounds):
        begun, cpu_begun = time.perf_counter_ns(), time.process_time_ns()
        answer = copy()
        took, cpu_took = time.perf_counter_ns() - begun, time.process_time_ns() - cpu_begun
        times.append(took)
        cpu += cpu_took
        assert same(answer), f"{name}: wrong bytes"
        del answer
    times.sort()
    row = {
        "what": name,
        "bytes": nbytes,
        "n": rounds,
        "min_ns": times[0],
        "median_ns": int(statistics.median(times)),
        "max_ns": times[-1],
        "gb_per_s": round(nbytes / statistics.median(times), 2),
        "cpus": round(cpu / sum(times), 2),
    }
    rows.append(row)
    return row


def large(nbytes: int, rounds: int) -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(0, 2**32, nbytes // 4, dtype=np.uint32).view(np.float32)
    a_bits = a.view(np.uint32)
    b = np.zeros_like(a)

    def equals(host: Any) -> bool:
        return bool(np.array_equal(np.asarray(host).view(np.uint32), a_bits))

    t = torch.empty(a.shape, dtype=torch.float32, device="cuda")
    expected = torch.from_numpy(a_bits.view(np.int32)).to("cuda")

    def on_gpu(tensor: Any) -> bool:
        return bool(torch.equal(tensor.view(torch.int32), expected))

    def in_hw() -> Any:
        hw.copy(t, a)
        return t

    def in_to() -> Any:
        moved = torch.from_numpy(a).to("cuda")
        torch.cuda.synchronize()
        return moved

    def in_copy() -> Any:
        t.copy_(torch.from_numpy(a))
        torch.cuda.synchronize()
        return t

    side = torch.cuda.Stream()

    def in_stream() -> Any:
        hw.copy(t, a, stream=side).wait()
        return t

    pinned = hw.pinned_empty(a.shape, np.float32)
    pinned[:] = a

    def in_pinned() -> Any:
        hw.copy(t, pinned)
        return t

    def then_wipe(same: Callable[[Any], bool], wipe: Callable[[], Any]) -> Callable[[Any], bool]:
        def check(answer: Any) -> bool:
            right = same(answer)
            wipe()
            torch.cuda.synchronize()
            return right

        return check

    gpu = then_wipe(on_gpu, lambda: t.zero_())
    measure("in: hw.copy(tensor, array)", nbytes, rounds, in_hw, gpu)
    measure("in: hw.copy(tensor, array, stream).wait()", nbytes, rounds, in_stream, gpu)
    measure("in: hw.copy(tensor, pinned_empty)", nbytes, rounds, in_pinned, gpu)
    measure("in: torch.from_numpy(a).to('cuda')", nbytes, rounds, in_to, on_gpu)
    measure("in: tensor.copy_(from_numpy(a))", nbytes, rounds, in_copy, gpu)

    t.copy_(torch.from_numpy(a))
    torch.cuda.synchronize()

    def out_hw() -> Any:
        hw.copy(b, t)
        return b

    def out_fresh() -> Any:
        fresh = np.empty_like(a)
        hw.copy(fresh, t)
        return fresh

    def out_stream() -> Any:
        hw.copy(b, t, stream=side).wait()
        return b

    def out_pinned() -> Any:
        hw.copy(pinned, t)
        return pinned

    host = then_wipe(equals, lambda: b.fill(0))
    measure("out: hw.copy(array, tensor)", nbytes, rounds, out_hw, host)
    measure("out: hw.copy(np.empty, tensor)", nbytes, rounds, out_fresh, equals)
    measure("out: hw.copy(array, tensor, stream).wait()", nbytes, rounds, out_stream, host)
    measure("out: hw.copy(pinned_empty, tensor)", nbytes, rounds, out_pinned, then_wipe(equals, lambda: pinned.fill(0)))
    measure("out: tensor.cpu()", nbytes, rounds, lambda: t.cpu().numpy(), equals)
    from_b = torch.from_numpy(b)

    def out_copy() -> Any:
        from_b.copy_(t)
        return b

    measure("out: from_numpy(array).copy_(tensor)", nbytes, rounds, out_copy, host)

    if cupy is not None:
        x = cupy.empty(a.shape, cupy.float32)
        x_expected = cupy.asarray(a_bits)

        def in_cupy() -> Any:
            made = cupy.asarray(a)
            cupy.cuda.Device().synchronize()
            return made

        def in_cupy_hw() -> Any:
            hw.copy(x, a)
            return x

        def on_cupy(array: Any) -> bool:
            return bool((array.view(cupy.uint32) == x_expected).all())

        measure("in: cupy.asarray(a)", nbytes, rounds, in_cupy, on_cupy)
        measure("in: hw.copy(cupy array, array)", nbytes, rounds, in_cupy_hw, on_cupy)
        measure("out: cupy.asnumpy(x)", nbytes, rounds, lambda: cupy.asnumpy(x), equals)

        def out_cupy_hw() -> Any:
            hw.copy(b, x)
            return b

        measure("out: hw.copy(array, cupy array)", nbytes, rounds, out_cupy_hw, host)
        del x, x_expected
        cupy.get_default_memory_pool().free_all_blocks()

    if jax is not None and any(device.platform == "gpu" for device in jax.devices()):

        def in_jax() -> Any:
            return jax.device_put(a).block_until_ready()

        def on_jax(array: Any) -> bool:
            back = np.empty_like(a)
            hw.copy(back, array)
            return equals(back)

        measure("in: jax.device_put(a)", nbytes, rounds, in_jax, on_jax)
        j = jax.device_put(a).block_until_ready()

        # A JAX array remembers what it was copied to; each round has another one.
        def again() -> Any:
            return jax.numpy.copy(j).block_until_ready()

        arrays = [again() for _ in range(min(rounds, 4) + 2)]
        left = list(arrays)
        measure("out: jax.device_get(j)", nbytes, min(rounds, 4), lambda: jax.device_get(left.pop()), equals)
        del arrays

        def out_jax_hw() -> Any:
            hw.copy(b, j)
            return b

        def out_jax_fresh() -> Any:
            fresh = np.empty_like(a)
            hw.copy(fresh, j)
            return fresh

        measure("out: hw.copy(array, jax array)", nbytes, rounds, out_jax_hw, host)
        measure("out: hw.copy(np.empty, jax array)", nbytes, rounds, out_jax_fresh, equals)


def small(rounds: int) -> None:
    """Copies of few bytes: the whole call, what of it is Python's part (all but the library's call), and PyTorch's copies."""
    for nbytes in (4, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10):
        a = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
        b = np.zeros_like(a)
        t = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        pinned = torch.from_numpy(a.copy()).pin_memory()
        ours_pinned = hw.pinned_empty(nbytes, np.uint8)
        ours_pinned[:] = a
        pageable = torch.from_numpy(a)
        calls: list[tuple[str, Callable[[], Any], Callable[[], bool]]] = [
            ("in hw.copy", lambda: hw.copy(t, a), lambda: t.cpu().numpy().tobytes() == a.tobytes()),
            ("in hw.copy pinned", lambda: hw.copy(t, ours_pinned), lambda: t.cpu().numpy().tobytes() == a.tobytes()),
            ("in torch copy_", lambda: t.copy_(pageable), lambda: t.cpu().numpy().tobytes() == a.tobytes()),
            ("in torch copy_ pinned", lambda: t.copy_(pinned), lambda: t.cpu().numpy().tobytes() == a.tobytes()),
            ("out hw.copy", lambda: hw.copy(b, t), lambda: b.tobytes() == a.tobytes()),
            ("out hw.copy pinned", lambda: hw.copy(ours_pinned, t), lambda: ours_pinned.tobytes() == a.tobytes()),
            ("out torch copy_", lambda: torch.from_numpy(b).copy_(t), lambda: b.tobytes() == a.tobytes()),
            ("out torch copy_ pinned", lambda: pinned.copy_(t), lambda: pinned.numpy().tobytes() == a.tobytes()),
        ]
        for name, call, same in calls:
            for _ in range(50):
                call()
            whole: list[int] = []
            python: list[int] = []
            for _ in range(rounds):
                begun = time.perf_counter_ns()
                answer = call()
                took = time.perf_counter_ns() - begun
                whole.append(took)
                if isinstance(answer, hw.Ticket):
                    assert answer.took_ns is not None
                    python.append(took - answer.took_ns)
            torch.cuda.synchronize()
            assert same(), f"{name}: wrong bytes"
            whole.sort()
            rows.append(
                {
                    "what": f"{name}, {nbytes} B",
                    "bytes": nbytes,
                    "n": rounds,
                    "min_ns": whole[0],
                    "median_ns": int(statistics.median(whole)),
                    "p99_ns": whole[rounds * 99 // 100],
                    "max_ns": whole[-1],
                    "python_ns": int(statistics.median(python)) if python else None,
                }
            )


def imported() -> None:
    """How long `import headway` takes in a new interpreter, without what the interpreter itself takes."""

    def run(code: str) -> int:
        begun = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter_ns() - begun

    nothing = statistics.median(run("pass") for _ in range(7))
    whole = statistics.median(run("import headway") for _ in range(7))
    rows.append({"what": "import headway", "n": 7, "median_ns": int(whole - nothing)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of large copies, in GiB")
    parser.add_argument("--rounds", type=int, default=10, help="large copies of each kind")
    parser.add_argument("--small", type=int, default=2000, help="small copies of each kind")
    args = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        raise SystemExit("this needs PyTorch with a GPU")
    imported()
    large(int(args.gib * (1 << 30)) // 4 * 4, args.rounds)
    small(args.small)
    for row in rows:
        figures = f"{row['median_ns'] / 1e3:>12.2f} us"
        if "gb_per_s" in row:
            figures += f"  {row['gb_per_s']:>7.2f} GB/s  {row['cpus']:>5.2f} CPUs  n {row['n']}"
        elif "p99_ns" in row:
            figures += f"  p99 {row['p99_ns'] / 1e3:>8.2f} us"
            figures += f"  of it Python {row['python_ns'] / 1e3:.2f} us" if row["python_ns"] is not None else ""
        print(f"{row['what']:<46}{figures}")
    versions = {package.__name__: package.__version__ for package in (torch, cupy, jax, np, hw) if package is not None}
    about = {"gpu": torch.cuda.get_device_name(), "python": sys.version.split()[0], "cpus": len(os.sched_getaffinity(0))}
    print(json.dumps({**about, "versions": versions, "commit": hw.__commit__, "rows": rows}))


if __name__ == "__main__":
    main()
