"""A cluster in memory for tests of preemption with devices: informers without a server, and the real plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.api.types import cdi_v1alpha1 as cdi
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.interface import Resource
from dray.client.objects import key_of
from dray.client.resources import (
    CLASSIC_CLAIMS,
    CLASSIC_CLASSES,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dray.framework.cycle_state import CycleState
from dray.framework.events import ClusterEvent
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import PostFilterResult
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.framework.status import Status
from dray.runtime.metrics import Metrics
from dray.scheduler.cycle import Cycle, Placement
from dray.scheduler.filter_runner import runner_of
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.classic_resources.plugin import make_classic_resources
from dray.scheduler.plugins.default_preemption import DefaultPreemption
from dray.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from dray.scheduler.preemption.budgets import Budget
from dray.scheduler.preemption.dry_run import Candidate, DryRun
from tests.unit.scheduler.builders import node as node_object
from tests.unit.scheduler.builders import pod as pod_object
from tests.unit.scheduler.test_cycle import profile

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DRIVER = "gpu.example.com"


class Objects:
    """The informer of one resource, and its lister."""

    def __init__(self) -> None:
        self._objects: dict[NamespacedName, Any] = {}
        self._handlers: list[Callable[[Any, Any], None]] = []
        self._indexes: dict[str, Callable[[Any], Sequence[str]]] = {}

    @property
    def lister(self) -> Objects:
        return self

    def add_handler(self, handler: Callable[[Any, Any], None]) -> None:
        self._handlers.append(handler)

    def add_indexes(self, indexes: dict[str, Callable[[Any], Sequence[str]]]) -> None:
        self._indexes |= indexes

    def get_key(self, key: NamespacedName) -> Any:
        return self._objects.get(key)

    def get(self, name: str, namespace: str = "") -> Any:
        return self._objects.get(NamespacedName(namespace, name))

    def by_index(self, name: str, value: str) -> list[Any]:
        return [item for item in self._objects.values() if value in self._indexes[name](item)]

    def apply(self, obj: Any) -> None:
        old = self._objects.get(key_of(obj))
        self._objects[key_of(obj)] = obj
        for handler in self._handlers:
            handler(old, obj)

    def remove(self, key: NamespacedName) -> None:
        old = self._objects.pop(key)
        for handler in self._handlers:
            handler(old, None)


class Informers:
    def __init__(self) -> None:
        self._by_resource: dict[str, Objects] = {}

    def informer(self, resource: Resource[Any], *_: Any, indexes: Any = None) -> Objects:
        objects = self._by_resource.setdefault(f"{resource.group}/{resource.plural}", Objects())
        objects.add_indexes(indexes or {})
        return objects


class Clock:
    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


def request(count: int = 1, *, device_class: str = "gpu", **more: Any) -> Document:
    return {"name": "r", "exactly": {"deviceClassName": device_class, "count": count, **more}}


def claim(name: str, *requests: Document, resource_version: int = 1) -> ResourceClaim:
    document = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"claim-{name}",
            "resourceVersion": f"{resource_version}",
        },
        "spec": {"devices": {"requests": list(requests or (request(),))}},
    }
    return msgspec.convert(document, ResourceClaim)


def allocation(node_name: str, *devices: str | Document) -> Document:
    results = []
    for item in devices:
        result = {"request": "r", "driver": DRIVER, "pool": node_name}
        results.append(result | ({"device": item} if isinstance(item, str) else item))
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    return {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}


class DeviceCluster:
    """Nodes with devices, Pods that use them, and a Pod that may preempt."""

    def __init__(self, gates: str = "") -> None:
        self.informers = Informers()
        self.notified: list[tuple[ClusterEvent, Any, Any]] = []
        nothing = cast(Any, None)
        self.handle = Handle(
            nothing,
            cast(Any, self.informers),
            cast(Any, Clock()),
            Metrics(),
            FeatureGates.parse(gates) if gates else FeatureGates(),
            Snapshot(),
            nothing,
            notify=lambda *event: self.notified.append(event),
        )
        self.devices = DynamicResources({}, self.handle)
        self.preemption = DefaultPreemption({}, self.handle)
        self.profile = profile(
            NodeResourcesFit({}, self.handle),
            make_classic_resources({}, self.handle),
            self.devices,
            self.preemption,
        )
        self.handle.profiles["default-scheduler"] = self.profile
        self.started: list[Candidate] = []
        cast(Any, self.preemption._executor).start = lambda preemptor, victims: self.started.append(
            Candidate(preemptor.place, victims)
        )
        self._nodes: dict[str, NodeInfo] = {}
        self._versions = 1
        self.add_class("gpu")

    def add_class(self, name: str, expression: str = f'device.driver == "{DRIVER}"') -> None:
        document = {
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": f"example.com/{name}"},
        }
        self.informers.informer(DEVICE_CLASSES).apply(msgspec.convert(document, DeviceClass))

    def add_node(self, name: str, *devices: str | Document, cpu: str = "8", **content: Any) -> None:
        amounts = content.pop("amounts", {})
        node = node_object(name, allocatable={"cpu": cpu, "memory": "8Gi", "pods": "110", **amounts})
        self.informers.informer(NODES).apply(node)
        self._nodes[name] = NodeInfo(node)
        items = [item if isinstance(item, dict) else {"name": item} for item in devices]
        slices = [{"devices": items, **content.pop("selection", {"nodeName": name})}]
        if content:
            slices.append({"nodeName": name, **content})
        for number, spec in enumerate(slices):
            pool = {"name": name, "generation": 1, "resourceSliceCount": len(slices)}
            document = {"metadata": {"name": f"{name}-{number}"}, "spec": {"driver": DRIVER, "pool": pool, **spec}}
            self.informers.informer(RESOURCE_SLICES).apply(msgspec.convert(document, ResourceSlice))
        self._refresh()

    def add_claim(self, name: str, *requests: Document) -> None:
        self.informers.informer(RESOURCE_CLAIMS).apply(claim(name, *requests))

    def set_classic(self, name: str, *users: str, limit: int = 1, phase: str = "Allocated", **driver: Any) -> None:
        """A claim of cdi.k8s.io with users; `driver` is what its driver says of nodes.

        `mode` is its allocation mode, and `selected` the node for which the driver allocates.
        """
        mode, selected = driver.pop("mode", "Delayed"), driver.pop("selected", "")
        self._versions += 1
        document = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"classic-{name}",
                "resourceVersion": f"{self._versions}",
            },
            "spec": {"resourceClassName": "card", "allocationMode": mode},
            "status": {
                "phase": phase,
                "userLimit": limit,
                "reservedFor": [
                    {"apiVersion": "v1", "kind": "Pod", "name": user, "uid": f"uid-{user}"} for user in users
                ],
                "scheduling": {"driver": driver, "scheduler": {"selectedNode": selected}},
            },
        }
        card = {"metadata": {"name": "card"}, "driverName": "card.example.com"}
        self.informers.informer(CLASSIC_CLASSES).apply(msgspec.convert(card, cdi.ResourceClass))
        self.informers.informer(CLASSIC_CLAIMS).apply(msgspec.convert(document, cdi.ResourceClaim))

    def allocate(self, name: str, node_name: str, *devices: str | Document, users: Sequence[str] = ()) -> None:
        """Give a claim devices and users; without devices it is deallocated."""
        objects = self.informers.informer(RESOURCE_CLAIMS)
        current: ResourceClaim = objects.get(name, "default")
        consumers = [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]
        status: Document = {"reservedFor": consumers}
        if devices:
            status["allocation"] = allocation(node_name, *devices)
        self._versions += 1
        metadata = msgspec.structs.replace(current.metadata, resource_version=f"{self._versions}")
        changed = msgspec.structs.replace(
            current, metadata=metadata, status=msgspec.convert(status, type(current.status))
        )
        objects.apply(changed)

    def run(
        self, name: str, node_name: str, *devices: str | Document, claims: Sequence[str] = (), **words: Any
    ) -> PodInfo:
        """A Pod on a node, with a claim of its own for the devices, or with named claims."""
        if devices:
            self.add_claim(name)
            self.allocate(name, node_name, *devices, users=[name])
            claims = (name, *claims)
        entries = [{"name": f"e{number}", "resourceClaimName": item} for number, item in enumerate(claims)]
        info = PodInfo(pod_object(name, node=node_name, resourceClaims=entries, **words))
        self.informers.informer(PODS).apply(info.pod)
        self._nodes[node_name] = self._nodes[node_name].with_pod(info)
        self._refresh()
        return info

    def assume(self, info: PodInfo, node_name: str) -> None:
        """A Pod that is being bound to a node."""
        self._nodes[node_name] = self._nodes[node_name].with_pod(info)
        self._refresh()

    def forget(self, info: PodInfo, node_name: str) -> None:
        """A Pod that was not bound after all."""
        self._nodes[node_name] = self._nodes[node_name].without_pod(info.uid)
        self._refresh()

    def delete(self, name: str) -> None:
        """The Pod object goes; its claim stays allocated."""
        key = NamespacedName("default", name)
        pod: Pod = self.informers.informer(PODS).get_key(key)
        self.informers.informer(PODS).remove(key)
        node_name = pod.spec.node_name or ""
        if node_name:
            self._nodes[node_name] = self._nodes[node_name].without_pod(pod.metadata.uid or "")
            self._refresh()

    def free(self, name: str) -> None:
        """What the claim controller does with a claim of a deleted Pod."""
        self.informers.informer(RESOURCE_CLAIMS).remove(NamespacedName("default", name))

    def deallocate(self, name: str) -> None:
        self.allocate(name, "")

    def pending(self, name: str, *requests: Document, claims: Sequence[str] = (), **words: Any) -> Pod:
        """A Pod without a node, with a claim of its own for the requests."""
        if requests:
            self.add_claim(name, *requests)
            claims = (name, *claims)
        entries = [{"name": f"e{number}", "resourceClaimName": item} for number, item in enumerate(claims)]
        made = pod_object(name, resourceClaims=entries, **words)
        self.informers.informer(PODS).apply(made)
        return made

    def info_of(self, pod: Pod) -> PodInfo:
        return PodInfo(pod)

    def replace_node(self, name: str, *, cpu: str) -> None:
        node = node_object(name, allocatable={"cpu": cpu, "memory": "8Gi", "pods": "110"})
        self.informers.informer(NODES).apply(node)
        self._nodes[name] = NodeInfo(node, self._nodes[name].pods)
        self._refresh()

    def _refresh(self) -> None:
        """Show the changes to the scheduler as its cache does."""
        snapshot = self.handle.snapshot
        if [node.name for node in snapshot] != list(self._nodes):
            snapshot.replace_all(list(self._nodes.values()))
        for index, node in enumerate(self._nodes.values()):
            if snapshot.nodes[index] is not node:
                snapshot.replace(node)

    # --- Scheduling. ---

    def place(self, pod: Pod) -> tuple[CycleState, Any]:
        """Run the scheduling cycle; a rejection is explained as before PostFilter."""
        state = CycleState(PodInfo(pod))
        found = Cycle(self.handle.snapshot, self.handle.nominations).place(self.profile, state)
        if not isinstance(found, Placement):
            statuses = dict(found.statuses)
            self.devices.explain_rejections(state, pod, statuses)
            found = replace(found, statuses=statuses)
        return state, found

    def node_of(self, pod: Pod) -> str:
        """Return the node that the Pod would get; empty if there is none."""
        found = self.place(pod)[1]
        return found.node_name if isinstance(found, Placement) else ""

    def dry_run(self, pod: Pod, node_name: str, budgets: Sequence[Budget] = ()) -> Candidate | Status:
        state, found = self.place(pod)
        assert not isinstance(found, Placement), found
        runner = runner_of(self.profile, state, self.handle.nominations)
        node = self.handle.snapshot.get(node_name)
        assert node is not None
        return DryRun(runner, state, budgets).on(node)

    def victims(self, pod: Pod, node_name: str) -> list[str]:
        """Return who would have to go; empty if nobody's eviction helps."""
        found = self.dry_run(pod, node_name)
        return sorted(item.key.name for item in found.victims) if isinstance(found, Candidate) else []

    def preempt(self, pod: Pod) -> tuple[PostFilterResult | None, Status]:
        """An attempt that ends in PostFilter; a nomination is kept as the scheduler keeps it."""
        state, found = self.place(pod)
        assert not isinstance(found, Placement), found
        return self.post_filter(state, pod, found.statuses)

    def post_filter(
        self, state: CycleState, pod: Pod, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status]:
        result, status = asyncio.run(self.preemption.post_filter(state, pod, statuses))
        if result is not None:
            self.handle.nominations.set(PodInfo(pod), result.nominated_node_name)
        return result, status

    def nominated(self, pod: Pod) -> list[str]:
        """Preempt, and return the victims; the Pod is nominated then."""
        count = len(self.started)
        self.preempt(pod)
        assert len(self.started) == count + 1, "nothing was preempted"
        return sorted(item.key.name for item in self.started[-1].victims)

    def held(self, pod: Pod) -> list[str]:
        """Return the devices that are kept for a nominated Pod."""
        record = self.devices._devices.nominees.get(pod.metadata.uid or "")
        if record is None:
            return []
        return [item.device for _, given in record.allocations for item in given.devices.results]


def node(name: str) -> Node:
    return node_object(name)
