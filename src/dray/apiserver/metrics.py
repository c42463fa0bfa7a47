"""The server's request metrics, under kube-apiserver's names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dray.apiserver.routes import RequestInfo
from dray.runtime.metrics import Counter, Histogram, Metrics

_DURATION_BUCKETS: Final = (
    0.005,
    0.025,
    0.05,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    1.25,
    1.5,
    2,
    3,
    4,
    5,
    6,
    8,
    10,
    15,
    20,
    30,
    45,
    60,
)
_LABELS: Final = ("verb", "group", "version", "resource", "subresource", "scope")


class RequestMetrics:
    """Counts requests and measures how long they take."""

    def __init__(self, metrics: Metrics) -> None:
        self._total = metrics.counter(
            "apiserver_request_total", "Requests by verb, resource and HTTP code.", (*_LABELS, "code")
        )
        self._duration = metrics.histogram(
            "apiserver_request_duration_seconds",
            "Response latency in seconds, without watches.",
            _LABELS,
            buckets=_DURATION_BUCKETS,
        )
        self._long_running = metrics.gauge(
            "apiserver_longrunning_requests",
            "Long-running requests that are being served: watches, logs, exec, attach, port-forward and proxies.",
            (*_LABELS, "component"),
        )
        # Finding a metric by its labels costs more than counting with it.
        self._found: dict[tuple[str, ...], tuple[Counter, Histogram]] = {}

    def observe(self, info: RequestInfo, status: int, seconds: float, *, known: bool) -> None:
        """Count one finished request; names of resources that are not served stay out of the labels."""
        scope = _scope(info)
        place = (info.group, info.version, info.resource, info.subresource) if known else ("", "", "", "")
        labels = (info.verb.upper() if known else info.method, *place, scope)
        key = (*labels, str(status))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = (self._total.labels(*key), self._duration.labels(*labels))
        found[0].inc()
        if info.verb != "watch":
            found[1].observe(seconds)

    @contextmanager
    def long_running(self, info: RequestInfo, *, known: bool) -> Iterator[None]:
        """Count a request for as long as the context lasts; one that is for no resource is named by its path."""
        verb = "WATCH" if info.verb == "watch" else info.method
        other = "" if info.resource else info.path
        place = (info.group, info.version, info.resource, info.subresource) if known else ("", "", "", other)
        gauge = self._long_running.labels(verb, *place, _scope(info), "apiserver")
        gauge.inc()
        try:
            yield
        finally:
            gauge.inc(-1)


def _scope(info: RequestInfo) -> str:
    return "resource" if info.name else "namespace" if info.namespace else "cluster"
