"""Serves health checks and metrics on plain HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl

from dray.runtime.health import HEALTHZ, LIVEZ, READYZ, HealthChecks, HealthReport
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, Router, text
from dray.runtime.http.server import HttpServer, page_server
from dray.runtime.metrics import CONTENT_TYPE
from dray.runtime.tasks import TaskGroup

_NO_SNIFF: Final = (("X-Content-Type-Options", "nosniff"),)


def health_routes(checks: HealthChecks) -> dict[str, Handler]:
    """Return the handlers of /livez, /readyz and /healthz, and of their single checks below each."""
    routes: dict[str, Handler] = {}
    for endpoint in (HEALTHZ, LIVEZ, READYZ):
        routes[f"/{endpoint}"] = _report(checks, endpoint)
        routes[f"/{endpoint}/{{check}}"] = _report_one(checks, endpoint)
    return routes


def metrics_page(exposition: Callable[[], bytes]) -> Handler:
    """Return the handler of /metrics."""

    async def expose(_request: Request) -> Reply:
        return Reply(exposition(), content_type=CONTENT_TYPE)

    return expose


async def serve_health(
    group: TaskGroup,
    host: str,
    port: int,
    metrics: Callable[[], bytes],
    checks: HealthChecks | None = None,
    pages: Mapping[str, Handler] | None = None,
) -> int:
    """Serve the health checks, /metrics and further pages while the group runs; return the port."""
    routes = health_routes(checks or HealthChecks())
    server = page_server(Router({**routes, "/metrics": metrics_page(metrics), **(pages or {})}))
    bound = await server.start(host, port)
    group.spawn(_stop_at_end(server), "health")
    return bound


def _report(checks: HealthChecks, endpoint: str) -> Handler:
    async def report(request: Request) -> Reply:
        query = parse_qsl(request.target.partition("?")[2], keep_blank_values=True)
        exclude = [value for name, value in query if name == "exclude"]
        verbose = any(name == "verbose" for name, _ in query)
        return _reply(checks.report(endpoint, verbose=verbose, exclude=exclude))

    return report


def _report_one(checks: HealthChecks, endpoint: str) -> Handler:
    async def report(request: Request) -> Reply:
        found = checks.report_one(endpoint, request.parameters["check"])
        return text("404: Not Found", 404) if found is None else _reply(found)

    return report


def _reply(report: HealthReport) -> Reply:
    return text(report.text, report.status, _NO_SNIFF)


async def _stop_at_end(server: HttpServer) -> None:
    try:
        await server.supervise()
    finally:
        await server.stop()
