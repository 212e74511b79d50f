"""Ray is an extra: nobody loads it by the way, and who needs it is told what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from talon_ocd.scale import extra
from tests.cli.running import refused


def test_without_ray_the_command_says_what_to_install(
    model: Path, incoming_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extra, "NEEDED", ("a_package_that_is_not_there",))
    words = ("-m", model, "-o", tmp_path / "out")
    for message in (
        refused("discover", incoming_folder, *words, "--engine", "ray"),
        refused("discover", "s3://birds/2026", *words),
    ):
        assert "needs a_package_that_is_not_there" in message and "pip install 'talon-ocd[ray]'" in message


def test_nothing_else_loads_ray() -> None:
    code = (
        "import sys; import talon_ocd, talon_ocd.cli.main, talon_ocd.cli.engines, talon_ocd.scale; "
        "print({'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
