"""Ray is started when we say so, and never by the way (layer: scale).

Whoever asks Ray for anything while there is none starts one. A thread that outlives its Ray would do so, and a command
would start another Ray while it ends. Whether Ray does this is settled when it is imported, so that this module does
not import it and must be asked before.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "RAY_ENABLE_AUTO_CONNECT"
"""What Ray reads."""


def start_only_when_told() -> None:
    """Let no thread of this process start a Ray by the way; what people have set stays as it is."""
    if "ray" not in sys.modules:
        os.environ.setdefault(VARIABLE, "0")


def starts_by_the_way() -> bool:
    """Return whether asking Ray for something starts one where there is none."""
    return os.environ.get(VARIABLE) != "0"
