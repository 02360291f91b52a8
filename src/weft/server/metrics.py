"""The metrics of a server in the format of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, final

from weft.serving.engine import Engine
from weft.serving.requests import Figures

GAUGES = frozenset({"running", "waiting", "waiting_tokens", "slots", "state_bytes", "prefix_bytes", "prefixes"})
ABOUT = dict(re.findall(r"^ +(\w+): (.+)$", Figures.__doc__ or "", re.MULTILINE))
"""What each figure is, as its record says."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@final
class Metrics:
    """Counts of what was asked over HTTP, and the figures of the engine; each server has its own.

    Args:
        engine: None: the model is no language model.
    """

    def __init__(self, engine: Engine | None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._registry = CollectorRegistry()
        self._engine = engine
        if engine is not None:
            self._registry.register(self)
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

    def collect(self) -> Iterator[Any]:
        """The figures of the engine, which `text` asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = self._engine.figures() if self._engine is not None else Figures()
        for name in (each.name for each in fields(Figures) if each.name not in ("reuse", "alive_at")):
            family = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
            yield family(f"weft_{name}", ABOUT.get(name, name), value=getattr(figures, name))
        reuse = CounterMetricFamily("weft_prefix_reuse", "Prompts by what became of their prefix.", labels=("reason",))
        for reason, count in figures.reuse:
            reuse.add_metric((reason,), count)
        yield reuse
