"""Metrics: the page is the one the Prometheus library would make of the same counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dray.runtime.metrics import LATENCY_BUCKETS, Family, Metrics, exposition

prometheus_client.disable_created_metrics()


class Two:
    """A collector of two families."""

    def collect(self) -> Iterator[Family]:
        yield Family("one", "One", "gauge", samples=[("", {}, 1)])
        two = Family("two", "Two", "gauge", ("b", "a"))
        two.add(("x", "y"), 2)
        yield two


class Reference:
    """The library's own metrics behind the same factory methods."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def counter(self, name: str, text: str, labels: Any = ()) -> Any:
        return prometheus_client.Counter(name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, labels: Any = ()) -> Any:
        return prometheus_client.Gauge(name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, labels: Any = (), buckets: Any = LATENCY_BUCKETS) -> Any:
        return prometheus_client.Histogram(name, text, labels, buckets=buckets, registry=self.registry)


def count_plainly(metrics: Any) -> None:
    """A counter without labels."""
    counter = metrics.counter("made_total", 'Things "made"\nhere')
    counter.inc()
    counter.inc(2.5)


def count_by_labels(metrics: Any) -> None:
    """Several sets of values, one of them taken back."""
    counter = metrics.counter("asked_total", "Questions", ("verb", "code"))
    for verb, code in (("get", "200"), ("put", "409"), ("get", "200"), ('q"uo\\te', "5\n0")):
        counter.labels(verb, code).inc()
    counter.remove("put", "409")
    counter.remove("never", "there")


def nothing_counted(metrics: Any) -> None:
    """Without labels there is a zero, with labels there is nothing."""
    metrics.counter("none_total", "None")
    metrics.counter("none_by_label_total", "None", ("label",))
    metrics.gauge("level", "Level")
    metrics.histogram("seconds", "Seconds")


def gauge_values(metrics: Any) -> None:
    """Set, raised, lowered and read when asked."""
    gauge = metrics.gauge("level", "Level", ("tank",))
    gauge.labels("a").set(7)
    gauge.labels("a").inc()
    gauge.labels("b").inc(-3)
    gauge.labels("c").set_function(lambda: 42)
    for name, value in (("whole", 1e12), ("tenth", 0.1), ("high", 1234567.25), ("low", -1234567.25), ("tiny", 5e-9),
                        ("endless", float("inf")), ("bottomless", float("-inf")), ("none", float("nan"))):  # fmt: skip
        metrics.gauge(name, "A \\ number").set(value)


def histogram_values(metrics: Any) -> None:
    """Below, on and above every bound."""
    plain = metrics.histogram("seconds", "Seconds")
    labelled = metrics.histogram("steps", "Steps", ("point",), (1, 2, 4, 8))
    for value in (-1.0, 0, 1e-9, 0.001, 0.0010001, 3.3, 16.384, 17, 1e9):
        plain.observe(value)
        labelled.labels("x").observe(value * 4)
    labelled.labels("y").observe(8)


@pytest.mark.parametrize("use", [count_plainly, count_by_labels, nothing_counted, gauge_values, histogram_values])
def test_the_page_is_the_library_s(use: Callable[[Any], None]) -> None:
    ours, reference = Metrics(), Reference()
    use(ours)
    use(reference)
    assert ours.exposition() == generate_latest(reference.registry)


def test_a_metric_is_made_once_and_of_one_kind() -> None:
    metrics = Metrics()
    assert metrics.counter("made_total", "Made") is metrics.counter("made_total", "Made")
    with pytest.raises(AssertionError, match="made_total is registered as Counter"):
        metrics.gauge("made_total", "Made")


def test_a_counter_may_have_any_name() -> None:
    """Kubernetes has counters whose names do not end in `_total`; the Prometheus library would rename them."""
    metrics = Metrics()
    metrics.counter("requests_list", "Lists", ("version",)).labels("v1").inc()
    assert metrics.exposition() == (
        b'# HELP requests_list Lists\n# TYPE requests_list counter\nrequests_list{version="v1"} 1.0\n'
    )
    assert metrics.value("requests_list", {"version": "v1"}) == 1


def test_values_must_fit_the_labels() -> None:
    counter = Metrics().counter("made_total", "Made", ("a", "b"))
    with pytest.raises(AssertionError, match="has the labels"):
        counter.labels("x")


def test_value_reads_one_sample() -> None:
    metrics = Metrics()
    metrics.counter("made_total", "Made", ("by",)).labels("me").inc(3)
    assert metrics.value("made_total", {"by": "me"}) == 3
    assert metrics.value("made_total", {"by": "you"}) == 0
    assert exposition(metrics, Metrics()) == metrics.exposition()


def test_a_collector_is_asked_when_somebody_looks() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.collect_once("two", Two)
    assert metrics.exposition() == (
        b'# HELP one One\n# TYPE one gauge\none 1.0\n# HELP two Two\n# TYPE two gauge\ntwo{a="y",b="x"} 2.0\n'
    )
    assert metrics.value("two", {"a": "y", "b": "x"}) == 2


def test_metrics_are_made_once_and_rendered_without_creation_times() -> None:
    metrics = Metrics()
    metrics.counter("things_total", "Things", ("kind",)).labels("a").inc()
    metrics.counter("things_total", "Things", ("kind",)).labels("a").inc()
    assert metrics.value("things_total", {"kind": "a"}) == 2
    other = Metrics()
    other.gauge("depth", "Depth").set(3)
    page = exposition(metrics, other).decode()
    assert 'things_total{kind="a"} 2.0' in page
    assert "depth 3.0" in page
    assert "_created" not in page
