"""Finds misspelt resource names and node labels of a Pod. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from dray.api.types.core_v1 import Container, Pod
from dray.sim.explain.answers import Size
from dray.sim.explain.similar_names import did_you_mean, listed, nearest
from dray.sim.snapshot import Snapshot

T = TypeVar("T")
_OF_KUBERNETES: Final = "node.kubernetes.io/"
replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class NameHint:
    """A name in a Pod that nothing in the cluster has, and what to do about it."""

    text: str
    # An imperative.
    action: str
    # The Pod as it was probably meant; None if that is unknown.
    corrected: Pod | None = None
    size: Size = Size.CORRECT_NAME


def name_hints(snapshot: Snapshot, pod: Pod) -> Iterator[NameHint]:
    """Yield hints on resources that no node has, and on labels of a node selector that no node has."""
    if not snapshot.covers("Node", "Pod"):
        return
    yield from _resource_hints(snapshot, pod)
    yield from _label_hints(snapshot, pod)
    yield from _affinity_hints(snapshot, pod)
    yield from _toleration_hints(snapshot, pod)


def _resource_hints(snapshot: Snapshot, pod: Pod) -> Iterator[NameHint]:
    known = {name for node in snapshot.nodes for name in node.status.allocatable}
    known |= {item.spec.extended_resource_name for item in snapshot.classes if item.spec.extended_resource_name}
    known |= {f"deviceclass.resource.kubernetes.io/{item.metadata.name}" for item in snapshot.classes}
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    asked = {name for item in containers for name in (*item.resources.requests, *item.resources.limits)}
    for name in sorted(asked - known):
        if "/" not in name:
            continue
        meant = nearest(name, known)
        text = f'no node and no DeviceClass provides resource "{name}"{did_you_mean(name, known)}'
        if meant:
            yield NameHint(text, f"write {meant} instead of {name}", _with_resource(pod, name, meant))
        else:
            action = f"install the device plugin for it, or set extendedResourceName {name} in a DeviceClass"
            yield NameHint(text, action)


def _with_resource(pod: Pod, name: str, other: str) -> Pod:
    def corrected(container: Container) -> Container:
        resources = container.resources
        changed = replace(
            resources,
            requests=_renamed(resources.requests, name, other),
            limits=_renamed(resources.limits, name, other),
        )
        return replace(container, resources=changed)

    spec = replace(
        pod.spec,
        containers=tuple(corrected(item) for item in pod.spec.containers),
        init_containers=tuple(corrected(item) for item in pod.spec.init_containers),
    )
    return replace(pod, spec=spec)


def _renamed(values: Mapping[str, T], name: str, other: str) -> dict[str, T]:
    return {other if key == name else key: value for key, value in values.items()}


def _label_hints(snapshot: Snapshot, pod: Pod) -> Iterator[NameHint]:
    values: dict[str, set[str]] = {}
    for node in snapshot.nodes:
        for name, value in node.metadata.labels.items():
            values.setdefault(name, set()).add(value)
    selector = pod.spec.node_selector
    for name, value in sorted(selector.items()):
        # Labels say what a node is: to set one so that a Pod fits is no advice.
        drop = f"drop {name} from the node selector"
        if name not in values:
            text = f'no node has the label "{name}" of the node selector{did_you_mean(name, values)}'
            meant = nearest(name, values)
            corrected = _with_node_selector(pod, _renamed(selector, name, meant)) if meant else None
            yield NameHint(text, f"write {meant} instead of {name}" if meant else drop, corrected)
        elif value not in values[name]:
            meant = nearest(value, values[name])
            known = f'did you mean "{meant}"?' if meant else f"nodes have {listed(sorted(values[name]))}"
            text = f'no node has the label {name}="{value}" of the node selector ({known})'
            corrected = _with_node_selector(pod, {**selector, name: meant}) if meant else None
            yield NameHint(text, f"write {meant} instead of {value}" if meant else drop, corrected)


def dropped_node_labels(pod: Pod) -> Iterator[NameHint]:
    """Yield the Pod without one of the labels of its node selector each."""
    selector = pod.spec.node_selector
    for name in sorted(selector):
        without = _with_node_selector(pod, {key: value for key, value in selector.items() if key != name})
        yield NameHint("", f"drop {name} from the node selector", without, Size.DROP_NODE_SELECTOR)


def _affinity_hints(snapshot: Snapshot, pod: Pod) -> Iterator[NameHint]:
    """Yield hints on labels that a required pod affinity asks for and that no Pod has."""
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else ()
    values: dict[str, set[str]] = {}
    for other in snapshot.pods if terms else ():
        for name, value in other.metadata.labels.items():
            values.setdefault(name, set()).add(value)
    for position, term in enumerate(terms):
        wanted = term.label_selector.match_labels if term.label_selector is not None else {}
        for name, value in sorted(wanted.items()):
            if value in values.get(name, ()):
                continue
            meant = nearest(value, values.get(name, ()))
            text = (
                f'no Pod has the label {name}="{value}" of the pod affinity{did_you_mean(value, values.get(name, ()))}'
            )
            if meant:
                corrected = _with_affinity_label(pod, position, name, meant)
                yield NameHint(text, f"write {meant} instead of {value}", corrected)
            else:
                yield NameHint(text, "create the Pods that it is to be near, or correct the pod affinity")


def _with_affinity_label(pod: Pod, position: int, name: str, value: str) -> Pod:
    affinity = pod.spec.affinity
    assert affinity is not None
    assert affinity.pod_affinity is not None
    terms = list(affinity.pod_affinity.required_during_scheduling_ignored_during_execution)
    selector = terms[position].label_selector
    assert selector is not None
    changed = replace(selector, match_labels={**selector.match_labels, name: value})
    terms[position] = replace(terms[position], label_selector=changed)
    required = replace(affinity.pod_affinity, required_during_scheduling_ignored_during_execution=tuple(terms))
    return replace(pod, spec=replace(pod.spec, affinity=replace(affinity, pod_affinity=required)))


def _toleration_hints(snapshot: Snapshot, pod: Pod) -> Iterator[NameHint]:
    """Yield tolerations of taints that no node has, if a taint of a similar name is there.

    Taints of Kubernetes come and go with the state of nodes, and admission adds tolerations of them to every Pod.
    """
    keys = {taint.key for node in snapshot.nodes for taint in node.spec.taints}
    keys = {key for key in keys if not key.startswith(_OF_KUBERNETES)}
    for position, toleration in enumerate(pod.spec.tolerations):
        key = toleration.key or ""
        is_unknown = key and key not in keys and not key.startswith(_OF_KUBERNETES)
        meant = nearest(key, keys) if is_unknown else ""
        if not meant or any(item.key == meant for item in pod.spec.tolerations):
            continue
        tolerations = list(pod.spec.tolerations)
        tolerations[position] = replace(toleration, key=meant)
        text = f'no node has a taint "{toleration.key}", which the Pod tolerates (did you mean "{meant}"?)'
        corrected = replace(pod, spec=replace(pod.spec, tolerations=tuple(tolerations)))
        yield NameHint(text, f"write {meant} instead of {toleration.key}", corrected)


def _with_node_selector(pod: Pod, selector: Mapping[str, str]) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_selector=dict(selector)))
