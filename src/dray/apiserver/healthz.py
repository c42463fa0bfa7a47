"""The checks behind /livez, /readyz and /healthz, in kube-apiserver's names and format.

The three endpoints are public, so they name the checks that failed and withhold the reasons. The endpoint of a single
check, which needs a permission, and the log have them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from dray.apiserver.call import TextResult
from dray.client.skipped_objects import summary
from dray.lib.clock import Clock
from dray.runtime.health import READYZ, HealthReport, report_note, report_of, report_one
from dray.runtime.metrics import Metrics
from dray.store.interface import Store, StoreError

_LOG: Final = logging.getLogger("dray.apiserver.healthz")
_NO_SNIFF: Final = (("X-Content-Type-Options", "nosniff"),)
# A result of the store is used again for this long, so that a flood of probes does not become one of requests to it.
PROBE_REUSED_SECONDS: Final = 0.25
# kube-apiserver's --etcd-healthcheck-timeout and --etcd-readycheck-timeout.
PROBE_TIMEOUT_SECONDS: Final = 2.0
# A line of /readyz that does not fail: one object must not take the server out of service.
SKIPPED: Final = "decodable-objects"

# Returns None if all is well, else the reason of the failure.
HealthCheck = Callable[[], Awaitable[str | None]]


class PostStartHooks:
    """The steps of the start that others rely on; each is a check that fails until the step is finished."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._finished = dict.fromkeys(names, False)

    def add(self, *names: str) -> None:
        """Expect further steps."""
        for name in names:
            self._finished.setdefault(name, False)

    def finish(self, *names: str) -> None:
        """Record that steps are finished."""
        for name in names:
            self._finished[name] = True

    def checks(self) -> dict[str, HealthCheck]:
        """Return a check for each step."""

        def check(name: str) -> HealthCheck:
            async def finished() -> str | None:
                return None if self._finished[name] else "not finished"

            return finished

        return {f"poststarthook/{name}": check(name) for name in self._finished}


class StoreProbe:
    """A check that asks the store, with a deadline. Concurrent callers share one answer."""

    def __init__(self, ask: Callable[[float], Awaitable[None]], clock: Clock, timeout_seconds: float) -> None:
        self._ask = ask
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._asking = asyncio.Lock()
        self._answer: str | None = None
        self._answered_at: float | None = None

    async def __call__(self) -> str | None:
        """Return None if the store is well, else the reason; at most one deadline after an earlier call has ended."""
        async with self._asking:
            now = self._clock.monotonic()
            if self._answered_at is None or now - self._answered_at >= PROBE_REUSED_SECONDS:
                self._answer = await self._probe()
                self._answered_at = self._clock.monotonic()
            return self._answer

    async def _probe(self) -> str | None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._ask(self._timeout_seconds)
        except TimeoutError:
            return f"the store did not answer within {self._timeout_seconds:g}s"
        except StoreError as error:
            return str(error)
        return None


class _Indicators:
    """Service level indicators: the last result of every check, and how often it passed and failed."""

    def __init__(self) -> None:
        self._metrics = Metrics()
        self._last = self._metrics.gauge(
            "kubernetes_healthcheck", "This metric records the result of a single healthcheck.", ("name", "type")
        )
        self._all = self._metrics.counter(
            "kubernetes_healthchecks_total",
            "This metric records the results of all healthcheck.",
            ("name", "status", "type"),
        )
        self._endpoints: set[str] = set()

    def observe(self, endpoint: str, reasons: Mapping[str, str | None]) -> None:
        """Record the results of an endpoint's checks."""
        self._endpoints.add(endpoint)
        for name, reason in reasons.items():
            self._last.labels(name, endpoint).set(float(reason is None))
            self._all.labels(name, "success" if reason is None else "error", endpoint).inc()

    def has_all(self, endpoints: Iterable[str]) -> bool:
        """Return whether there are results of all endpoints."""
        return self._endpoints.issuperset(endpoints)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' format."""
        return self._metrics.exposition()


