"""Is Ray there? (layer: scale)."""

from __future__ import annotations

from importlib.util import find_spec

from talon_ocd.errors import ConfigError


def check_extra(what: str) -> None:
    """Say what to install if ``what`` (an option, a command) needs Ray and there is none."""
    if find_spec("ray") is None:
        raise ConfigError(f"{what} needs ray; install it with: pip install 'talon-ocd[ray]'")
