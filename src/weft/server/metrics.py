"""The metrics of a server in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

from weft.serving.requests import Figures

if TYPE_CHECKING:
    from weft.server.mailbox import Runs

COUNTERS = {
    "prompt_tokens": "Tokens of prompts that were computed.",
    "cached_tokens": "Tokens of prompts whose state was kept of an earlier request.",
    "new_tokens": "Tokens chosen.",
    "drafted": "Tokens that were guessed and read.",
    "accepted": "Guessed tokens that were taken.",
    "finished": "Requests that ended with their answer.",
    "cancelled": "Requests that were cancelled.",
    "failed": "Requests that failed.",
    "refused": "Requests that were refused since the queue was full.",
    "steps": "Steps of the engine.",
}
GAUGES = {
    "running": "Rows that are being read or continued.",
    "waiting": "Requests that wait.",
    "waiting_tokens": "Tokens of the prompts of requests that wait.",
    "slots": "Slots in use by rows that decode.",
    "state_bytes": "Bytes of the states of running rows.",
    "prefix_bytes": "Bytes of the states that are kept for later prompts.",
    "prefixes": "States that are kept for later prompts.",
}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@final
class Metrics:
    """Counts of what was asked over HTTP, and the figures of the engine; each server has its own.

    Args:
        engine: None: the model is no language model.
    """

    def __init__(self, engine: Runs | None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._registry = CollectorRegistry()
        if engine is not None:
            self._registry.register(_Engine(engine))
        self.answered = Counter("weft_http_requests", "Requests that were answered.", ("path", "status"),
                                registry=self._registry)
        self.seconds = Histogram("weft_http_seconds", "Seconds from a request to the end of its answer.", ("path",),
                                 buckets=SECONDS, registry=self._registry)
        self.first = Histogram("weft_first_token_seconds", "Seconds from a request to its first new token.", ("path",),
                               buckets=SECONDS, registry=self._registry)
        self.left = Counter("weft_http_disconnects", "Requests whose client left before the answer ended.", ("path",),
                            registry=self._registry)

    def text(self) -> tuple[bytes, str]:
        """The metrics and their media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST


@final
class _Engine:
    """The figures of an engine, read when they are asked for."""

    def __init__(self, engine: Runs) -> None:
        self._engine = engine

    def describe(self) -> Iterator[Any]:
        """The metrics without values."""
        return self._of(Figures())

    def collect(self) -> Iterator[Any]:
        """The metrics."""
        return self._of(self._engine.figures())

    def _of(self, figures: Figures) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, what in GAUGES.items():
            yield GaugeMetricFamily(f"weft_{name}", what, value=getattr(figures, name))
        for name, what in COUNTERS.items():
            yield CounterMetricFamily(f"weft_{name}", what, value=getattr(figures, name))
        reuse = CounterMetricFamily("weft_prefix_reuse", "Prompts by what became of their prefix.", labels=("reason",))
        for reason, count in figures.reuse:
            reuse.add_metric((reason,), count)
        yield reuse
