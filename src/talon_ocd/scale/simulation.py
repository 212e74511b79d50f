"""A pool of encoders in front of one owner or several, simulated event by event (layer: scale).

No images and no Ray: batches are numbers, work is time. It answers what a cluster would do (how busy is the owner, how
long do answers take, are queues bounded) from costs that were measured on one machine. Time is in seconds; the same
seed gives the same run.

The rules are those of ``flow.py``: batches are handed to the encoder with the least to do, so many may be under way
and no more, and owners answer in the order of the stream, however late a batch is encoded. Several owners have a region
of the feature space each; every one of them takes its part of every batch, in the same order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from talon_ocd.scale.pool import Outcome, Pool


def simulate(pool: Pool) -> Outcome:
    """Run a pool to its end.

    >>> outcome = simulate(Pool(encoders=2, batch=10, batches=100, trunk_seconds=1.0, owner_seconds=0.1))
    >>> round(outcome.images_a_second)  # two encoders of ten images a second; the owner could take a hundred
    20
    """
    return _Run(pool).outcome()


@dataclass
class _Encoder:
    """Batches in front of an encoder, and those whose head has to wait; ``held`` are all that it has not delivered."""

    trunks: deque[int] = field(default_factory=deque)
    heads: list[int] = field(default_factory=list)
    held: int = 0
    working: bool = False
    busy: float = 0.0


@dataclass
class _Owner:
    """Its share of the features, and the batch whose turn it is."""

    share: float
    position: int = 0
    working: bool = False
    busy: float = 0.0


class _Run:
    """All that changes during a run."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.random = pool, np.random.default_rng(pool.seed)
        self.now, self._events, self._number = 0.0, list[tuple[float, int, Callable[[], None]]](), 0
        self.encoders = [_Encoder() for _ in range(pool.encoders)]
        self.owners = [_Owner(share) for share in pool.shares]
        self.came = np.zeros(pool.batches)
        if pool.arrivals is not None:
            self.came = np.cumsum(self.random.exponential(1.0 / pool.arrivals, pool.batches))
        self.begun, self.ended = np.zeros(pool.batches), np.zeros(pool.batches)
        self.encoded = np.zeros(pool.batches, bool)
        self.version = np.zeros(pool.batches, np.int64)
        self.parts = [len(pool.shares)] * pool.batches
        self.known_at = [0.0]
        self.next = self.under_way = self.waiting = 0
        self.area, self.counted_at, self.warm_since = 0.0, 0.0, np.inf
        self.found = Outcome()

    def outcome(self) -> Outcome:
        """Let everything happen."""
        for came in self.came.tolist() if self.pool.arrivals is not None else [0.0]:
            self._at(came, self._feed)
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        return self._summary()

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        self._number += 1  # what is due at the same time happens in the order in which it was said
        heapq.heappush(self._events, (seconds, self._number, happen))

    # Source

    def _feed(self) -> None:
        """Hand out batches as long as there is room."""
        pool = self.pool
        while self.next < pool.batches and self.came[self.next] <= self.now and self.under_way < pool.most_under_way:
            encoder = min(self.encoders, key=lambda one: one.held)
            if encoder.held == pool.at_an_encoder:
                return
            self.begun[self.next] = self.now
            encoder.trunks.append(self.next)
            encoder.held += 1
            self._count(1)
            self.next += 1
            self.found.most_at_an_encoder = max(self.found.most_at_an_encoder, encoder.held)
            self._work(encoder)

    # Encoders

    def _work(self, encoder: _Encoder) -> None:
        """Let an encoder take up what is most urgent: a head that may be run, else a trunk."""
        if encoder.working:
            return
        pool, newest = self.pool, self._newest()
        ready = [batch for batch in encoder.heads if batch // pool.adapt_every <= newest]
        if ready:
            batch = min(ready)
            encoder.heads.remove(batch)
            self._spend(encoder, pool.head_seconds, lambda: self._deliver(encoder, batch))
        elif encoder.trunks:
            batch = encoder.trunks.popleft()
            self.version[batch] = newest
            if pool.mode == "barrier":
                self._spend(encoder, pool.trunk_seconds, lambda: encoder.heads.append(batch))
            else:
                both = pool.trunk_seconds + (pool.head_seconds if pool.mode == "async" else 0.0)
                self._spend(encoder, both, lambda: self._deliver(encoder, batch))

    def _spend(self, encoder: _Encoder, mean: float, then: Callable[[], None]) -> None:
        """Let an encoder work; one that dies is replaced and begins anew."""
        encoder.working = True
        needed = self._drawn(mean)
        if self.pool.failures and self.random.random() < self.pool.failures:
            lost = needed * self.random.random()
            encoder.busy += lost
            self.found.redone += 1
            self._at(self.now + lost + self.pool.restart_seconds, lambda: self._spend(encoder, mean, then))
            return
        encoder.busy += needed

        def done() -> None:
            encoder.working = False
            then()
            self._work(encoder)

        self._at(self.now + needed, done)

    def _drawn(self, mean: float) -> float:
        """Return how long it takes this time."""
        pool, drawn = self.pool, mean
        if pool.jitter:
            spread = np.log1p(pool.jitter**2)
            drawn *= float(self.random.lognormal(-spread / 2.0, np.sqrt(spread)))
        if pool.stragglers and self.random.random() < pool.stragglers:
            drawn *= pool.straggle
        return drawn

    def _deliver(self, encoder: _Encoder, batch: int) -> None:
        """Give a batch to its owners, who may have to wait for earlier ones."""
        encoder.held -= 1
        self.encoded[batch] = True
        self.waiting += 1
        self.found.most_waiting = max(self.found.most_waiting, self.waiting)
        for owner in self.owners:
            self._decide(owner)
        self._feed()

    # Owners

    def _decide(self, owner: _Owner) -> None:
        """Let an owner take its part of the batch whose turn it is, if that is there."""
        batch = owner.position
        if owner.working or batch == self.pool.batches or not self.encoded[batch]:
            return
        owner.working = True
        needed = self._owner_seconds(owner, batch)
        if batch >= self.pool.warm_up:
            owner.busy += needed
        if batch == self.pool.warm_up == 0:
            self.warm_since = min(self.warm_since, self.now)
        self._at(self.now + needed, lambda: self._decided(owner, batch))

    def _owner_seconds(self, owner: _Owner, batch: int) -> float:
        pool = self.pool
        own = self.random.binomial(pool.batch, owner.share) / pool.batch if owner.share < 1.0 else 1.0
        asked = self.random.binomial(pool.batch, pool.boundary * owner.share) / pool.batch if pool.boundary else 0.0
        needed = (own + asked) * pool.owner_seconds + own * (pool.head_seconds if pool.mode == "exact" else 0.0)
        if pool.mode == "async":
            behind = len(self.known_at) - 1 - int(self.version[batch])
            if behind > pool.staleness:
                self.found.encoded_anew += 1
                needed += pool.head_seconds
            else:
                self.found.most_behind = max(self.found.most_behind, behind)
        return needed + (own * pool.adapt_seconds if self._adapts(batch) else 0.0)

    def _decided(self, owner: _Owner, batch: int) -> None:
        owner.working = False
        owner.position += 1
        if owner.position == self.pool.warm_up:
            self.warm_since = min(self.warm_since, self.now)
        if self._adapts(batch) and self.pool.mode != "exact":
            known = self.now + self.pool.broadcast_seconds
            self.known_at.append(known)
            if self.pool.mode == "barrier":
                self._at(known, self._work_all)
        self.parts[batch] -= 1
        if self.parts[batch] == 0:
            later = self.pool.exchange_seconds if self.pool.boundary else 0.0
            self._at(self.now + later, lambda: self._answered(batch))
        self._decide(owner)

    def _answered(self, batch: int) -> None:
        self.ended[batch] = self.now
        self.waiting -= 1
        self._count(-1)
        self._feed()

    def _work_all(self) -> None:
        for encoder in self.encoders:
            self._work(encoder)

    def _adapts(self, batch: int) -> bool:
        return (batch + 1) % self.pool.adapt_every == 0

    def _newest(self) -> int:
        """Return the version of the head that encoders have by now."""
        return bisect_right(self.known_at, self.now) - 1

    # The end

    def _count(self, change: int) -> None:
        """Change the number of batches under way, and add up how many there were over time."""
        self.area += self.under_way * (self.now - self.counted_at)
        self.counted_at = self.now
        self.under_way += change
        self.found.most_under_way = max(self.found.most_under_way, self.under_way)

    def _summary(self) -> Outcome:
        pool, found = self.pool, self.found
        lasted = float(self.ended.max())
        deciding = max(lasted - self.warm_since, 1e-12)
        since = self.begun if pool.arrivals is None else self.came
        found.seconds = lasted
        found.images_a_second = pool.batch * pool.batches / max(lasted, 1e-12)
        found.owner_busy = tuple(owner.busy / deciding for owner in self.owners)
        found.encoder_busy = sum(encoder.busy for encoder in self.encoders) / max(lasted * pool.encoders, 1e-12)
        found.mean_under_way = self.area / max(lasted, 1e-12)
        found.mean_latency = float((self.ended - since).mean())
        p50, p99 = np.quantile(self.ended - since, [0.5, 0.99])
        found.latency = {"p50": float(p50), "p99": float(p99), "max": float((self.ended - since).max())}
        found.mean_at_source = float((self.begun - since).mean())
        return found
