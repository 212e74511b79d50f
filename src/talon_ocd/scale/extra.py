"""Is Ray there? (layer: scale)."""

from __future__ import annotations

from importlib.util import find_spec

from talon_ocd.errors import ConfigError

NEEDED = ("ray",)
"""Modules of the extra ``ray``."""


def check_extra(what: str) -> None:
    """Say what to install if ``what`` (an option, a command) needs Ray and there is none."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}; install it with: pip install 'talon-ocd[ray]'")
