"""Access to the demo's cluster: the API, and the PodResources sockets of its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final

import yaml

from dray.api.document import Document, NamespacedName
from dray.api.errors import ForbiddenError
from dray.api.features import FeatureGates
from dray.client import resources
from dray.client.http import HttpTransport, http_client
from dray.client.interface import (
    Bookmark,
    Client,
    Patch,
    PatchType,
    Resource,
    WatchEvent,
    WatchOptions,
    WriteOptions,
)
from dray.client.kubeconfig import Access
from dray.client.resources import FieldManager
from dray.cmd.demo.cluster_state import ClusterState
from dray.cmd.demo.facts import ContainerDevices
from dray.rpc.pb.podresources.v1 import api_pb2
from dray.rpc.pb.podresources.v1.api_pb2_grpc import PodResourcesListerStub
from dray.rpc.sockets import connect
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.sim.cluster_reader import read_cluster
from dray.sim.explain.answers import Answer
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import pod_subject
from dray.sim.snapshot import PATH_KINDS

NAMESPACE: Final = "default"
CALL_SECONDS_MAX: Final = 10.0
# Pods are rejected until the namespace has its default service account, shortly after the server starts.
ACCOUNT_TRIES_MAX: Final = 200
POLL_SECONDS: Final = 0.05
NODES: Final = resources.NODES.unstructured
PODS: Final = resources.PODS.unstructured
CLAIMS: Final = resources.RESOURCE_CLAIMS.unstructured
SLICES: Final = resources.RESOURCE_SLICES.unstructured
CLASSIC: Final = resources.CLASSIC_CLAIMS.unstructured
_RESOURCES: Final[dict[str, Resource[Document]]] = {
    "Node": NODES,
    "Pod": PODS,
    "ResourceClaim": CLAIMS,
    "DeviceClass": resources.DEVICE_CLASSES.unstructured,
    "ResourceClaimTemplate": resources.RESOURCE_CLAIM_TEMPLATES.unstructured,
    "ResourceClass": resources.CLASSIC_CLASSES.unstructured,
    "Deployment": resources.DEPLOYMENTS.unstructured,
    "PriorityClass": resources.PRIORITY_CLASSES,
}


class Cluster:
    """The demo's cluster."""

    def __init__(self, access: Access, nodes: Path) -> None:
        self._client: Client = http_client(access, SystemClock(), user_agent=FieldManager.DEMO)
        self._logs = HttpTransport(access, SystemClock(), user_agent=FieldManager.DEMO)
        self._nodes = nodes

    async def close(self) -> None:
        """Close the connections."""
        await self._logs.close()
        await self._client.close()

    async def read_state(self) -> ClusterState:
        """List the objects that the demo shows."""
        nodes, pods, claims, slices, classic = await asyncio.gather(
            self._client.list(NODES),
            self._client.list(PODS, NAMESPACE),
            self._client.list(CLAIMS, NAMESPACE),
            self._client.list(SLICES),
            self._client.list(CLASSIC, NAMESPACE),
        )
        return ClusterState(nodes.items, pods.items, claims.items, slices.items, classic.items)

    async def apply(self, documents: Sequence[Document]) -> None:
        """Apply manifests as `kubectl apply --server-side` does."""
        for document in documents:
            resource = _RESOURCES[document["kind"]]
            await self._apply(resource, document, NAMESPACE if resource.namespaced else "")

    async def _apply(self, resource: Resource[Document], document: Document, namespace: str) -> None:
        patch = Patch(PatchType.APPLY, document)
        options = WriteOptions(FieldManager.DEMO, force=True, field_validation="Strict")
        for _ in range(ACCOUNT_TRIES_MAX):
            try:
                await self._client.patch(resource, document["metadata"]["name"], namespace, patch, options)
            except ForbiddenError as error:
                if "service account" not in str(error):
                    raise
                await asyncio.sleep(POLL_SECONDS)
            else:
                return
        raise TimeoutError(f"namespace {namespace} has no default service account")

    @asynccontextmanager
    async def watch_classic_claims(self) -> AsyncIterator[list[Document]]:
        """Collect every state of classic claims during an `async with`."""
        states: list[Document] = []
        since = WatchOptions(resource_version=(await self._client.list(CLASSIC, NAMESPACE)).resource_version)

        async def watch() -> None:
            async with aclosing(self._client.watch(CLASSIC, NAMESPACE, since)) as events:
                async for event in events:
                    _append_state(event, states)

        async with TaskGroup("demo classic claims") as group:
            group.spawn(watch(), "watch")
            yield states

    async def log(self, pod: str) -> str:
        """Return the log of a Pod."""
        chunks = [chunk async for chunk in self._logs.stream_bytes(PODS.path(NAMESPACE, pod, "log"), {})]
        return b"".join(chunks).decode(errors="replace")

    async def explain(self, pod: str) -> Answer:
        """Return the answer of `dray explain pod`."""
        snapshot = await read_cluster(self._client, PATH_KINDS, NAMESPACE)
        subject = pod_subject(snapshot, NamespacedName(NAMESPACE, pod))
        now = SystemClock().now()
        # CPU-bound; the view is redrawn meanwhile.
        return await asyncio.to_thread(explain, snapshot, subject, now, gates=FeatureGates())

    async def events(self, reason: str) -> list[Document]:
        """Return the Events with a reason."""
        page = await self._client.list(resources.EVENTS, NAMESPACE)
        return [item for item in page.items if item.get("reason") == reason]

    async def pod_resources(self, node: str) -> list[ContainerDevices]:
        """Return the PodResources of a node, from its socket."""
        async with connect(str(self._nodes / node / "pod-resources" / "kubelet.sock")) as channel:
            request = api_pb2.ListPodResourcesRequest()
            answer = await PodResourcesListerStub(channel).List(request, timeout=CALL_SECONDS_MAX, wait_for_ready=True)
        return [
            _devices(pod.name, container)
            for pod in answer.pod_resources
            for container in pod.containers
            if container.devices or container.dynamic_resources
        ]


def _append_state(event: WatchEvent[Document] | Bookmark, states: list[Document]) -> None:
    if isinstance(event, WatchEvent):
        states.append(event.object)


def _devices(pod: str, container: api_pb2.ContainerResources) -> ContainerDevices:
    plugin: dict[str, list[str]] = {}
    for item in container.devices:
        plugin.setdefault(item.resource_name, []).extend(item.device_ids)
    claims = {
        item.claim_name: tuple(f"{one.driver_name}/{one.pool_name}/{one.device_name}" for one in item.claim_resources)
        for item in container.dynamic_resources
    }
    return ContainerDevices(pod, container.name, {name: tuple(ids) for name, ids in plugin.items()}, claims)


def read_manifest(path: Path) -> list[Document]:
    """Read the documents of a file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]
