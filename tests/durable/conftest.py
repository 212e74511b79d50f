from pathlib import Path

import pytest

from tests.durable.worlds import BOTH, Open, fitted


@pytest.fixture(params=["evidence", "cosine, encoder"])
def open_stream(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open the same folder again and again: by evidence, or by a threshold with both updates."""
    options = {"threshold": 0.7, "adapt": BOTH} if "encoder" in request.param else {}
    return lambda folder="stream", **more: fitted().stream(tmp_path / folder, **{**options, **more})
