"""A stream on Ray: many encoders, one owner of the memory, and the driver that keeps the order (layer: scale).

The driver hands chunks of images to encoders, hears which of them can be used, and lets encoders run the trunk on the
very batches that one process would have made (``batching.py``). The owner answers the batches in their order. Trunk
outputs never go stale, so that encoders work ahead while the owner adapts. Ray restarts who dies and asks again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from talon_ocd.durable import Journal
from talon_ocd.durable.pictures import Pictures
from talon_ocd.durable.unseen import each_once
from talon_ocd.errors import ConfigError, StreamError, TalonError
from talon_ocd.images import ImageItem, Skipped
from talon_ocd.online import Decision, SecondThoughts
from talon_ocd.online.decision import category_name
from talon_ocd.scale.connection import connected
from talon_ocd.scale.encoder import Encoder
from talon_ocd.scale.flow import Flow
from talon_ocd.scale.owner import Opened, Owner
from talon_ocd.scale.rates import OWNER, Rates
from talon_ocd.scale.settings import MOST_RETRIES, RaySettings

MOST_OWNERS = 100
"""Times that an owner with a folder is started again; one that dies of its folder must come to an end."""
LONGEST_START = 300.0
"""Seconds that encoders may take to start and load the model."""
LONGEST_CLOSE = 600.0
"""Seconds that the last snapshot may take."""


class RayStream:
    """A stream whose images are encoded by many; use it with ``with``.

    Args:
        model: folder that ``talon fit`` wrote; every machine finds it under this path.
        folder: of a stream that lasts, on the machine that this is called on; ``None`` keeps it in memory.
        settings: how it is spread.
        options: what ``Talon.stream`` takes: ``threshold``, ``adapt``, ``finer``, ``bounds``.

    Attributes:
        opened: the stream as it was found.
        folder: where it lives.
        journal: its journal, to read; ``None`` if it lives in memory.
        pictures: its pictures, to read.
        rates: images a second by stage, restarts, staleness.
        encoders: actors of ``Encoder``.
        owner: the actor of ``Owner``.
    """

    def __init__(
        self, model: str | Path, folder: str | Path | None = None, settings: RaySettings | None = None, **options: Any
    ) -> None:
        self.settings = settings or RaySettings()
        self.folder = None if folder is None else Path(folder).absolute()
        self.journal: Journal | None = None
        self.pictures: Pictures | None = None
        self._model, self._options = str(Path(model).absolute()), options
        self._open = ExitStack()
        self.encoders: list[Any] = []
        self.owner: Any = None

    def __enter__(self) -> RayStream:
        with self._open:
            number = self._open.enter_context(connected(self.settings))
            self._start(number)
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Take a snapshot, end all processes and leave Ray."""
        self._open.close()

    @property
    def answered(self) -> int:
        """Answers given so far."""
        return self._flow.answered

    @property
    def categories(self) -> int:
        """Categories discovered so far."""
        return self._flow.categories

    def name(self, category: int) -> str:
        """Return the name of a category until somebody names it."""
        return category_name(category, self.opened.names)

    def facts(self) -> dict[str, Any]:
        """Return how it decides, what learns, and what happened on Ray, for summaries."""
        return {**self.opened.facts, "ray": {"mode": self.settings.mode, **self.rates.facts()}}

    def processes(self) -> list[int]:
        """Return the process ids of all encoders and, last, of the owner; asked in turn with their other work."""
        ids: list[int] = ray.get([actor.process.remote() for actor in (*self.encoders, self.owner)])
        return ids

    def unseen(self, items: Sequence[ImageItem]) -> list[ImageItem]:
        """Return the images that were not answered yet, each once; all of them if the stream lives in memory."""
        if self.folder is None:
            return list(items)
        with self._kindly():
            seen = ray.get(self.owner.seen.remote([item.key for item in items]))
        return each_once(items, seen)

    def run_items(
        self,
        items: Sequence[ImageItem],
        on_skip: Callable[[Skipped], None] = lambda skipped: None,
    ) -> Iterator[tuple[Decision, ImageItem]]:
        """Answer images but for those that were answered before: see ``DiscoveryStream.run_items``."""
        with self._kindly():
            yield from self._flow.run(self.unseen(items), on_skip)

    def second_thoughts(self) -> SecondThoughts | None:
        """Return what would be answered differently by now: see ``FeatureStream.second_thoughts``."""
        with self._kindly():
            thoughts: SecondThoughts | None = ray.get(self.owner.second_thoughts.remote())
        return thoughts

    def _start(self, number: int) -> None:
        """Start all processes, and open the stream meanwhile."""
        settings, folder = self.settings, None if self.folder is None else str(self.folder)
        stale = settings.staleness if settings.mode == "async" else None
        lasting = {"max_restarts": MOST_OWNERS, "max_task_retries": MOST_OWNERS} if folder else {}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        owner = ray.remote(Owner).options(num_cpus=0, scheduling_strategy=here, **lasting)
        encoder = ray.remote(Encoder).options(
            num_cpus=settings.cpus_per_encoder,
            num_gpus=settings.gpus_per_encoder,
            max_restarts=-1,
            max_task_retries=MOST_RETRIES,
        )
        device = "cuda" if settings.gpus_per_encoder else None
        self.owner = owner.remote(self._model, folder, self._options, settings.threads, stale)
        self.encoders = [encoder.remote(self._model, settings.threads, device) for _ in range(number)]
        self._open.callback(self._end)
        ready = [encoder.load.remote() for encoder in self.encoders]
        with self._kindly():
            self.opened: Opened = ray.get(self.owner.opened.remote())
            for warning in self.opened.warnings:
                warnings.warn(warning, stacklevel=4)
            wanted = settings.wanted(self.opened.adapt, lasting=folder is not None)
            lives = _wait_for(ready)
        self.rates = Rates(number)
        self.rates.begun(self.opened.life, OWNER)
        for actor, life in enumerate(lives):
            self.rates.begun(life, actor)
        self._flow = Flow(self.encoders, self.owner, self.opened, wanted, self.rates, settings.read_ahead)
        if self.folder is not None:
            self.journal = Journal(self.folder)
            self._open.callback(self.journal.close)
            self.pictures = Pictures(self.journal)
            self._open.callback(self.pictures.close)

    def _end(self) -> None:
        """End all processes; the owner's last words are told."""
        try:
            for encoder in self.encoders:
                ray.kill(encoder)
            for warning in self._last_words():
                warnings.warn(warning, stacklevel=4)
        finally:
            ray.kill(self.owner)

    def _last_words(self) -> Sequence[str]:
        try:
            with self._kindly():
                words: Sequence[str] = ray.get(self.owner.close.remote(), timeout=LONGEST_CLOSE)
        except StreamError as error:
            if isinstance(error.__cause__, GetTimeoutError):
                return [
                    f"the last snapshot took more than {LONGEST_CLOSE:g} s; the next start reads the journal instead."
                ]
            if isinstance(error.__cause__, RayActorError):  # it is gone, which was told when it was needed
                return []
            raise
        return words

    @contextmanager
    def _kindly(self) -> Iterator[None]:
        """Turn what Ray says of an error into what our errors say."""
        try:
            yield
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            if isinstance(cause, TalonError):
                raise cause from None
            raise StreamError(self._told(cause)) from error

    def _told(self, cause: BaseException) -> str:
        """Say what went wrong, and what to do."""
        if not isinstance(cause, RayActorError):
            return f"a process of the stream failed ({type(cause).__name__}: {cause}); the logs of Ray say more."
        said = " ".join(str(cause).split())  # Ray's words have many lines
        if cause.actor_id != self.owner._actor_id.hex():
            return f"an encoder died {MOST_RETRIES} times over the same images ({said}); is there enough memory?"
        if self.folder is None:
            return (
                "the process that holds the memory died, and what it had learned with it; give --stream FOLDER: then "
                "it goes on from its journal."
            )
        return (
            f"the process that holds the memory died and could not be started again, or died {MOST_OWNERS} times "
            f"({said}); is there enough memory, and does Ray still run? What was answered is in the journal: the same "
            "command goes on from there."
        )


def _wait_for(ready: Sequence[Any]) -> list[str]:
    """Wait until all encoders have loaded the model; returns the life of each."""
    started, waiting = ray.wait(list(ready), num_returns=len(ready), timeout=LONGEST_START)
    ray.get(started)
    if waiting:
        raise ConfigError(
            f"{len(started)} of {len(ready)} encoders could start within {LONGEST_START:g} s; do others hold the CPUs "
            "or GPUs of this Ray? Give fewer --encoders, or wait for them."
        )
    lives: list[str] = ray.get(list(ready))
    return lives
