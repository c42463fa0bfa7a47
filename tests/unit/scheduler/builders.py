"""Builders of Pods, nodes and framework handles for tests of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from dray.api.codec import from_document
from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Node, Pod
from dray.client.interface import Resource
from dray.client.objects import key_of
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.snapshot import Snapshot
from dray.scheduler.handle import Handle
from dray.scheduler.registry import BUILT_IN

NEED_MORE = ("ClassicResources", "DefaultPreemption", "DeviceFragmentation", "DynamicResources")
# The plugins that need nothing but a snapshot.
PLAIN = {name: factory for name, factory in BUILT_IN.items() if name not in NEED_MORE}


def container(requests: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "image", "resources": {"requests": requests or {}}, **more}


def pod(name: str = "p", *, uid: str = "", namespace: str = "default", labels: Any = None, **spec: Any) -> Pod:
    """`requests`, `priority`, `node`, `deleted`, `owners` are short for usual fields; others are fields of the spec."""
    requests = spec.pop("requests", None)
    status = spec.pop("status", {})
    spec.setdefault("containers", [container(requests)])
    spec.setdefault("schedulerName", "default-scheduler")
    if "node" in spec:
        spec["nodeName"] = spec.pop("node")
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "labels": labels or {}}
    if spec.pop("deleted", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if "owners" in spec:
        metadata["ownerReferences"] = spec.pop("owners")
    return from_document(Pod, {"metadata": metadata, "spec": spec, "status": status})


def pod_info(name: str = "p", **words: Any) -> PodInfo:
    return PodInfo(pod(name, **words))


def node(name: str = "n", *, labels: Any = None, allocatable: Any = None, images: Any = (), **spec: Any) -> Node:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"} if allocatable is None else allocatable
    return from_document(
        Node,
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": spec,
            "status": {"allocatable": amounts, "images": list(images)},
        },
    )


def node_info(name: str = "n", *, pods: Sequence[PodInfo] = (), **words: Any) -> NodeInfo:
    return NodeInfo(node(name, **words), {item.uid: item for item in pods})


class DeviceServedResource:
    """Provides one extended resource, which devices serve."""

    def __init__(self, name: str) -> None:
        self._name = name

    def serves_resource(self, name: str) -> bool:
        return name == self._name

    def device_usage(self, _node: NodeInfo, _name: str) -> tuple[int, int]:
        return 0, 0


class FakeInformer:
    """An informer with fixed objects, which are documents of `v1.Namespace` or typed objects."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = tuple(objects)
        self.lister = self

    def add_handler(self, handler: Any) -> None:
        for item in self._objects:
            handler(None, item)

    def get(self, name: str, namespace: str = "") -> Any:
        return next((item for item in self._objects if key_of(item) == NamespacedName(namespace, name)), None)

    def list(self, namespace: str = "") -> tuple[Any, ...]:
        return tuple(item for item in self._objects if not namespace or key_of(item).namespace == namespace)


class FakeInformers:
    """The informers of all kinds, by plural."""

    def __init__(self, objects: Mapping[str, Sequence[Any]]) -> None:
        self._objects = objects

    def informer(self, resource: Resource[Any], *_options: Any, **_more: Any) -> FakeInformer:
        return FakeInformer(self._objects.get(resource.plural, ()))


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def handle(*nodes: NodeInfo, **objects: Sequence[Any]) -> Handle:
    """For plugins that only look at the snapshot, and at objects by plural."""
    nothing = cast(Any, None)
    informers = cast(Any, FakeInformers(objects))
    return Handle(nothing, informers, nothing, nothing, FeatureGates(), Snapshot(nodes), nothing)


def state(pod: Pod | PodInfo) -> CycleState:
    return CycleState(pod if isinstance(pod, PodInfo) else PodInfo(pod))
