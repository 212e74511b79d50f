"""Everything that one running service has: stream, catalog, worker, listeners (layer: service)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from talon_ocd import __version__
from talon_ocd.catalog import Catalog
from talon_ocd.durable import DurableStream, Event
from talon_ocd.durable.journal_file import JOURNAL
from talon_ocd.images import display
from talon_ocd.online import Bounds
from talon_ocd.service import schemas
from talon_ocd.service.auth import Guardian
from talon_ocd.service.deciding import Decider
from talon_ocd.service.encoding import Encoding, LocalEncoding
from talon_ocd.service.events import Broadcaster, message
from talon_ocd.service.insight import Insight
from talon_ocd.service.metrics import Metrics
from talon_ocd.service.settings import ServiceSettings
from talon_ocd.service.views import Views
from talon_ocd.service.worker import Worker
from talon_ocd.talon import Talon

_log = logging.getLogger("talon_ocd.service")


class Service:
    """A stream that is served; a context manager that closes the stream.

    Attributes:
        settings: what is allowed.
        stream: the stream; only the worker's owner thread may change it.
        catalog: what people said; it is changed through ``edit`` only.
        stopping: whether the service is about to end.
    """

    def __init__(
        self,
        talon: Talon,
        folder: Path,
        settings: ServiceSettings,
        *,
        threshold: float | str | None = None,
        adapt: str | None = None,
        finer: float | None = None,
        bounds: Bounds | None = None,
        encoding: Callable[[DurableStream], Encoding] = LocalEncoding,
    ) -> None:
        """Open a stream and serve it; ``encoding`` gives who encodes for it, by default threads of this process."""
        self.settings = settings
        self.stopping = False
        self.stream = talon.stream(
            folder, threshold=threshold, adapt=adapt, finer=finer, bounds=bounds, purpose="talon serve"
        )
        with ExitStack() as opened:
            opened.callback(self.stream.close)
            self.journal = self.stream.journal
            self.catalog = Catalog(self.journal, self.stream.apply)
            self.metrics = Metrics()
            self.guardian = Guardian(settings)
            self.broadcaster = Broadcaster(settings.listeners)
            self.views = Views(self.catalog, self.journal)
            self.insight = Insight(self.catalog, self.journal, talon, self.stream)
            encoder = encoding(self.stream)
            opened.callback(encoder.close)
            self.worker = Worker(self.stream, encoder, settings, self.metrics)
            opened.pop_all()  # from here on ``close`` does it
        self.decider = Decider(self.worker, self.journal, settings.request_seconds)
        self.stream.on_event.append(self.announce)
        self.metrics.watch(self._readings)
        self._model = Path(display(self.journal.meta("model") or "")).name
        self._started = time.monotonic()
        self._announced = 0

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def begin_stop(self) -> None:
        """Say that the service ends: listeners are sent away, requests under way go on."""
        self.stopping = True
        self.broadcaster.close()

    def close(self) -> None:
        """Finish what waits, and close the stream."""
        self.begin_stop()
        try:
            self.worker.close()
        finally:
            self.stream.close()

    def edit(self, change: Callable[[Catalog], Event]) -> Future[Event]:
        """Let a person change the catalog, in the one order of everything, and tell the listeners."""

        def run() -> Event:
            event = change(self.catalog)
            self.announce(event)
            return event

        return self.worker.call(run)

    def announce(self, event: Event) -> None:
        """Tell the listeners of an event, once; only the owner thread calls this, so they come in order."""
        if event.seq <= self._announced:  # a change that changed nothing gives the earlier event back
            return
        self._announced = event.seq
        if not len(self.broadcaster):
            return
        try:
            self.broadcaster.publish(message("ledger", self.views.event(event).model_dump(mode="json"), event.seq))
        except Exception:  # it is on the disk: that somebody did not hear of it must not stop the stream
            _log.exception("an event could not be told")

    def status(self) -> schemas.Status:
        """Return how the stream is."""
        stream, totals, guard = self.stream, self.catalog.totals(), self.stream.guard
        rule = stream.discovery.rule
        counted = ("taken", "skipped", "refused", "rolled_back", "pause")
        return schemas.Status(
            answered=stream.answered,
            categories=totals["known"] + totals["discovered"],
            discovered=totals["discovered"],
            totals=totals,
            verdicts={verdict: self.worker.verdicts[verdict] for verdict in ("known", "discovered", "new")},
            model=self._model,
            stream=display(self.journal.folder.resolve().name),
            rule=rule.name,
            unit=rule.unit,
            threshold=rule.threshold,
            adapt=",".join(stream.config.adapt) or "none",
            encoder_steps=stream.adapter.steps,
            guard={} if guard is None else {name: getattr(guard, name) for name in counted},
            rate=round(self.worker.rate, 3),
            waiting=self.worker.waiting,
            uptime=round(time.monotonic() - self._started, 1),
            version=__version__,
        )

    def _readings(self) -> dict[str, float]:
        stream, guard = self.stream, self.stream.guard
        totals = self.catalog.totals()
        files = (self.journal.folder / f"{JOURNAL}{end}" for end in ("", "-wal"))
        return {
            "queue_images": self.worker.waiting,
            "encoders": self.worker.encoders,
            "categories": totals["known"] + totals["discovered"],
            "prototypes": stream.memory.size,
            "answered": stream.answered,
            "journal_bytes": sum(file.stat().st_size for file in files if file.exists()),
            "event_listeners": len(self.broadcaster),
            "adaptation_steps": stream.adapter.steps,
            "guard_skipped": guard.skipped if guard else 0,
            "guard_refused": guard.refused if guard else 0,
            "guard_rolled_back": guard.rolled_back if guard else 0,
        }
