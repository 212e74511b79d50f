"""``kill -9`` at random moments; ``benchmarks/kills.py`` does it 300 times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_streams_end_with_the_ids_of_one_that_nobody_touched() -> None:
    command = [sys.executable, str(SCRIPT), "--kills", "6", "--in-a-row", "1", "5", "--images", "96"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["in_a_row"] for result in results] == [1, 1, 1, 5, 5, 5]
    assert all(result["different"] == 0 and result["kills"] >= 2 for result in results)
    assert sum(result["met_it_alive"] for result in results) > 0
