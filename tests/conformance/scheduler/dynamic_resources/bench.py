"""Drives the plugin through its extension points against the API server, one call after the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.api.features import FeatureGates
from dray.api.pod_claims import FINALIZER
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.client.in_process import InProcessTransport
from dray.client.interface import Resource, unstructured
from dray.client.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dray.client.rest import Call, RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.framework.cycle_state import CycleState
from dray.framework.events import ClusterEvent
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Status
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from dray.runtime.tasks import TaskGroup
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.plugin import DynamicResources, make_dynamic_resources
from tests.in_process_server import in_process_server

TEAM = "team"
DRIVER = "gpu.example.com"
RULES = unstructured(GroupVersion("resource.k8s.io", "v1"), "devicetaintrules", "DeviceTaintRule", namespaced=False)
KINDS: dict[str, Resource[Any]] = {
    "Pod": PODS,
    "Node": NODES,
    "ResourceClaim": RESOURCE_CLAIMS,
    "ResourceSlice": RESOURCE_SLICES,
    "DeviceClass": DEVICE_CLASSES,
    "DeviceTaintRule": RULES,
}


# --- Tiny objects. ---


def device_class(name: str = "gpu", expression: str = f'device.driver == "{DRIVER}"') -> Document:
    return {
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def node(name: str, **labels: str) -> Document:
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def resource_slice(node_name: str, *devices: str | Document, driver: str = DRIVER) -> Document:
    items = [item if isinstance(item, dict) else {"name": item} for item in devices]
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    return {
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-{driver}"},
        "spec": {"driver": driver, "nodeName": node_name, "pool": pool, "devices": items},
    }


def device(name: str, **attributes: str) -> Document:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def request(name: str = "r", device_class_name: str = "gpu", **fields: Any) -> Document:
    return {"name": name, "exactly": {"deviceClassName": device_class_name, **fields}}


def alternatives(name: str, *classes: str) -> Document:
    listed = [{"name": f"sub-{number}", "deviceClassName": item} for number, item in enumerate(classes)]
    return {"name": name, "firstAvailable": listed}


def claim(name: str = "claim", *requests: Document, **metadata: Any) -> Document:
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": TEAM, **metadata},
        "spec": {"devices": {"requests": list(requests or (request(),))}},
    }


def allocated(name: str, node_name: str, *devices: str, **metadata: Any) -> Document:
    """With a status; its users are added by the test."""
    results = [{"request": "r", "driver": DRIVER, "pool": node_name, "device": item} for item in devices]
    field_term = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    return claim(name, request(count=len(devices)), finalizers=[FINALIZER], **metadata) | {
        "status": {
            "allocation": {
                "devices": {"results": results},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field_term]}]},
            }
        }
    }


def pod(name: str = "pod", *claims: str, entries: Sequence[Document] = (), **spec: Any) -> Document:
    listed = [{"name": f"entry-{number}", "resourceClaimName": item} for number, item in enumerate(claims)]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"containers": [{"name": "c", "image": "i"}], "resourceClaims": [*listed, *entries], **spec},
    }


# --- The bench. ---


@dataclass
class Watched:
    """A transport that records writes, and fails or blocks on demand."""

    inner: InProcessTransport
    calls: list[Call] = field(default_factory=list)
    fail: Callable[[Call], Exception | None] = lambda _: None

    async def send(self, call: Call) -> Document:
        if call.verb not in ("get", "list"):
            self.calls.append(call)
        failure = self.fail(call)
        if failure is not None:
            raise failure
        return await self.inner.send(call)

    def stream(self, call: Call) -> Any:
        return self.inner.stream(call)

    async def close(self) -> None:
        await self.inner.close()


@dataclass
class Attempt:
    """One Pod on its way."""

    pod: Pod
    state: CycleState
    statuses: dict[str, Status] = field(default_factory=dict)


@dataclass
class Recorded:
    """What the plugin reported through its handle."""

    notified: list[tuple[ClusterEvent, Any, Any]] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    node_events: list[tuple[str, str, str]] = field(default_factory=list)
    claim_events: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass
class Bench:
    """The plugin in a cluster; objects are seen by it when `create` returns."""

    plugin: DynamicResources
    handle: Handle
    user: RestClient
    transport: Watched
    recorded: Recorded

    @property
    def notified(self) -> list[tuple[ClusterEvent, Any, Any]]:
        return self.recorded.notified

    @property
    def events(self) -> list[tuple[str, str]]:
        return self.recorded.events

    @property
    def node_events(self) -> list[tuple[str, str, str]]:
        return self.recorded.node_events

    async def create(self, *documents: Document) -> None:
        for document in documents:
            resource = KINDS[document["kind"]]
            obj = document if resource is RULES else msgspec.convert(document, resource.type)
            made = await self.user.create(resource, obj)
            if "status" in document and resource is RESOURCE_CLAIMS:
                status = msgspec.convert(document["status"], type(made.status))
                made = await self.user.update_status(resource, msgspec.structs.replace(made, status=status))
            await self.seen(resource, made)

    async def seen(self, resource: Resource[Any], obj: Any) -> None:
        """Wait until the plugin's informer has delivered the object."""
        metadata = obj["metadata"] if isinstance(obj, dict) else obj.metadata
        name, namespace = (metadata["name"], "") if isinstance(obj, dict) else (metadata.name, metadata.namespace or "")
        lister = self.handle.informers.informer(resource).lister

        def arrived() -> bool:
            found = lister.get(name, namespace)
            if isinstance(obj, dict):
                return found is not None
            return found is not None and int(found.metadata.resource_version) >= int(metadata.resource_version)

        await until(arrived)
        if resource is NODES:
            self.handle.snapshot.replace_all([NodeInfo(item) for item in lister.list()])

    async def claim(self, name: str = "claim") -> ResourceClaim:
        return await self.user.get(RESOURCE_CLAIMS, name, TEAM)

    async def has_claim(self, name: str) -> bool:
        try:
            await self.claim(name)
        except NotFoundError:
            return False
        return True

    async def reserve_for(self, name: str, *pods: Pod) -> ResourceClaim:
        """Have Pods use an allocated claim."""
        current = await self.claim(name)
        users = [{"resource": "pods", "name": item.metadata.name, "uid": item.metadata.uid} for item in pods]
        status = msgspec.convert(msgspec.to_builtins(current.status) | {"reservedFor": users}, type(current.status))
        changed = await self.user.update_status(RESOURCE_CLAIMS, msgspec.structs.replace(current, status=status))
        await self.seen(RESOURCE_CLAIMS, changed)
        return changed

    async def start(self, document: Document) -> Attempt:
        """A Pod at the beginning of an attempt."""
        made = await self.user.create(PODS, msgspec.convert(document, Pod))
        return self.attempt(made)

    def attempt(self, made: Pod) -> Attempt:
        return Attempt(made, CycleState(PodInfo(made)))

    def filter(self, attempt: Attempt) -> dict[str, Status]:
        """PreFilter, then Filter on every node; a PreFilter that is not Success is under the empty name."""
        _, status = self.plugin.pre_filter(attempt.state, attempt.pod)
        if not status.is_success:
            attempt.statuses = {"": status}
            return attempt.statuses
        for item in self.handle.snapshot:
            attempt.statuses[item.name] = self.plugin.filter(attempt.state, attempt.pod, item).with_plugin(
                self.plugin.name
            )
        return attempt.statuses

    def feasible(self, attempt: Attempt) -> list[str]:
        return [name for name, status in self.filter(attempt).items() if status.is_success]

    def scores(self, attempt: Attempt) -> dict[str, int]:
        """PreScore, Score and normalization over the feasible nodes."""
        nodes = [self.handle.snapshot.get(name) for name in self.feasible(attempt)]
        found = [item for item in nodes if item is not None]
        assert self.plugin.pre_score(attempt.state, attempt.pod, found).is_success
        scores = [self.plugin.score(attempt.state, attempt.pod, item) for item in found]
        self.plugin.normalize_scores(attempt.state, attempt.pod, scores)
        return {item.name: score for item, score in zip(found, scores, strict=True)}

    async def take(self, attempt: Attempt, node_name: str) -> Status:
        """Reserve and PreBind."""
        status = self.plugin.reserve(attempt.state, attempt.pod, node_name)
        return await self.plugin.pre_bind(attempt.state, attempt.pod, node_name) if status.is_success else status

    async def undo(self, attempt: Attempt, node_name: str) -> None:
        self.plugin.unreserve(attempt.state, attempt.pod, node_name)
        await self.plugin.unreserve_writes(attempt.state, attempt.pod, node_name)

    def writes(self) -> list[str]:
        """The claim writes so far, as `verb name[/subresource]`."""
        listed = [call for call in self.transport.calls if call.resource is not None]
        return [f"{call.verb} {call.name}{'/' + call.subresource if call.subresource else ''}" for call in listed]


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while True:
            answer = condition()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.001)


