"""Is Ray there, with what each use of it needs? (layer: scale)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from talon_ocd.errors import ConfigError

STREAM_NEEDS = ("ray",)
DATA_NEEDS = ("ray", "pyarrow", "pandas")
"""What ``ray.data`` imports; a Ray that was installed without it has no such thing."""
SERVE_NEEDS = ("ray", "fastapi", "grpc", "starlette", "uvicorn", "watchfiles")
"""What ``ray.serve`` imports."""


def check_extra(what: str, needs: Sequence[str]) -> None:
    """Say what to install if ``what`` (an option, a command) needs modules of the extra ``ray`` that are missing."""
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}; install it with: pip install 'talon-ocd[ray]'")
