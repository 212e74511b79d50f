"""What a simulation of many encoders and few owners is told, and what it tells (layer: scale)."""

from __future__ import annotations

from dataclasses import dataclass, field

from talon_ocd.errors import ConfigError

MODES = ("exact", "barrier", "async")


@dataclass(frozen=True)
class Pool:
    """What is simulated. Times are for one batch, unless they say otherwise."""

    encoders: int = 64
    """Processes that encode."""
    batch: int = 256
    """Images of a batch."""
    batches: int = 2000
    """How long the stream is."""
    warm_up: int = 0
    """Batches at its start, while queues fill, that don't count for how busy owners are."""
    trunk_seconds: float = 1.0
    """An encoder decodes a batch and runs the trunk on it."""
    head_seconds: float = 0.0
    """The head on a batch: encoders run it, or, in mode ``exact``, the owner."""
    owner_seconds: float = 0.02
    """The owner decides a batch and writes it down."""
    adapt_seconds: float = 0.0
    """An adaptation, on top of it."""
    adapt_every: int = 1
    """Batches between two adaptations."""
    broadcast_seconds: float = 0.0
    """From an adaptation until encoders have the new head."""
    mode: str = "exact"
    """``exact``: the owner runs the head, nobody waits. ``barrier``: encoders wait for the head that one process would
    have had. ``async``: they take the newest head there is when they begin; if it is too old by the time the owner
    decides, the owner runs the head anew."""
    staleness: int = 2
    """Head versions by which a feature may be behind in mode ``async``."""
    jitter: float = 0.0
    """Standard deviation of an encoder's times, as a share of them (they are log-normal)."""
    stragglers: float = 0.0
    """Share of batches that take ``straggle`` times as long."""
    straggle: float = 5.0
    """How much longer."""
    failures: float = 0.0
    """Share of batches at which the encoder dies; the batch is done again by the one that takes its place."""
    restart_seconds: float = 10.0
    """Until there is one in its place."""
    at_an_encoder: int = 3
    """Batches that an encoder may have in front of it, the one at work included."""
    at_the_owner: int = 4
    """Batches, besides those that encoders may have, that may be under way."""
    arrivals: float | None = None
    """Batches a second that come, at random times; ``None``: an archive, there always is a next one."""
    shares: tuple[float, ...] = (1.0,)
    """What each owner gets of the features; one owner has them all."""
    boundary: float = 0.0
    """Share of features near the edge of a region: another owner, drawn by its share, is asked for candidates, too."""
    exchange_seconds: float = 0.0
    """For a question to another owner and its reply, on top of its work."""
    seed: int = 0

    def __post_init__(self) -> None:
        _refuse(self, "mode", self.mode in MODES, "exact, barrier or async")
        for name in ("encoders", "batch", "batches", "adapt_every", "at_an_encoder"):
            _refuse(self, name, getattr(self, name) >= 1, "1 or more")
        for name in ("stragglers", "boundary"):
            _refuse(self, name, 0.0 <= getattr(self, name) <= 1.0, "between 0 and 1")
        _refuse(self, "warm_up", 0 <= self.warm_up < self.batches, "0 or more, and less than there are batches")
        _refuse(self, "failures", 0.0 <= self.failures < 1.0, "0 or more, and below 1")
        names = ("trunk_seconds", "head_seconds", "owner_seconds", "adapt_seconds", "broadcast_seconds")
        for name in (*names, "exchange_seconds", "restart_seconds", "jitter", "staleness", "at_the_owner"):
            _refuse(self, name, getattr(self, name) >= 0, "0 or more")
        _refuse(self, "arrivals", self.arrivals is None or self.arrivals > 0, "None or above 0")
        whole = bool(self.shares) and min(self.shares) > 0.0 and abs(sum(self.shares) - 1.0) < 1e-9
        _refuse(self, "shares", whole, "one above 0 for each owner, 1 together")
        _refuse(self, "shares", self.mode == "exact" or len(self.shares) == 1, "(1,) unless the mode is exact")

    @property
    def most_under_way(self) -> int:
        """Batches that may be between the source and their answers."""
        return self.at_an_encoder * self.encoders + self.at_the_owner


@dataclass
class Outcome:
    """What came of it; queues are counted in batches."""

    seconds: float = 0.0
    """From the start to the last answer."""
    images_a_second: float = 0.0
    """Over all that time, the filling of the pool at the start included."""
    owner_busy: tuple[float, ...] = ()
    """Share of the time, from the first batch that counts to the last answer, that each one worked."""
    encoder_busy: float = 0.0
    """Share of the time that encoders worked, work that was lost included."""
    most_under_way: int = 0
    most_at_an_encoder: int = 0
    most_waiting: int = 0
    """Encoded, and not yet answered."""
    mean_under_way: float = 0.0
    mean_latency: float = 0.0
    """Seconds from when a batch came (of an archive: was handed to an encoder) to its answers."""
    latency: dict[str, float] = field(default_factory=dict)
    """Quantiles of the same: ``p50``, ``p99`` and ``max``."""
    mean_at_source: float = 0.0
    """Seconds that a batch waited before there was room for it."""
    redone: int = 0
    most_behind: int = 0
    """Head versions, in mode async, of a feature that decided."""
    encoded_anew: int = 0
    """Batches that were further behind than they may, so that the owner ran the head."""


def _refuse(pool: Pool, name: str, fine: bool, wanted: str) -> None:
    if not fine:
        raise ConfigError(f"{name}={getattr(pool, name)!r} can't be simulated; give {wanted}.")
