"""``talon bench``: speed on this machine, as ratios taken in one run."""

from __future__ import annotations

import typer

app = typer.Typer(help="Benchmarks: ratios taken in one run.", no_args_is_help=True)
