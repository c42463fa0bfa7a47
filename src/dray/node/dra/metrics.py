"""Metrics of claims and driver calls, under Kubernetes' names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dray.lib.clock import Clock
from dray.node.dra.claims import PREPARE, UNPREPARE
from dray.runtime.metrics import Metrics, exponential_buckets

# From 0.1 s to 90 s in 15 steps, as in kubelet.
_COUNT: Final = 15
BUCKETS: Final = exponential_buckets(start=0.1, factor=(90 / 0.1) ** (1 / (_COUNT - 1)), count=_COUNT)
ANY_DRIVER: Final = "<any>"
# Name and help of the counter of each operation that can be skipped.
_SKIPS: Final = {
    PREPARE: (
        "dra_node_prepare_skips_total",
        "Claims that a driver was not asked to prepare",
    ),
    UNPREPARE: (
        "dra_node_unprepare_skips_total",
        "Claims that a driver was not asked to unprepare",
    ),
}


class DriverMetrics:
    """The metrics of one claim manager."""

    def __init__(self, metrics: Metrics, prefix: str = "") -> None:
        self.operations = metrics.histogram(
            f"{prefix}dra_operations_duration_seconds",
            "Time to prepare or unprepare all claims of a Pod",
            ["operation_name", "is_error"],
            BUCKETS,
        )
        self.calls = metrics.histogram(
            f"{prefix}dra_grpc_operations_duration_seconds",
            "Duration of gRPC calls to DRA drivers",
            ["driver_name", "method_name", "grpc_status_code"],
            BUCKETS,
        )
        self.in_use = metrics.gauge(
            f"{prefix}dra_resource_claims_in_use",
            "Claims in use on the node, by driver and in total",
            ["driver_name"],
        )
        # Classic drivers are always called.
        self._skips = (
            {}
            if prefix
            else {operation: metrics.counter(name, text, ["driver_name"]) for operation, (name, text) in _SKIPS.items()}
        )
        self._shown: frozenset[str] = frozenset()
        self.in_use.labels(ANY_DRIVER).set(0)

    @contextmanager
    def operation(self, name: str, clock: Clock) -> Iterator[None]:
        """Observe the preparation or unpreparation of a Pod's claims; an exception is a failure."""
        started, failed = clock.monotonic(), "true"
        try:
            yield
            failed = "false"
        finally:
            self.operations.labels(name, failed).observe(clock.monotonic() - started)

    def observe_call(self, driver: str, method: str, code: str, seconds: float) -> None:
        """Observe a driver call."""
        self.calls.labels(driver, method, code).observe(seconds)

    def count_skip(self, driver: str, operation: str) -> None:
        """Count a call that was skipped."""
        self._skips[operation].labels(driver).inc()

    def show_claims(self, total: int, by_driver: dict[str, int]) -> None:
        """Set the number of claims in use."""
        for gone in self._shown - by_driver.keys():
            self.in_use.remove(gone)
        for driver, count in by_driver.items():
            self.in_use.labels(driver).set(count)
        self.in_use.labels(ANY_DRIVER).set(total)
        self._shown = frozenset(by_driver)
