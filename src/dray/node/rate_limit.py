"""The rate limit of a gRPC socket of the node agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from dray.runtime.metrics import Metrics


class Limiter:
    """A token bucket."""

    def __init__(self, per_second: float, burst: int, now: float) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._filled_at = now

    def allow(self, now: float) -> bool:
        """Whether a request may pass now."""
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class RateLimit:
    """Aborts calls of a socket that come too fast."""

    def __init__(self, limiter: Limiter, now: Callable[[], float], metrics: Metrics, api: str) -> None:
        self._limiter = limiter
        self._now = now
        self._rejected = metrics.counter(
            "dray_node_calls_rejected_total",
            "Calls of a node's sockets that its rate limit has rejected, by API",
            ["api"],
        ).labels(api)

    async def check(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Abort the call if the limit is exceeded."""
        if not self._limiter.allow(self._now()):
            self._rejected.inc()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
