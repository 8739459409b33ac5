"""The build backend: maturin's, after the program `headway` and the library for guests were built beside the package.

`-C build-args="--profile dev"` builds all three in that profile of cargo.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import get_requires_for_build_editable as get_requires_for_build_editable
from maturin import get_requires_for_build_sdist as get_requires_for_build_sdist
from maturin import get_requires_for_build_wheel as get_requires_for_build_wheel
from maturin import prepare_metadata_for_build_wheel as prepare_metadata_for_build_wheel

HERE = Path(__file__).resolve().parent
PROGRAMS = ["headway", "libheadway_preload.so"]
Settings = Mapping[str, Any] | None


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """The wheel's file name in `wheel_directory`."""
    put_programs(config_settings)
    return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """The file name of a wheel in `wheel_directory` that points to this folder."""
    put_programs(config_settings)
    return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """There is none."""
    raise NotImplementedError("the package is built from a clone of the repository: pip install ./python")


def put_programs(config_settings: Settings) -> None:
    """Builds the program and the library for guests into `headway/_programs`."""
    given = (config_settings or {}).get("build-args", "")
    words = shlex.split(given) if isinstance(given, str) else list(given)
    profile = words[words.index("--profile") + 1] if "--profile" in words else "release"
    cargo = os.environ.get("CARGO", "cargo")
    if shutil.which(cargo) is None:
        raise SystemExit("headway is built from Rust sources, and there is no `cargo`; install Rust from https://rustup.rs")
    # With the extension in the same call, what all three depend on is built with the same features, and once.
    packages = ["-p", "headway-cli", "-p", "headway-preload", "-p", "headway-python"]
    subprocess.run([cargo, "build", "--profile", profile, *packages], cwd=HERE.parent, check=True)
    metadata = subprocess.run(
        [cargo, "metadata", "--no-deps", "--format-version", "1"], cwd=HERE, check=True, stdout=subprocess.PIPE
    )
    built = Path(json.loads(metadata.stdout)["target_directory"]) / ("debug" if profile == "dev" else profile)
    folder = HERE / "headway" / "_programs"
    folder.mkdir(exist_ok=True)
    for name in PROGRAMS:
        # Another file, as the old one may be running.
        (folder / name).unlink(missing_ok=True)
        shutil.copy2(built / name, folder / name)
