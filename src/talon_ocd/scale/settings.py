"""How a stream is spread over processes (layer: scale)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from talon_ocd.errors import ConfigError, nearest

Mode = Literal["exact", "async"]
MODES = ("exact", "async")
MOST_RETRIES = 20
"""Times that a piece of work is tried again when the process that did it dies."""


@dataclass(frozen=True)
class Wanted:
    """What the owner of a stream needs of its encoders.

    Attributes:
        features: run the head.
        hidden: give trunk outputs, too: to learn from, or to run the head on.
        thumbnails: give small pictures, too.
    """

    features: bool
    hidden: bool
    thumbnails: bool


@dataclass(frozen=True)
class RaySettings:
    """What ``--engine ray`` takes."""

    address: str | None = None
    """A running Ray that this machine is a part of (``auto``, ``host:6379``); ``None`` starts one here."""
    encoders: int | None = None
    """Processes that encode; ``None``: as many as there are CPUs (or shares of GPUs)."""
    gpus_per_encoder: float = 0.0
    """GPUs of an encoder, e.g. 0.5 if two share one; 0: encoders compute on the CPU."""
    mode: Mode = "exact"
    """``exact``: the answers of one process. ``async``: features may be ``staleness`` head versions old."""
    staleness: int = 2
    """Head versions by which a feature may be behind in mode ``async``; older ones are computed anew."""
    threads: int = 1
    """Threads that torch uses in an encoder, and in the owner."""
    least_encoders: int | None = None
    """A service runs so many while little comes, and up to ``encoders`` under load; ``None``: always ``encoders``."""
    read_ahead: bool = False
    """Let Ray Data read files ahead of the encoders, as it reads object stores: for disks that answer late."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"--mode {self.mode!r} is not known; use exact or async.{nearest(self.mode, MODES)}")
        if self.encoders is not None and self.encoders < 1:
            raise ConfigError(f"--encoders {self.encoders}: at least 1 is needed.")
        if self.least_encoders is not None and not 1 <= self.least_encoders <= (self.encoders or 0):
            raise ConfigError(
                f"--encoders {self.least_encoders}-{self.encoders}: give the fewest, at least 1, and then the most."
            )
        if self.gpus_per_encoder < 0:
            raise ConfigError(f"--gpus-per-encoder {self.gpus_per_encoder:g}: give 0 (none) or more.")
        if self.staleness < 0:
            raise ConfigError(f"--staleness {self.staleness}: give 0 (no feature may be older than the head) or more.")
        if self.threads < 1:
            raise ConfigError(f"threads={self.threads}: at least 1 is needed.")

    @property
    def cpus_per_encoder(self) -> int:
        """CPUs that an encoder reserves: none if it has GPUs, which are what is counted then."""
        return 0 if self.gpus_per_encoder else 1

    def wanted(self, adapt: Collection[str], lasting: bool) -> Wanted:
        """Say what encoders shall give to an owner: in mode ``exact`` one that learns from the head runs it itself."""
        learns, stale = "encoder" in adapt, self.mode == "async"
        if learns and stale and lasting:
            raise ConfigError(
                "--mode async with an encoder that adapts keeps no journal: answers of an older head can't be learned "
                "again after a restart. Use --mode exact, or leave --stream out."
            )
        return Wanted(features=stale or not learns, hidden=learns, thumbnails=lasting)
