"""The program `headway` of this package: becomes it, but for `headway ray`, which needs Python."""

from __future__ import annotations

import os
import sys

from headway._programs_folder import FOLDER


def main() -> None:
    """Becomes the packaged program, with the same arguments."""
    if sys.argv[1:2] == ["ray"]:
        from headway._ray_command import main as ray_command

        sys.exit(ray_command(sys.argv[2:]))
    program = FOLDER / "headway"
    try:
        os.execv(program, ["headway", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"error: cannot start `{program}`: {error.strerror}\n  help: install the package again: `pip install ./python`")


if __name__ == "__main__":
    main()
