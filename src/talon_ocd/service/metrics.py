"""What operators watch, in the format of Prometheus (layer: service).

Every app has a registry of its own. Gauges ask the service when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Scope

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper ends, in seconds."""
SIZES = (1, 2, 4, 8, 16, 32, 64)

Readings = Callable[[], Mapping[str, float]]
GAUGES = {
    "queue_images": "Images that wait for their answer.",
    "encoders": "Encoders that gave something within the last minute.",
    "categories": "Categories, known and discovered, merged ones counted once.",
    "prototypes": "Prototypes in memory.",
    "answered": "Images answered since the stream began.",
    "journal_bytes": "Size of the stream's journal on disk.",
    "event_listeners": "Clients that listen to /v1/events.",
}
COUNTERS = {
    "adaptation_steps": "Encoder steps that were taken since the stream began.",
    "guard_skipped": "Batches that the guard did not let drive an encoder step.",
    "guard_refused": "Encoder steps that the guard refused.",
    "guard_rolled_back": "Times that the guard went back to the frozen head.",
}
"""Totals that the stream itself keeps."""


class Metrics:
    """Counters and histograms of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._decisions = self._counter("decisions", "Images answered and learned, by verdict.", "verdict")
        self._rejected = self._counter("rejected_requests", "Requests refused, by HTTP status.", "status")
        self._requests = self._histogram("request_seconds", "Time of a request, by route.", "method", "route")
        self._decide = self._histogram("decide_seconds", "Time of an image from its last byte to its answer.")
        self._stages = self._histogram(
            "stage_seconds",
            "Time of a stage: decode (an image), encode (a micro-batch through the trunk), decide (a micro-batch, "
            "with what is written down), adapt (one adaptation).",
            "stage",
        )
        self._batches = self._histogram("batch_images", "Images that went through the trunk together.", buckets=SIZES)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="talon", registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = BUCKETS) -> Histogram:
        return Histogram(name, text, labels, namespace="talon", registry=self.registry, buckets=buckets)

    def watch(self, readings: Readings) -> None:
        """Ask ``readings`` for the gauges and totals whenever somebody looks."""
        self.registry.register(_Watched(readings))

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request; the route, not the path, is its label, so that clients can't invent labels."""
        route = getattr(scope.get("route"), "path", "none")
        if status >= 400:
            self._rejected.labels(str(status)).inc()
        if route != "/v1/events":  # it lasts as long as somebody listens
            method = scope["method"] if route != "none" else "any"
            self._requests.labels(method, route).observe(seconds)

    def decided(self, verdicts: Mapping[str, int]) -> None:
        """Count answers by verdict."""
        for verdict, number in verdicts.items():
            self._decisions.labels(verdict).inc(number)

    def waited(self, seconds: float) -> None:
        """Record how long an image waited for its answer."""
        self._decide.observe(seconds)

    def stage(self, name: str, seconds: float) -> None:
        """Record the time of a stage."""
        self._stages.labels(name).observe(seconds)

    def batch(self, images: int) -> None:
        """Record the size of a micro-batch."""
        self._batches.observe(images)


class _Watched(Collector):
    """Gauges and totals that are read when somebody looks."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        found = self._readings()
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"talon_{name}", text, found.get(name, 0.0))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"talon_{name}", text, found.get(name, 0.0))
