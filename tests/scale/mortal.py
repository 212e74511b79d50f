"""A replica that can be told to die, as one does whose machine is gone, or to fail; and an image that kills."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from talon_ocd.images import Limits
from talon_ocd.scale.serve_replica import Replica, Reply, Upload

DEADLY = "deadly until "
"""Begins the name of an image; a file follows that is written before the process dies, once."""
SURPRISING = "a surprise"
"""Name of an image with which nobody has reckoned."""


@dataclass(frozen=True)
class Deadly:
    """An image of which every process dies that reads it; ``deaths`` gets a letter each time."""

    deaths: Path

    def read(self, source: str, limits: Limits) -> bytes:
        with self.deaths.open("a") as file:
            file.write("x")
        os._exit(1)


class MortalReplica(Replica):
    """Dies of a deadly image, with all that it has in hand; fails on a surprising one."""

    async def encode(self, uploads: Sequence[Upload], limits: Limits) -> Reply:
        for upload in uploads:
            if upload.source == SURPRISING:
                raise RuntimeError("secret inner words")
            if upload.source.startswith(DEADLY):
                written = Path(upload.source.removeprefix(DEADLY))
                if not written.exists():
                    written.touch()
                    os._exit(1)
        return await super().encode(uploads, limits)
