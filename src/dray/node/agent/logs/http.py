"""The node's HTTPS endpoint, of which the API server asks for logs; its paths are kubelet's."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from dray.api.codec import to_document
from dray.lib.clock import Clock
from dray.node.agent.logs.files import stream
from dray.node.agent.logs.format import LogOptionsError, read_options
from dray.node.agent.loop import PodAgent
from dray.node.agent.parts import PodWork
from dray.node.agent.pod.slots import Slot

# Who may ask: the API server's own client, and administrators.
CALLERS: Final = frozenset({"kube-apiserver-kubelet-client"})
ADMINISTRATORS: Final = "system:masters"


class KubeletServer:
    """Serves logs and a list of Pods to callers with a certificate of the cluster's authority."""

    def __init__(
        self, agent: PodAgent, clock: Clock, log_root: Path, metrics: Callable[[], bytes] = lambda: b""
    ) -> None:
        self._agent = agent
        self._clock = clock
        self._log_root = log_root
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext) -> int:
        """Listen; returns the port."""
        app = web.Application(middlewares=[check_caller])
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/pods", self._pods)
        app.router.add_get("/healthz", self._healthy)
        app.router.add_get("/metrics", self._exposed)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _exposed(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _pods(self, _request: web.Request) -> web.Response:
        items = [to_document(pod) for pod in self._agent.all()]
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        namespace, pod, container = (request.match_info[name] for name in ("namespace", "pod", "container"))
        work = self._agent.work_of(namespace, pod)
        if work is None:
            raise web.HTTPNotFound(text=f'pod "{pod}" does not exist')
        slot = work.machine.slots.by_name.get(container)
        if slot is None:
            raise web.HTTPNotFound(text=f'container "{container}" not found in pod "{pod}"')
        try:
            options = read_options(request.query, self._clock.now())
        except LogOptionsError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        run = slot.previous if options.previous and slot.waiting is None else slot.current
        if options.previous and slot.waiting is not None and slot.current is not None:
            run = slot.current
        if run is None or (options.previous and run.exit is None):
            raise web.HTTPBadRequest(text=_no_run(work, slot, previous=options.previous))
        path = self._log_root / f"{namespace}_{pod}_{work.uid}" / container / f"{run.attempt}.log"
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for chunk in stream(path, options, lambda: _runs(slot, run.id)):
            await response.write(chunk)
        await response.write_eof()
        return response


def _runs(slot: Slot, container_id: str) -> bool:
    return slot.current is not None and slot.current.id == container_id and slot.current.exit is None


def _no_run(work: PodWork, slot: Slot, *, previous: bool) -> str:
    """Why there is no log; kubelet's words."""
    name = work.pod.metadata.name
    if previous:
        return f'previous terminated container "{slot.name}" in pod "{name}" not found'
    reason = slot.waiting.reason if slot.waiting is not None else "ContainerCreating"
    if reason in ("ErrImagePull", "ImagePullBackOff"):
        return f'container "{slot.name}" in pod "{name}" is waiting to start: trying and failing to pull image'
    return f'container "{slot.name}" in pod "{name}" is waiting to start: {reason}'


@web.middleware
async def check_caller(request: web.Request, handler: Any) -> web.StreamResponse:
    """Only the API server and administrators; others are known, since TLS asked for a certificate, but refused."""
    transport = request.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    names = {pair for part in (certificate or {}).get("subject", ()) for pair in part}
    user = next((value for key, value in names if key == "commonName"), "")
    groups = {value for key, value in names if key == "organizationName"}
    if user not in CALLERS and ADMINISTRATORS not in groups:
        raise web.HTTPForbidden(text=f"Forbidden (user={user}, verb=get, resource=nodes, subresource=proxy)")
    response: web.StreamResponse = await handler(request)
    return response
