"""Answers for requests that may come twice (layer: service).

A client that does not know whether its request arrived sends it again with the same ``Idempotency-Key`` and gets the
first answer. The key is written in the same commit as the decisions, so this holds across crashes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from talon_ocd.durable import Journal, Request
from talon_ocd.images import ImageItem
from talon_ocd.service.jobs import Answer, Outcome
from talon_ocd.service.problems import Problem, busy
from talon_ocd.service.worker import Worker


@dataclass(frozen=True)
class Answers:
    """The answers of a request, and whether they had been given before."""

    answers: list[Answer]
    replayed: bool


@dataclass(frozen=True)
class _Running:
    digest: str
    task: asyncio.Task[Answers]


class Decider:
    """Asks the worker and waits, for requests with and without a key; lives in the event loop."""

    def __init__(self, worker: Worker, journal: Journal, seconds: float) -> None:
        self._worker, self._journal, self._seconds = worker, journal, seconds
        self._running: dict[str, _Running] = {}

    async def decide(self, items: Sequence[ImageItem], learn: bool, key: str | None) -> Answers:
        """Answer images; what is only looked at is never stored, so a key makes no difference to it."""
        if key is None or not learn:
            return Answers(await self._wait(self._worker.submit(items, learn)), False)
        digest = digest_of(items)
        running = self._running.get(key)
        if running is not None:  # the first one is still under way: wait with it
            _check_digest(running.digest, digest)
            return Answers((await asyncio.shield(running.task)).answers, True)
        task = asyncio.ensure_future(self._first(items, key, digest))
        self._running[key] = _Running(digest, task)
        task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)  # a client that leaves must not leave the key half used

    async def _first(self, items: Sequence[ImageItem], key: str, digest: str) -> Answers:
        """Answer what was not answered before; a batch may have been interrupted between two commits."""
        requests = [Request(f"{key} {at}", digest) for at in range(len(items))]  # a key of clients has no space
        before = self._before(requests) if len(requests) == 1 else await run_in_threadpool(self._before, requests)
        fresh = [at for at, outcome in enumerate(before) if outcome is None]
        if not fresh:
            return Answers([outcome for outcome in before if outcome is not None], True)
        submitted = self._worker.submit([items[at] for at in fresh], True, [requests[at] for at in fresh])
        coming = await self._wait(submitted)
        answers = dict(zip(fresh, coming, strict=True))
        learned = any(isinstance(answer, Outcome) for answer in coming)
        return Answers([before[at] or answers[at] for at in range(len(items))], len(fresh) < len(items) and not learned)

    def _before(self, requests: Sequence[Request]) -> list[Outcome | None]:
        """Return the answers that were given before."""
        outcomes: list[Outcome | None] = []
        for request in requests:
            found = self._journal.request(request.key)
            if found is None:
                outcomes.append(None)
                continue
            digest, decision = found
            _check_digest(digest, request.digest)
            outcomes.append(Outcome(decision, True, self._journal.steps(decision.index)))
        return outcomes

    async def _wait(self, answers: Future[list[Answer]]) -> list[Answer]:
        waiting = asyncio.wrap_future(answers)
        done, _ = await asyncio.wait({waiting}, timeout=self._seconds)
        if not done and answers.cancel():
            raise busy(f"there was no answer within {self._seconds:g} s; nothing was learned, send it again.", 5)
        return await waiting  # taken in hand already: a moment more, else a learned image would look refused

    def _forget(self, key: str, done: asyncio.Task[Answers]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen, even if nobody waits any more


def digest_of(items: Sequence[ImageItem]) -> str:
    """Return what tells whether two requests ask the same: contents and names of their images, in order."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item.key}\0{item.source}\0".encode("utf-8", "replace"))
    return digest.hexdigest()


def _check_digest(first: str, now: str) -> None:
    if first != now:
        raise Problem(
            "key-reused",
            "this Idempotency-Key belongs to a request with other images; use a new one for every request.",
        )
