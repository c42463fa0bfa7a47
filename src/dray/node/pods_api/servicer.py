"""The gRPC service of the Pods API, and its server at the socket in the agent's root folder."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from dray.lib.clock import Clock
from dray.node.pods_api.pod_watchers import Pods, PodWatchers, encode_pod
from dray.node.rate_limit import Limiter, RateLimit
from dray.rpc.pb.pods.v1alpha1 import api_pb2 as pb
from dray.rpc.pb.pods.v1alpha1 import api_pb2_grpc
from dray.rpc.sockets import listen
from dray.runtime.metrics import Metrics

Context = grpc.aio.ServicerContext[Any, Any]

FOLDER: Final = "pods-api"
SOCKET_NAME: Final = "pods-api.sock"
FOLDER_MODE: Final = 0o750
# Kubelet's limits.
REQUESTS_PER_SECOND: Final = 100.0
REQUESTS_AT_ONCE: Final = 10
# Calls at the same time, watches included.
CALLS_MAX: Final = 100
_STOP_SECONDS: Final = 1.0


class PodsServicer(api_pb2_grpc.PodsServicer):  # type: ignore[misc]
    """The v1alpha1 service."""

    def __init__(self, pods: Pods, watchers: PodWatchers, limit: RateLimit) -> None:
        self._pods = pods
        self._watchers = watchers
        self._limit = limit

    async def ListPods(self, _request: pb.ListPodsRequest, context: Context) -> pb.ListPodsResponse:
        """Return all Pods."""
        await self._check(context)
        return pb.ListPodsResponse(pods=self._watchers.present())

    async def GetPod(self, request: pb.GetPodRequest, context: Context) -> pb.GetPodResponse:
        """Return one Pod."""
        await self._check(context)
        found = self._pods.reported_pod(request.podUID)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"pod with UID {request.podUID} not found")
        return pb.GetPodResponse(pod=encode_pod(found))

    async def WatchPods(self, _request: pb.WatchPodsRequest, context: Context) -> AsyncIterator[pb.WatchPodsEvent]:
        """Yield the present Pods, then every change."""
        await self._check(context)
        queue = self._watchers.add()
        try:
            for body in self._watchers.present():
                yield pb.WatchPodsEvent(type=pb.ADDED, pod=body)
            yield pb.WatchPodsEvent(type=pb.INITIAL_SYNC_COMPLETE)
            while (event := await queue.get()) is not None:
                yield event
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "watch client channel closed")
        finally:
            self._watchers.remove(queue)

    async def _check(self, context: Context) -> None:
        await self._limit.check(context)
        if not self._pods.synced:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "Kubelet is initializing")


class PodsServer:
    """The server at the socket in the agent's root folder."""

    def __init__(self, root: str, pods: Pods, clock: Clock, metrics: Metrics) -> None:
        self._folder = str(Path(root) / FOLDER)
        limiter = Limiter(REQUESTS_PER_SECOND, REQUESTS_AT_ONCE, clock.monotonic())
        self._servicer = PodsServicer(
            pods, PodWatchers(pods, metrics), RateLimit(limiter, clock.monotonic, metrics, "pods")
        )

    @property
    def path(self) -> str:
        """The path of the socket."""
        return str(Path(self._folder) / SOCKET_NAME)

    async def run(self) -> None:
        """Serve until cancelled."""
        os.makedirs(self._folder, exist_ok=True)
        os.chmod(self._folder, FOLDER_MODE)
        server = grpc.aio.server(maximum_concurrent_rpcs=CALLS_MAX)
        api_pb2_grpc.add_PodsServicer_to_server(self._servicer, server)
        await listen(server, self.path)
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(_STOP_SECONDS)
