"""Serves the PodResources API at its socket; no API server is needed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import grpc.aio

from dray.api.features import FeatureGates
from dray.lib.clock import Clock
from dray.node.pod_resources.metrics import EndpointMetrics
from dray.node.pod_resources.servicer import AlphaPodResources, Gates, PodResources
from dray.node.pod_resources.sources import Sources
from dray.node.rate_limit import Limiter, RateLimit
from dray.rpc.pb.podresources.v1alpha1.api_pb2_grpc import add_PodResourcesListerServicer_to_server as add_v1alpha1
from dray.rpc.sockets import listen
from dray.runtime.metrics import Metrics

FOLDER: Final = "pod-resources"
SOCKET_NAME: Final = "kubelet.sock"
FOLDER_MODE: Final = 0o750
# Kubelet's limits.
REQUESTS_PER_SECOND: Final = 100.0
REQUESTS_AT_ONCE: Final = 10
_STOP_SECONDS: Final = 1.0
DEFAULT_GATES: Final = FeatureGates()


class PodResourcesServer:
    """The server at the socket in the agent's root folder."""

    def __init__(
        self,
        root: str,
        sources: Sources,
        clock: Clock,
        metrics: Metrics,
        gates: FeatureGates = DEFAULT_GATES,
    ) -> None:
        self._folder = str(Path(root) / FOLDER)
        self._sources = sources
        self._gates = gates_of(gates)
        self._metrics = EndpointMetrics(metrics)
        limiter = Limiter(REQUESTS_PER_SECOND, REQUESTS_AT_ONCE, clock.monotonic())
        self._limit = RateLimit(limiter, clock.monotonic, metrics, "pod-resources")
        self._started = asyncio.Event()

    @property
    def path(self) -> str:
        """The path of the socket."""
        return str(Path(self._folder) / SOCKET_NAME)

    async def run(self) -> None:
        """Serve until cancelled."""
        os.makedirs(self._folder, exist_ok=True)
        os.chmod(self._folder, FOLDER_MODE)
        server = grpc.aio.server()
        PodResources(self._sources, self._gates, self._metrics, self._limit).add_to(server)
        add_v1alpha1(AlphaPodResources(self._sources, self._metrics, self._limit), server)
        await listen(server, self.path)
        self._started.set()
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(_STOP_SECONDS)

    async def wait_started(self) -> None:
        """Return when calls are answered."""
        await self._started.wait()


def gates_of(gates: FeatureGates) -> Gates:
    """Return the feature gates of PodResources; what a Pod has is listed whatever other gates say."""
    return Gates(
        dynamic=gates.enabled("KubeletPodResourcesDynamicResources"),
        pod_level=gates.enabled("PodLevelResourceManagers"),
        get=gates.enabled("KubeletPodResourcesGet"),
        active_only=gates.enabled("KubeletPodResourcesListUseActivePods"),
    )