class HealthChecks:
    """The checks of one server, in the order in which kube-apiserver lists them."""

    def __init__(
        self,
        *,
        store: HealthCheck,
        store_readiness: HealthCheck,
        out_of_sync: Callable[[], str | None],
        hooks: PostStartHooks,
    ) -> None:
        async def informers_synced() -> str | None:
            return out_of_sync()

        # By component of this process: the objects that it does not heed because they do not decode, and why.
        self.skipped: Final[dict[str, Callable[[], list[str]]]] = {}
        self._shutting_down = False
        self._indicators = _Indicators()
        self._last_failed: dict[str, list[str]] = {}
        live = {"ping": _ping, "etcd": store, **hooks.checks()}
        ready = {
            "ping": _ping,
            "etcd": store,
            "etcd-readiness": store_readiness,
            "informer-sync": informers_synced,
            **hooks.checks(),
            "shutdown": self._check_shutdown,
        }
        self._checks: Final[Mapping[str, Mapping[str, HealthCheck]]] = {"healthz": live, "livez": live, "readyz": ready}

    def shut_down(self) -> None:
        """Report from now on that the server is not ready; requests are still served."""
        self._shutting_down = True

    def paths(self) -> list[str]:
        """Return the path of every single check."""
        return [f"/{endpoint}/{name}" for endpoint, checks in self._checks.items() for name in checks]

    async def report(self, endpoint: str, query: Mapping[str, str]) -> TextResult:
        """Answer one of the three endpoints; a failure always lists the checks."""
        excluded = {name for name in query.get("exclude", "").split(",") if name}
        checks = self._checks[endpoint]
        asked = [name for name in checks if name not in excluded]
        reasons = dict(zip(asked, await asyncio.gather(*(checks[name]() for name in asked)), strict=True))
        failed = {name: reason for name, reason in reasons.items() if reason is not None}
        self._log_change(endpoint, failed)
        self._indicators.observe(endpoint, reasons)
        shown = dict.fromkeys(failed, "reason withheld")
        notes = {SKIPPED: self._note_on_skipped()} if endpoint == READYZ else {}
        return _result(report_of(endpoint, checks, shown, verbose="verbose" in query, excluded=excluded, notes=notes))

    async def report_one(self, endpoint: str, name: str) -> TextResult | None:
        """Answer for one check of an endpoint, with the reason of a failure; None if there is none of that name."""
        if (endpoint, name) == (READYZ, SKIPPED):
            return _result(report_note(summary(self._skipped_names())))
        check = self._checks[endpoint].get(name)
        return None if check is None else _result(report_one(await check()))

    async def indicators(self) -> bytes:
        """Return the results of all checks so far, as metrics; the first call runs the checks."""
        if not self._indicators.has_all(self._checks):
            for endpoint in self._checks:
                await self.report(endpoint, {})
        return self._indicators.exposition()

    def _skipped_names(self) -> list[str]:
        return sorted({name for names in self.skipped.values() for name in names()})

    def _note_on_skipped(self) -> str | None:
        """Return how many objects are not heeded: what is public names none."""
        count = len(self._skipped_names())
        if not count:
            return None
        return f"{count} {'object is' if count == 1 else 'objects are'} ignored: see /{READYZ}/{SKIPPED}"

    async def _check_shutdown(self) -> str | None:
        return "process is shutting down" if self._shutting_down else None

    def _log_change(self, endpoint: str, failed: Mapping[str, str]) -> None:
        """Log which checks fail, and why, when that has changed: probes come every few seconds."""
        names = sorted(failed)
        if names == self._last_failed.get(endpoint, []):
            return
        self._last_failed[endpoint] = names
        if failed:
            _LOG.warning("%s check failed: %s", endpoint, "; ".join(f"{name}: {failed[name]}" for name in names))
        else:
            _LOG.info("%s check passes again", endpoint)


def store_checks(
    store: Store, clock: Clock, *, health_seconds: float, readiness_seconds: float
) -> tuple[HealthCheck, HealthCheck]:
    """Return the checks `etcd` and `etcd-readiness` of a store of any kind."""
    return (
        StoreProbe(store.check_health, clock, health_seconds),
        StoreProbe(store.check_ready, clock, readiness_seconds),
    )


def _result(report: HealthReport) -> TextResult:
    return TextResult(report.text.encode(), status=report.status, headers=_NO_SNIFF)


async def _ping() -> str | None:
    return None
