"""Ray is an extra: nobody loads it by the way, and who needs it is told what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from talon_ocd.images import vectors
from talon_ocd.scale import extra
from tests.cli.running import refused


def test_without_ray_the_command_says_what_to_install(
    model: Path, incoming_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    out, ray = ("-m", model, "-o"), ("--engine", "ray")
    for message, needs in (
        (refused("discover", incoming_folder, *out, tmp_path / "out", *ray), extra.STREAM_NEEDS),
        (refused("discover", "s3://birds/2026", *out, tmp_path / "out", *ray), extra.DATA_NEEDS),
        (refused("embed", incoming_folder, *out, tmp_path / "out.parquet", *ray), extra.DATA_NEEDS),
        (refused("serve", "-m", model, "--stream", tmp_path / "stream", *ray), extra.SERVE_NEEDS),
    ):
        assert f"needs {', '.join(needs)}; " in message and "pip install 'talon-ocd[ray]'" in message


def test_an_address_needs_pyarrow_alone(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None)  # Ray is not asked for
    monkeypatch.setattr(vectors, "find_spec", lambda name: None)
    message = refused("discover", "s3://birds/2026", "-m", model, "-o", tmp_path / "out")
    assert "needs pyarrow; " in message and "pip install 'talon-ocd[parquet]'" in message


def test_a_ray_of_our_own_asks_for_a_token() -> None:
    """One that is there already keeps its own ways; none is started by the way. It is settled for a whole process."""
    pytest.importorskip("ray", reason="a Ray of our own needs the extra ray")
    code = (
        "import os; from talon_ocd.cli.engines import Engine, ray_settings\n"
        "for address in ('auto', None):\n"
        "    ray_settings(Engine.RAY, address, 1, 0.0, 'exact', 2)\n"
        "    print(os.environ.get('RAY_AUTH_MODE'), len(os.environ.get('RAY_AUTH_TOKEN', '')))\n"
        "print(os.environ['RAY_ENABLE_AUTO_CONNECT'])"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=plain)
    assert done.stdout.split() == ["None", "0", "token", "64", "0"]
