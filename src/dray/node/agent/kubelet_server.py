"""The node's HTTPS server for logs, Pods and metrics, with kubelet's paths."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import orjson

from dray.api.codec import to_document
from dray.api.document import NamespacedName
from dray.lib.clock import Clock
from dray.node.agent.logs.cri_format import LogOptionsError, read_options
from dray.node.agent.logs.reader import stream
from dray.node.agent.pod.containers import ContainerState
from dray.node.agent.pod_manager import PodManager, PodWorker
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, Router, text
from dray.runtime.http.server import HttpServer, page_server


class KubeletServer:
    """Serves logs, Pods, metrics and streams to clients that `check` lets through."""

    def __init__(
        self,
        pods: PodManager,
        clock: Clock,
        log_root: Path,
        check: Callable[[Handler], Handler],
        pages: Mapping[str, Handler],
        streams: Mapping[str, Handler],
    ) -> None:
        self._manager = pods
        self._clock = clock
        self._log_root = log_root
        self._check = check
        # Health checks, metrics, statistics and the configuration.
        self._pages = pages
        # The handlers that also take POST.
        self._streams = streams
        self._server: HttpServer | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext) -> int:
        """Listen, and return the port."""
        router = Router(
            {
                "/containerLogs/{namespace}/{pod}/{container}": self._logs,
                "/pods": self._pods,
                **self._pages,
                **self._streams,
            },
            with_post=self._streams.keys(),
        )
        self._server = page_server(self._check(router))
        return await self._server.start(host, port, tls)

    async def supervise(self) -> NoReturn:
        """Raise the failure of a connection, which is a bug; to be run by a supervisor after `start`."""
        assert self._server is not None
        await self._server.supervise()

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop()

    async def _pods(self, _request: Request) -> Reply:
        items = [to_document(pod) for pod in self._manager.all()]
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        return Reply(orjson.dumps(body), content_type="application/json")

    async def _logs(self, request: Request) -> Reply:
        namespace, pod, container = (request.parameters[name] for name in ("namespace", "pod", "container"))
        worker = self._manager.find(NamespacedName(namespace, pod))
        if worker is None:
            return text(f'pod "{pod}" does not exist', 404)
        state = worker.machine.containers.by_name.get(container)
        if state is None:
            return text(f'container "{container}" not found in pod "{pod}"', 404)
        try:
            options = read_options(request.query, self._clock.now())
        except LogOptionsError as error:
            return text(str(error), 400)
        run = state.previous if options.previous and state.waiting is None else state.current
        if options.previous and state.waiting is not None and state.current is not None:
            run = state.current
        if run is None or (options.previous and run.exit is None):
            return text(_no_run(worker, state, previous=options.previous), 400)
        run_id = run.id
        path = self._log_root / f"{namespace}_{pod}_{worker.uid}" / container / f"{run.attempt}.log"
        return Reply(content_type="text/plain", stream=stream(path, options, lambda: _runs(state, run_id)))


def _runs(state: ContainerState, container_id: str) -> bool:
    return state.current is not None and state.current.id == container_id and state.current.exit is None


def _no_run(worker: PodWorker, state: ContainerState, *, previous: bool) -> str:
    """Return kubelet's message for a missing log."""
    name = worker.pod.metadata.name
    if previous:
        return f'previous terminated container "{state.name}" in pod "{name}" not found'
    reason = state.waiting.reason if state.waiting is not None else "ContainerCreating"
    if reason in ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"):
        return f'container "{state.name}" in pod "{name}" is waiting to start: trying and failing to pull image'
    return f'container "{state.name}" in pod "{name}" is waiting to start: {reason}'
