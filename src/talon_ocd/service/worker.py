"""The one owner of the stream (layer: service).

Images are decoded and go through the trunk in micro-batches, several of which may be under way, wherever the encoding
is; they are decided, learned and written down by one thread, in the order in which they came. What people change goes
through that thread as well, so that there is one order of everything. Reading asks nobody here.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby, islice
from typing import TypeVar

from torch import Tensor

from talon_ocd.durable import DurableStream, Request
from talon_ocd.errors import StorageError
from talon_ocd.images import ImageItem, Limits
from talon_ocd.online import Decision
from talon_ocd.service.encoding import EncodedImages, Encoding
from talon_ocd.service.jobs import Answer, Encoded, GoodImage, Job, Outcome
from talon_ocd.service.metrics import Metrics
from talon_ocd.service.problems import busy
from talon_ocd.service.settings import ServiceSettings

T = TypeVar("T")
UnderWay = tuple[list[Job], Future[EncodedImages]]
_log = logging.getLogger("talon_ocd.service")
MICRO_BATCH = 32
"""Most images that go through the trunk together, unless one request alone has more."""
STORERS = 4
"""Threads that write uploads to the disk."""
RATE_SECONDS = 60.0
"""Time over which the rate of answers is taken, and encoders count as at work."""


class Worker:
    """Runs a stream for many clients; ``close`` closes the encoding too.

    Attributes:
        verdicts: answers that were learned, by verdict, since the stream began.
    """

    def __init__(self, stream: DurableStream, encoding: Encoding, settings: ServiceSettings, metrics: Metrics) -> None:
        self._stream, self._encoding, self._settings, self._metrics = stream, encoding, settings, metrics
        self._limits = Limits(max_pixels=settings.max_pixels, max_bytes=settings.max_body)
        rows = stream.journal.query("SELECT verdict, count(*) AS number FROM decisions GROUP BY verdict")
        self.verdicts = Counter({str(row["verdict"]): int(row["number"]) for row in rows})
        self._lock = threading.Lock()
        self._waiting = 0
        self._stopping = self._failed = False
        self._recent: deque[tuple[float, int]] = deque()
        self._encoders: dict[str, float] = {}
        self._arrived: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._under_way: queue.SimpleQueue[UnderWay | None] = queue.SimpleQueue()
        self._tasks: queue.SimpleQueue[Encoded | Callable[[], None] | None] = queue.SimpleQueue()
        self._ahead = threading.Semaphore(encoding.ahead)
        self._storers = ThreadPoolExecutor(STORERS, thread_name_prefix="talon-store")
        self._storing = [threading.Lock() for _ in range(8 * STORERS)]
        self._threads = [
            threading.Thread(target=self._send_all, name="talon-send", daemon=True),
            threading.Thread(target=self._collect_all, name="talon-collect", daemon=True),
            threading.Thread(target=self._own, name="talon-owner", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Images that wait for their answer."""
        return self._waiting

    @property
    def alive(self) -> bool:
        """Whether images are answered; a stream that could not write an answer down must be opened again."""
        return not self._stopping and not self._failed and all(thread.is_alive() for thread in self._threads)

    @property
    def rate(self) -> float:
        """Answers a second over the last minute."""
        with self._lock:
            self._forget(time.monotonic())
            return sum(number for _, number in self._recent) / RATE_SECONDS

    @property
    def encoders(self) -> int:
        """Encoders that gave something within the last minute."""
        with self._lock:
            self._forget(time.monotonic())
            return len(self._encoders)

    def submit(
        self, items: Sequence[ImageItem], learn: bool, requests: Sequence[Request | None] | None = None
    ) -> Future[list[Answer]]:
        """Take the images of one request; refuses at once if too many wait already."""
        with self._lock:
            if self._stopping:
                raise busy("the service is stopping; send the image again when it is back.", 5)
            if self._waiting and self._waiting + len(items) > self._settings.queue:
                raise busy(f"{self._waiting} images wait already; send yours again in a moment.")
            self._waiting += len(items)
            job = Job(items, learn, requests or [None] * len(items))
            job.answers.add_done_callback(lambda _: self._leave(len(items)))
            self._arrived.put(job)
            return job.answers

    def call(self, change: Callable[[], T]) -> Future[T]:
        """Run a change of the catalog or the stream in its turn."""
        done: Future[T] = Future()

        def task() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(change())
            except BaseException as error:
                done.set_exception(error)

        with self._lock:
            if self._stopping:
                raise busy("the service is stopping; do it again when it is back.", 5)
            self._tasks.put(task)
        return done

    def close(self) -> None:
        """Take nothing new, finish what waits, and end."""
        with self._lock:
            self._stopping = True
        sending, collecting, owning = self._threads
        self._arrived.put(None)
        sending.join()
        self._under_way.put(None)
        collecting.join()
        self._tasks.put(None)
        owning.join()
        self._storers.shutdown(wait=True)
        self._encoding.close()

    # The three stages

    def _send_all(self) -> None:
        end = False
        while not end and (first := self._arrived.get()) is not None:
            self._ahead.acquire()  # images gather while others are under way: larger batches, same order
            gathered, end = self._gather(first)
            jobs = [job for job in gathered if not job.answers.cancelled()]
            if not jobs:
                self._ahead.release()
                continue
            try:
                encoded = self._encoding.encode([item for job in jobs for item in job.items], self._limits)
            except BaseException as error:
                encoded = Future()
                encoded.set_exception(error)
            self._under_way.put((jobs, encoded))

    def _gather(self, first: Job) -> tuple[list[Job], bool]:
        """Return what waits, at most a micro-batch of it, and whether the end came."""
        jobs, images = [first], len(first.items)
        while images < MICRO_BATCH:
            try:
                job = self._arrived.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
            images += len(job.items)
        return jobs, False

    def _collect_all(self) -> None:
        """Hand encoded images to the owner in the order in which they came, whoever was encoded first."""
        while (under_way := self._under_way.get()) is not None:
            jobs, encoding = under_way
            try:
                encoded = encoding.result()
                pictures = iter(encoded.pictures)
                for job in jobs:
                    job.loaded = list(islice(pictures, len(job.items)))
                self._measure(encoded)
                self._store(jobs)
                self._tasks.put(Encoded(jobs, encoded.hidden))
            except BaseException as error:
                self._ahead.release()
                for job in jobs:
                    job.fail(error)

    def _measure(self, encoded: EncodedImages) -> None:
        for seconds in encoded.decode_seconds:
            self._metrics.stage("decode", seconds)
        self._metrics.stage("encode", encoded.encode_seconds)
        self._metrics.batch(len(encoded.hidden))
        now = time.monotonic()
        with self._lock:
            self._encoders[encoded.encoder] = now
            self._forget(now)

    def _store(self, jobs: Sequence[Job]) -> None:
        """Write images that will be learned from to the disk, here and not while the owner works."""
        wanted = [job for job in jobs if job.learn and not job.answers.cancelled()]
        stored = [(job, self._storers.submit(self._store_one, image.item)) for job in wanted for image in job.good]
        for job, storing in stored:
            error = storing.exception()
            if error is not None:
                job.fail(error)

    def _store_one(self, item: ImageItem) -> None:
        with self._storing[hash(item.key) % len(self._storing)]:  # the same picture may come twice at once
            self._stream.pictures.store(item)

    def _own(self) -> None:
        while (task := self._tasks.get()) is not None:
            if isinstance(task, Encoded):
                try:
                    self._answer(task)
                finally:
                    self._ahead.release()
            else:
                task()

    def _answer(self, encoded: Encoded) -> None:
        start = 0
        for learn, group in groupby(encoded.jobs, key=lambda job: job.learn):
            jobs: list[Job] = []
            rows: list[int] = []
            for job in group:
                number = len(job.good)
                if job.begin():  # else nobody waits for it any more
                    jobs.append(job)
                    rows += range(start, start + number)
                start += number
            try:
                act = self._observe if learn else self._look
                outcomes = act([image for job in jobs for image in job.good], encoded.hidden[rows])
                for job in jobs:
                    job.finish(outcomes)
            except BaseException as error:
                self._failed = self._failed or learn
                for job in jobs:
                    job.fail(error)

    def _observe(self, good: Sequence[GoodImage], hidden: Tensor) -> Iterator[Outcome]:
        """Answer and learn, up to an adaptation at a time: nobody waits for one that comes after the answer."""
        start = 0
        while start < len(good):
            part = slice(start, start + self._stream.discovery.room)
            yield from self._observe_part(good[part], hidden[part])
            start = part.stop

    def _observe_part(self, good: Sequence[GoodImage], hidden: Tensor) -> list[Outcome]:
        """Answer images with the same head, and write them down in one commit."""
        stream, adapting = self._stream, self._stream.clock.seconds.get("adapt", 0.0)
        steps, started = stream.adapter.steps, time.perf_counter()
        try:
            stream.pictures.add(stream.answered, [image.canvas for image in good])
        except StorageError as error:  # they are for people: no reason to refuse an answer
            _log.warning("%s", error)
        decisions = stream.observe_hidden(hidden, [image.item for image in good], [image.request for image in good])
        seconds = time.perf_counter() - started
        adapted = stream.clock.seconds.get("adapt", 0.0) - adapting
        self._metrics.stage("decide", seconds - adapted)
        if adapted:
            self._metrics.stage("adapt", adapted)
        self._count(decisions)
        return [Outcome(decision, True, steps) for decision in decisions]

    def _look(self, good: Sequence[GoodImage], hidden: Tensor) -> Iterator[Outcome]:
        if not good:
            return iter(())
        decisions, features = self._stream.look_hidden(hidden, [image.item for image in good])
        steps = self._stream.adapter.steps
        return (Outcome(decision, False, steps, feature) for decision, feature in zip(decisions, features, strict=True))

    # Counting

    def _count(self, decisions: Sequence[Decision]) -> None:
        verdicts = Counter(str(decision.verdict) for decision in decisions)
        self._metrics.decided(verdicts)
        now = time.monotonic()
        with self._lock:
            self.verdicts.update(verdicts)
            self._recent.append((now, len(decisions)))
            self._forget(now)

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - RATE_SECONDS:
            self._recent.popleft()
        self._encoders = {name: last for name, last in self._encoders.items() if last >= now - RATE_SECONDS}

    def _leave(self, images: int) -> None:
        with self._lock:
            self._waiting -= images