@asynccontextmanager
async def bench(gates: str = "", server_gates: str = "", **arguments: str) -> AsyncIterator[Bench]:
    """The plugin on a fresh server, which may have other gates."""
    clock = SystemClock()
    features = FeatureGates.parse(gates)
    own = FeatureGates.parse(server_gates)
    async with in_process_server(clock, random.Random(1), TEAM, gates=own) as server:
        transport = Watched(InProcessTransport(server, user="s", groups=("system:masters",), user_agent="s"))
        client = RestClient(transport)
        user = RestClient(InProcessTransport(server, user="u", groups=("system:masters",), user_agent="u"))
        informers = SharedInformerFactory(client, clock, random.Random(1))
        recorded = Recorded()
        handle = Handle(
            client,
            informers,
            clock,
            Metrics(),
            features,
            Snapshot(),
            None,  # type: ignore[arg-type]
            notify=lambda event, old, new: recorded.notified.append((event, old, new)),
            record=lambda _pod, _type, reason, message: recorded.events.append((reason, message)),
            record_node=lambda node, _type, reason, message: recorded.node_events.append(
                (node.metadata.name or "", reason, message)
            ),
            record_claim=lambda found, _type, reason, message: recorded.claim_events.append(
                (found.metadata.name or "", reason, message)
            ),
        )
        plugin = make_dynamic_resources(arguments, handle)
        made = Bench(plugin, handle, user, transport, recorded)  # type: ignore[arg-type]
        informers.informer(NODES)
        informers.informer(PODS)
        async with TaskGroup("bench") as group:
            group.spawn(informers.run(), "informers")
            await informers.wait_for_sync()
            yield made
