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
    for label in sorted((spec.get("nodeSelector") or {}).keys() & _DEPRECATED_LABELS.keys()):
        yield f"{at_spec.child('nodeSelector').key(label)}: {_DEPRECATED_LABELS[label]}"
    if spec.get("affinity"):
        yield from _affinity_warnings(spec, at_spec)
    for name in sorted((metadata.get("annotations") or {}).keys() & _DEAD_ANNOTATIONS.keys()):
        yield f"{at_metadata.child('annotations').key(name)}: {_DEAD_ANNOTATIONS[name]}"
    yield from _reference_warnings(spec, at_spec)
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        at = at_spec.child("terminationGracePeriodSeconds")
        yield f"{at}: must be >= 0; negative values are invalid and will be treated as 1"
    for kind in ("containers", "initContainers"):
        if containers := spec.get(kind):
            at = at_spec.child(kind)
            for i, container in enumerate(containers):
                yield from _container_warnings(container, at.index(i))
    if overhead := spec.get("overhead"):
        yield from _fractions(overhead, at_spec, "overhead")


def _reference_warnings(spec: Document, path: Path) -> Iterator[str]:
    for i, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("gitRepo") is not None:
            at = path.child("volumes").index(i).child("gitRepo")
            yield f"{at}: deprecated in v1.11, and disabled by default in v1.33+"
    for i, reference in enumerate(spec.get("imagePullSecrets") or ()):
        if not reference.get("name"):
            yield f'{path.child("imagePullSecrets").index(i).child("name")}: invalid empty name ""'


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
    for field in ("limits", "requests"):
        if amounts := resources.get(field):
            yield from _fractions(amounts, path, "resources", field)
    seen: set[str] = set()
    for i, variable in enumerate(container.get("env") or ()):
        name = variable.get("name") or ""
        if name in seen:
            at = path.child("env").index(i)
            yield f'{at}: hides previous definition of "{name}", which may be dropped when using apply'
        seen.add(name)
    ports = container.get("ports") or ()
    if len(ports) > 1:
        yield from _port_warnings(ports, path.child("ports"))


def _port_warnings(ports: Sequence[Document], path: Path) -> Iterator[str]:
    first: dict[tuple[object, ...], int] = {}
    for i, port in enumerate(ports):
        identity = tuple(port.get(name) or "" for name in ("containerPort", "protocol", "hostIP", "hostPort"))
        before = first.setdefault(identity, i)
        if before != i:
            yield f"{path.index(i)}: duplicate port definition with {path.index(before)}"


def _fractions(amounts: Document, path: Path, *fields: str) -> Iterator[str]:
    for name in _BYTES:
        if name in amounts and not _is_whole(amounts[name]):
            at = path.child(*fields).key(name)
            yield f'{at}: fractional byte value "{amounts[name]}" is invalid, must be an integer'


# The same amounts recur in most Pods.
@lru_cache(maxsize=4096)
def _is_whole(amount: str) -> bool:
    return Quantity.parse(amount).is_integer()
