"""The parameters of probes, and the thresholds of their results. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dray.api.timestamps import seconds_after
from dray.api.types.core_v1 import Container, HTTPGetAction, Probe
from dray.node.agent.pod.events import ProbeKind

PERIOD_SECONDS: Final = 10
TIMEOUT_SECONDS: Final = 1
FAILURES: Final = 3


def probe_of(container: Container, kind: ProbeKind) -> Probe | None:
    """Return the container's probe of a kind."""
    by_kind = {
        ProbeKind.STARTUP: container.startup_probe,
        ProbeKind.LIVENESS: container.liveness_probe,
        ProbeKind.READINESS: container.readiness_probe,
    }
    return by_kind[kind]


def period_seconds(probe: Probe) -> float:
    """Return the probe's period."""
    return float(probe.period_seconds or PERIOD_SECONDS)


def timeout_seconds(probe: Probe) -> float:
    """Return the probe's timeout."""
    return float(probe.timeout_seconds or TIMEOUT_SECONDS)


def first_at(probe: Probe, started: datetime) -> datetime:
    """Return the time of the first probe."""
    return seconds_after(started, probe.initial_delay_seconds or 0)


@dataclass(slots=True)
class ThresholdCounter:
    """Counts consecutive results up to the success and failure thresholds."""

    probe: Probe
    kind: ProbeKind
    _last: bool | None = None
    _row: int = 0
    _verdict: bool | None = None

    def answer(self, *, healthy: bool) -> bool | None:
        """Count a result; return the new state to report, or None if there is nothing to report."""
        self._row = self._row + 1 if healthy is self._last else 1
        self._last = healthy
        needed = (self.probe.success_threshold or 1) if healthy else (self.probe.failure_threshold or FAILURES)
        if self._row < needed:
            return None
        # Failed liveness and startup probes are reported repeatedly, in case the container was not stopped.
        if self._verdict is healthy and (healthy or self.kind is ProbeKind.READINESS):
            return None
        self._verdict = healthy
        return healthy


def resolve_port(container: Container, port: int | str | None) -> int:
    """Return a port by its number or its name in the container; 0 if there is none."""
    if isinstance(port, int):
        return port
    if port is not None and port.isdigit():
        return int(port)
    return next((item.container_port for item in container.ports if item.name == port), 0)


def http_url(container: Container, action: HTTPGetAction, address: str) -> str:
    """Return the URL of the probe."""
    host = action.host or address
    host = f"[{host}]" if ":" in host else host
    scheme = (action.scheme or "HTTP").lower()
    path = action.path or "/"
    path = path if path.startswith("/") else f"/{path}"
    return f"{scheme}://{host}:{resolve_port(container, action.port)}{path}"
