"""A command starts without what only some commands need: extras, and what takes long to import."""

import subprocess
import sys

ROOMS = "talon_ocd.cli.main, talon_ocd.cli.engines, talon_ocd.scale, talon_ocd.service, talon_ocd.backbones"
HEAVY = {
    "transformers", "diffusers", "ray", "pyarrow", "fastapi", "starlette", "uvicorn", "prometheus_client",
    "sklearn", "pandas", "matplotlib",
}  # fmt: skip


def test_nothing_is_loaded_by_the_way() -> None:
    code = f"import sys, {ROOMS}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
