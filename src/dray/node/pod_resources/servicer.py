"""The gRPC services of PodResources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from dray.api.document import NamespacedName
from dray.node.pod_resources.listing import allocatable, alpha_pod_resources, find, in_order, listed
from dray.node.pod_resources.metrics import EndpointMetrics, Method
from dray.node.pod_resources.response_cache import ListResponseCache
from dray.node.pod_resources.sources import Sources
from dray.node.rate_limit import RateLimit
from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1alpha1 import api_pb2 as v1alpha1
from dray.rpc.pb.podresources.v1alpha1 import api_pb2_grpc as v1alpha1_grpc

Context = grpc.aio.ServicerContext[Any, Any]

SERVICE: Final = f"{v1.DESCRIPTOR.package}.PodResourcesLister"
V1: Final = "v1"
V1ALPHA1: Final = "v1alpha1"


@dataclass(frozen=True, slots=True)
class Gates:
    """The feature gates of PodResources."""

    dynamic: bool = True
    pod_level: bool = False
    get: bool = True
    active_only: bool = True


class PodResources:
    """The v1 service."""

    def __init__(self, sources: Sources, gates: Gates, metrics: EndpointMetrics, limit: RateLimit) -> None:
        self._sources = sources
        self._gates = gates
        self._answers = ListResponseCache(sources, dynamic=gates.dynamic, pod_level=gates.pod_level)
        self._metrics = metrics
        self._limit = limit

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the service to a server; `List` returns cached bytes."""
        handlers = {
            "List": _handler(self.List, v1.ListPodResourcesRequest, bytes),
            "GetAllocatableResources": _handler(
                self.GetAllocatableResources,
                v1.AllocatableResourcesRequest,
                v1.AllocatableResourcesResponse.SerializeToString,
            ),
            "Get": _handler(self.Get, v1.GetPodResourcesRequest, v1.GetPodResourcesResponse.SerializeToString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def List(self, _request: v1.ListPodResourcesRequest, context: Context) -> bytes:
        """Return all Pods, after freeing the devices of deleted ones."""
        await self._limit.check(context)
        with self._counted(Method.LIST):
            if self._sources.devices is not None:
                await self._sources.devices.refresh()
            return self._answers.all(listed(self._sources, active_only=self._gates.active_only))

    async def GetAllocatableResources(
        self, _request: v1.AllocatableResourcesRequest, context: Context
    ) -> v1.AllocatableResourcesResponse:
        """Return what can be allocated."""
        await self._limit.check(context)
        with self._counted(Method.GET_ALLOCATABLE):
            return allocatable(self._sources)

    async def Get(self, request: v1.GetPodResourcesRequest, context: Context) -> v1.GetPodResourcesResponse:
        """Return one Pod."""
        await self._limit.check(context)
        with self._counted(Method.GET):
            if not self._gates.get:
                await _fail(context, "PodResources API Get method disabled")
            name = NamespacedName(request.pod_namespace, request.pod_name)
            pod = find(self._sources, name, active_only=self._gates.active_only)
            if pod is None:
                await _fail(context, f"pod {name.name} in namespace {name.namespace} not found")
            return v1.GetPodResourcesResponse(pod_resources=self._answers.one(pod))

    @contextmanager
    def _counted(self, method: Method) -> Iterator[None]:
        """Count the call, and its failure."""
        self._metrics.requested(V1, method)
        try:
            yield
        except BaseException:
            self._metrics.failed(V1, method)
            raise


class AlphaPodResources(v1alpha1_grpc.PodResourcesListerServicer):  # type: ignore[misc]
    """The v1alpha1 service."""

    def __init__(self, sources: Sources, metrics: EndpointMetrics, limit: RateLimit) -> None:
        self._sources = sources
        self._metrics = metrics
        self._limit = limit

    async def List(
        self, _request: v1alpha1.ListPodResourcesRequest, context: Context
    ) -> v1alpha1.ListPodResourcesResponse:
        """Return all Pods, including finished ones."""
        await self._limit.check(context)
        self._metrics.requested(V1ALPHA1)
        if self._sources.devices is not None:
            await self._sources.devices.refresh()
        pods = in_order(listed(self._sources, active_only=False))
        return v1alpha1.ListPodResourcesResponse(
            pod_resources=[alpha_pod_resources(pod, self._sources) for pod in pods]
        )


def _handler(method: Any, request: Any, serialize: Callable[[Any], bytes]) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=request.FromString, response_serializer=serialize
    )


async def _fail(context: Context, text: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNKNOWN, text)
    raise AssertionError("abort raises")
