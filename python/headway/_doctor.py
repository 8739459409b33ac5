"""What this computer has and lacks."""

from __future__ import annotations

import json
from typing import Any

from headway import _native
from headway._units import Time, nanoseconds


def doctor(*, machine: str = "h200-x4", watch: Time = "1 s") -> dict[str, Any]:
    """What `headway doctor` finds: GPUs, driver, limits and scheduling classes, each with a remedy where something is missing.

    Args:
        machine: Machine whose plans must allow the delays that are seen here: a shipped name or a file.
        watch: How long to watch for such delays.
    """
    found: dict[str, Any] = json.loads(_native.doctor(machine, nanoseconds(watch)))
    return found
