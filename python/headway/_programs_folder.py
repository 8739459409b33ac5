"""Where the wheel has the program `headway` and the library for guests."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent / "_programs"
