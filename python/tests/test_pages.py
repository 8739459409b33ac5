"""The code and the commands of the pages run as they stand. What is marked as needing a GPU runs where PyTorch has one."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fake_gpu import Driver

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
# Other tutorials are for Rust and the command line.
PAGES = [ROOT / "docs/python.md", *(page for page in TUTORIALS if "```python" in page.read_text())]

# The longest measures a GPU.
COMMANDS_SECONDS_MAX = 600


@dataclass
class Block:
    """What stands between two fences.

    Attributes:
        kind: `python`, `sh`, or `output`: what the block before it prints, where `...` is any text.
        gpu: Whether it is marked as needing a GPU.
        text: With empty lines in front so that errors have the page's line.
    """

    kind: str
    gpu: bool
    text: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in re.finditer(r"^```(python|sh|output)( gpu)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], bool(found[2]), "\n" * text[: found.start(3)].count("\n") + found[3])


def has_gpu() -> bool:
    # Run alone, as `docs/testing.md` says, the pages have the GPU.
    if Driver.is_used:
        return False
    try:
        import torch  # pyright: ignore
    except ModuleNotFoundError:
        return False
    return bool(torch.cuda.is_available())  # pyright: ignore


def make_weights() -> None:
    """Writes the files that `python.md` loads."""
    import torch  # pyright: ignore
    from safetensors.torch import save_file  # pyright: ignore

    for name in ("model", "model-1", "model-2"):
        save_file({f"{name}.weight": torch.ones(4)}, f"{name}.safetensors")  # pyright: ignore


def run_python(code: str, page: Path, scope: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(page), "exec"), scope)
    return printed.getvalue()


def run_commands(commands: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    shell = ["sh", "-e", "-c", commands]
    return subprocess.run(shell, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=COMMANDS_SECONDS_MAX).stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    found = list(blocks(page))
    assert found
    for package in ("pandas", "matplotlib"):
        if any(package in block.text for block in found):
            pytest.importorskip(package)
    gpu = has_gpu()
    if gpu and page.name == "python.md":
        make_weights()
        run_commands("headway measure --quick")
    scope: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in found:
        if block.gpu and not gpu:
            if block.kind == "python":
                compile(block.text, str(page), "exec")
        elif block.kind == "python":
            printed = run_python(block.text, page, scope)
        elif block.kind == "sh":
            printed = run_commands(block.text)
        else:
            shown = block.text.strip()
            pattern = re.escape(shown).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"{page.name} shows\n{shown}\nand it printed\n{printed}"
