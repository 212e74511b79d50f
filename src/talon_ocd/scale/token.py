"""A token for a Ray of our own (layer: scale).

Ray listens on all interfaces and runs what it is told. Whether it asks for a token is settled when it is imported, so
that this module does not import it and must be asked before.
"""

from __future__ import annotations

import os
import secrets
import sys

MODE, TOKEN, TOKEN_FILE = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Variables that Ray reads."""


def demand_token() -> None:
    """Let a Ray that this process will start refuse everybody else; what people have set stays as it is."""
    if "ray" in sys.modules or MODE in os.environ:
        return
    os.environ[MODE] = "token"
    if not (TOKEN in os.environ or TOKEN_FILE in os.environ):
        os.environ[TOKEN] = secrets.token_hex(32)
