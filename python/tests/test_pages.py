"""The Python code of the pages runs as it stands, except for what is marked as needing a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
# Other tutorials are for Rust and the command line.
PAGES = [ROOT / "docs/python.md", *(page for page in TUTORIALS if "```python" in page.read_text())]


def blocks(page: Path) -> list[str]:
    """The blocks of a page's Python code, with empty lines in front so that errors have the page's line."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return ["\n" * text[: block.start(1)].count("\n") + block[1] for block in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    found = blocks(page)
    assert found
    if any("pandas" in block for block in found):
        pytest.importorskip("pandas")
    if any("matplotlib" in block for block in found):
        pytest.importorskip("matplotlib")
    scope: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        exec(compile(block, str(page), "exec"), scope)
