"""Warnings about Pods and pod templates that are valid, and yet probably not meant so. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import Path
from dray.api.names import dns1123_label
from dray.api.quantity import Quantity

_DEPRECATED_LABELS: Final = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": 'deprecated since v1.17; use "topology.kubernetes.io/region" instead',
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
}
_DEAD_ANNOTATIONS: Final = {
    "scheduler.alpha.kubernetes.io/critical-pod": 'non-functional in v1.16+; use the "priorityClassName" field instead',
    "security.alpha.kubernetes.io/sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
    "security.alpha.kubernetes.io/unsafe-sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
}
_DEAD_VOLUMES: Final = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
_NO_SELECTOR: Final = "a null labelSelector results in matching no pod"
_TEMPLATE: Final = Path("spec").child("template")
_BYTES: Final = ("memory", "ephemeral-storage")
_SURPRISE: Final = "which can result in surprising behavior; a DNS label is recommended: "


def pod_warnings(pod: Document) -> list[str]:
    """Return the warnings about a new Pod."""
    hostname = name_warnings(pod, "this is used in the Pod's hostname")
    return [*hostname, *_warnings(pod.get("metadata") or {}, pod.get("spec") or {}, Path("metadata"), Path("spec"))]


def template_warnings(template: Document | None, path: Path) -> list[str]:
    """Return the warnings about a pod template."""
    metadata, spec = (template or {}).get("metadata") or {}, (template or {}).get("spec") or {}
    return list(_warnings(metadata, spec, path.child("metadata"), path.child("spec")))


def workload_warnings(obj: Document, old: Document | None, *, names_pods: bool = True) -> list[str]:
    """Return the warnings about a new workload, or one whose desired state has changed."""
    if old is not None and obj["metadata"].get("generation") == old["metadata"].get("generation"):
        return []
    names = name_warnings(obj) if names_pods and old is None else []
    return names + template_warnings((obj.get("spec") or {}).get("template"), _TEMPLATE)


def name_warnings(obj: Document, use: str = "this is used in Pod names and hostnames") -> list[str]:
    """Return a warning if a name that becomes part of hostnames is not a DNS label."""
    problems = dns1123_label((obj.get("metadata") or {}).get("name") or "x")
    return [f"metadata.name: {use}, {_SURPRISE}[{' '.join(problems)}]"] if problems else []


def _warnings(metadata: Document, spec: Document, at_metadata: Path, at_spec: Path) -> Iterator[str]:
    """Yield the warnings in the order of Kubernetes."""
    if selector := spec.get("nodeSelector"):
        for label in sorted(selector.keys() & _DEPRECATED_LABELS.keys()):
            yield f"{at_spec.child('nodeSelector').key(label)}: {_DEPRECATED_LABELS[label]}"
    if spec.get("affinity"):
        yield from _affinity_warnings(spec, at_spec)
    if constraints := spec.get("topologySpreadConstraints"):
        yield from _constraint_warnings(constraints, at_spec.child("topologySpreadConstraints"))
    if annotations := metadata.get("annotations"):
        for name in sorted(annotations.keys() & _DEAD_ANNOTATIONS.keys()):
            yield f"{at_metadata.child('annotations').key(name)}: {_DEAD_ANNOTATIONS[name]}"
    yield from _reference_warnings(spec, at_spec)
    if overhead := spec.get("overhead"):
        yield from _fractions({"overhead": overhead}, at_spec)
    yield from _containers_warnings(spec, at_spec)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        at = at_spec.child("terminationGracePeriodSeconds")
        yield f"{at}: must be >= 0; negative values are invalid and will be treated as 1"
    if spec.get("affinity"):
        yield from _pod_affinity_warnings(spec["affinity"], at_spec.child("affinity"))


def _containers_warnings(spec: Document, path: Path) -> Iterator[str]:
    ports: list[tuple[str, int, int, Document]] = []
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind) or ()):
            if not _is_plain(container):
                yield from _container_warnings(container, path.child(kind).index(i))
            if of_container := container.get("ports"):
                ports += [(kind, i, j, port) for j, port in enumerate(of_container)]
    if len(ports) > 1 or (ports and ports[0][3].get("hostIP")):
        yield from _port_warnings(ports, path)


def _is_plain(container: Document) -> bool:
    """Report whether a container has no fractions of bytes, and not enough variables to repeat one."""
    if resources := container.get("resources"):
        for field in ("limits", "requests"):
            amounts = resources.get(field) or {}
            for name in _BYTES:
                if name in amounts and not _is_whole(amounts[name]):
                    return False
    return len(container.get("env") or ()) <= 1


def _constraint_warnings(constraints: Sequence[Document], path: Path) -> Iterator[str]:
    for i, constraint in enumerate(constraints):
        key = constraint.get("topologyKey") or ""
        if key in _DEPRECATED_LABELS:
            yield f"{path.index(i).child('topologyKey')}: {key} is {_DEPRECATED_LABELS[key]}"
        if constraint.get("labelSelector") is None:
            yield f"{path.index(i).child('labelSelector')}: {_NO_SELECTOR}"


def _pod_affinity_warnings(affinity: Document, path: Path) -> Iterator[str]:
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        required, preferred = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
        for i, term in enumerate(terms.get(required) or ()):
            if term.get("labelSelector") is None:
                yield f"{path.child(kind, required).index(i).child('labelSelector')}: {_NO_SELECTOR}"
        for i, weighted in enumerate(terms.get(preferred) or ()):
            if (weighted.get("podAffinityTerm") or {}).get("labelSelector") is None:
                at = path.child(kind, preferred).index(i).child("podAffinityTerm", "labelSelector")
                yield f"{at}: {_NO_SELECTOR}"


def _reference_warnings(spec: Document, path: Path) -> Iterator[str]:
    for i, volume in enumerate(spec.get("volumes") or ()):
        if not _DEAD_VOLUMES.keys().isdisjoint(volume):
            for kind in volume.keys() & _DEAD_VOLUMES.keys():
                yield f"{path.child('volumes').index(i).child(kind)}: {_DEAD_VOLUMES[kind]}"
    if aliases := spec.get("hostAliases"):
        for i, ip in _repeated(aliases, "ip"):
            yield f'{path.child("hostAliases").index(i).child("ip")}: duplicate ip "{ip}"'
    if secrets := spec.get("imagePullSecrets"):
        at = path.child("imagePullSecrets")
        for i, name in _repeated(secrets, "name"):
            yield f'{at.index(i).child("name")}: duplicate name "{name}"'
        for i, reference in enumerate(secrets):
            if not reference.get("name"):
                yield f'{at.index(i).child("name")}: invalid empty name ""'


def _repeated(items: Sequence[Document], field: str) -> Iterator[tuple[int, str]]:
    """Yield the index and value of items whose field an earlier item has."""
    seen: set[str] = set()
    for i, item in enumerate(items):
        value = item.get(field) or ""
        if value in seen:
            yield i, value
        seen.add(value)


def _affinity_warnings(spec: Document, path: Path) -> Iterator[str]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    at = path.child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for i, term in enumerate(required.get("nodeSelectorTerms") or ()):
        yield from _term_warnings(term, at.index(i))
    at = path.child("affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
    for i, preferred in enumerate(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        yield from _term_warnings(preferred.get("preference") or {}, at.index(i).child("preference"))


def _term_warnings(term: Document, path: Path) -> Iterator[str]:
    for i, expression in enumerate(term.get("matchExpressions") or ()):
        key = expression.get("key") or ""
        if key in _DEPRECATED_LABELS:
            yield f"{path.child('matchExpressions').index(i).child('key')}: {key} is {_DEPRECATED_LABELS[key]}"


def _container_warnings(container: Document, path: Path) -> Iterator[str]:
    resources = container.get("resources") or {}
    amounts = {field: resources[field] for field in ("limits", "requests") if resources.get(field)}
    if amounts:
        yield from _fractions(amounts, path, "resources")
    variables = container.get("env") or ()
    for i, name in _repeated(variables, "name"):
        value, reference = variables[i].get("value") or "", f"$({name})"
        if variables[i].get("valueFrom") is not None or value == reference or reference not in value:
            at = path.child("env").index(i)
            yield f'{at}: hides previous definition of "{name}", which may be dropped when using apply'


def _port_warnings(ports: Sequence[tuple[str, int, int, Document]], path: Path) -> Iterator[str]:
    """Yield what the ports of all containers have in common; each comes with its list of containers and indices."""
    earlier: dict[tuple[int, str], list[tuple[Path, str, int]]] = {}
    for kind, i, j, port in ports:
        at, address, host_port = (
            path.child(kind).index(i).child("ports").index(j),
            port.get("hostIP"),
            port.get("hostPort"),
        )
        number, protocol = port.get("containerPort") or 0, port.get("protocol") or ""
        if address and not host_port:
            shown = f"Name:{port.get('name') or ''} HostPort:0 ContainerPort:{number} Protocol:{protocol}"
            yield f"{at}: hostIP set without hostPort: {{{shown} HostIP:{address}}}"
        others = earlier.setdefault((number, protocol), [])
        for other, other_address, other_port in others:
            if overlap := _overlap((address or "", host_port or 0), (other_address, other_port)):
                yield f"{at}: {overlap} port definition with {other}"
        others.append((at, address or "", host_port or 0))


def _overlap(one: tuple[str, int], other: tuple[str, int]) -> str:
    """Return how two host addresses of one container port and protocol are in each other's way; empty if not."""
    if one == other:
        return "duplicate"
    if not one[1] or not other[1]:
        return "overlapping"
    return "dangerously ambiguous" if one[1] == other[1] and bool(one[0]) != bool(other[0]) else ""


def _fractions(amounts: Document, path: Path, *parents: str) -> Iterator[str]:
    """Yield the fractions of bytes in lists of resources, by their fields."""
    for name in _BYTES:
        for field, resources in amounts.items():
            if name in resources and not _is_whole(resources[name]):
                at = path.child(*parents, field).key(name)
                yield f'{at}: fractional byte value "{resources[name]}" is invalid, must be an integer'


# The same amounts recur in most Pods.
@lru_cache(maxsize=4096)
def _is_whole(amount: str) -> bool:
    return Quantity.parse(amount).is_integer()
