"""Finds misspelt resource names and node labels of a Pod. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dray.api.types.core_v1 import Pod
from dray.sim.explain.similar_names import did_you_mean, listed, nearest
from dray.sim.snapshot import Snapshot


def name_hints(snapshot: Snapshot, pod: Pod) -> Iterator[str]:
    """Yield hints on resources that no node has, and on labels of a node selector that no node has."""
    yield from _resource_hints(snapshot, pod)
    yield from _label_hints(snapshot, pod)


def _resource_hints(snapshot: Snapshot, pod: Pod) -> Iterator[str]:
    known = {name for node in snapshot.nodes for name in node.status.allocatable}
    known |= {item.spec.extended_resource_name for item in snapshot.classes if item.spec.extended_resource_name}
    known |= {f"deviceclass.resource.kubernetes.io/{item.metadata.name}" for item in snapshot.classes}
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    asked = {name for item in containers for name in (*item.resources.requests, *item.resources.limits)}
    for name in sorted(asked - known):
        if "/" in name:
            yield f'no node and no DeviceClass provides resource "{name}"{did_you_mean(name, known)}'


def _label_hints(snapshot: Snapshot, pod: Pod) -> Iterator[str]:
    values: dict[str, set[str]] = {}
    for node in snapshot.nodes:
        for name, value in node.metadata.labels.items():
            values.setdefault(name, set()).add(value)
    for name, value in sorted(pod.spec.node_selector.items()):
        if name not in values:
            yield f'no node has the label "{name}" of the node selector{did_you_mean(name, values)}'
        elif value not in values[name]:
            meant = nearest(value, values[name])
            known = f'did you mean "{meant}"?' if meant else f"nodes have {listed(sorted(values[name]))}"
            yield f'no node has the label {name}="{value}" of the node selector ({known})'
