"""Compiles CUDA C++ to PTX with NVRTC: nvrtc.py LIBNVRTC SOURCE OPTION... writes the PTX to standard output."""

import ctypes
import sys
from pathlib import Path


def text(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    """What nvrtcGet<what> returns, without the closing zero."""
    size = ctypes.c_size_t()
    check(lib, getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    check(lib, getattr(lib, f"nvrtcGet{what}")(program, buffer))
    return buffer.value.decode()


def check(lib: ctypes.CDLL, result: int) -> None:
    if result != 0:
        lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"nvrtc: {lib.nvrtcGetErrorString(result).decode()}")


def main() -> None:
    library, source, *options = sys.argv[1:]
    lib = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    code = Path(source).read_bytes()
    name = Path(source).name.encode()
    check(lib, lib.nvrtcCreateProgram(ctypes.byref(program), code, name, 0, None, None))
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    result = lib.nvrtcCompileProgram(program, len(options), array)
    sys.stderr.write(text(lib, program, "ProgramLog"))
    check(lib, result)
    sys.stdout.write(text(lib, program, "PTX"))


main()
