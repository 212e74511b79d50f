"""An error of many processes is told once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import typer
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from talon_ocd.cli.fit import _told_once
from talon_ocd.errors import DataError, TalonError
from talon_ocd.offline import distributed, joined


def member(rank: int, folder: Path) -> None:
    """Fail as one of two processes, in both ways."""
    distributed.FAREWELL = timedelta(seconds=2)
    for alike in (True, False):
        fail(rank, folder, alike)


def fail(rank: int, folder: Path, alike: bool) -> None:
    """Fail, and write down how that ends."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{alike}", rank=rank, world_size=2)
    ended = "well"
    with joined() as processes:
        try:
            with _told_once(processes):
                raise DataError("too few images." if alike else f"process {rank} has bad luck.")
        except (TalonError, typer.Exit) as error:
            ended = type(error).__name__
    (folder / f"{rank}-{alike}.txt").write_text(ended, encoding="utf-8")
    dist.destroy_process_group()


def test_the_first_process_speaks_for_all_that_say_the_same(tmp_path: Path) -> None:
    spawn(member, (tmp_path,), nprocs=2, daemon=True)
    for alike, second in ((True, "Exit"), (False, "DataError")):
        ended = [(tmp_path / f"{rank}-{alike}.txt").read_text(encoding="utf-8") for rank in (0, 1)]
        assert ended == ["DataError", second]
