"""LimitRanges applied to Pods and volume claims: default requests and limits, and the checks of amounts.

Texts are those of kube-apiserver's LimitRanger, since users and tests match them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from dray.api.codec import from_document
from dray.api.document import Document, metadata_of
from dray.api.quantity import Quantity
from dray.api.quota.usage import parse_amounts, pod_limits, pod_requests
from dray.api.types.core_v1 import Pod

ANNOTATION: Final = "kubernetes.io/limit-ranger"
_ZERO: Final = Quantity(0)

Amounts: TypeAlias = Mapping[str, Quantity]


def set_defaults(pod: Document, limit_range: Document) -> None:
    """Give containers the requests and limits that the range has defaults for, and record them in an annotation."""
    requests, limits = _container_defaults(limit_range)
    if not requests and not limits:
        return
    notes: list[str] = []
    spec = pod["spec"]
    for field, prefix in (("containers", "container"), ("initContainers", "init container")):
        for container in spec.get(field) or ():
            notes += _complete(container, prefix, requests, limits)
    if notes:
        metadata = metadata_of(pod)
        metadata["annotations"] = (metadata.get("annotations") or {}) | {
            ANNOTATION: "LimitRanger plugin set: " + "; ".join(notes)
        }


def _container_defaults(limit_range: Document) -> tuple[dict[str, Any], dict[str, Any]]:
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for item in _items(limit_range, "Container"):
        requests |= item.get("defaultRequest") or {}
        limits |= item.get("default") or {}
    return requests, limits


def _complete(
    container: Document, prefix: str, requests: Mapping[str, Any], limits: Mapping[str, Any]
) -> Iterator[str]:
    for field, word, defaults in (("requests", "request", requests), ("limits", "limit", limits)):
        resources = container.get("resources") or {}
        given = resources.get(field) or {}
        missing = sorted(defaults.keys() - given.keys())
        if missing:
            added = {name: defaults[name] for name in missing}
            container["resources"] = resources | {field: given | added}
            yield f"{', '.join(missing)} {word} for {prefix} {container.get('name', '')}"


def pod_problems(pod: Document, limit_range: Document) -> list[str]:
    """Return how a Pod violates a range; none means that it fits."""
    problems: list[str] = []
    spec = pod.get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    amounts = [_container_amounts(item) for item in containers]
    for item in _items(limit_range, "Container"):
        for requests, limits in amounts:
            problems += _violations(item, requests, limits)
    for item in _items(limit_range, "Pod"):
        problems += _violations(item, *_pod_amounts(pod))
    return problems


def _container_amounts(container: Document) -> tuple[Amounts, Amounts]:
    resources = container.get("resources") or {}
    return parse_amounts(resources.get("requests") or {}), parse_amounts(resources.get("limits") or {})


def _pod_amounts(pod: Document) -> tuple[Amounts, Amounts]:
    # The overhead of the runtime is not the user's.
    spec = {name: value for name, value in (pod.get("spec") or {}).items() if name != "overhead"}
    typed = from_document(Pod, {"metadata": {}, "spec": spec})
    return pod_requests(typed), pod_limits(typed)


def claim_problems(claim: Document, limit_range: Document) -> list[str]:
    """Return how the request of a PersistentVolumeClaim violates a range."""
    problems: list[str] = []
    requests = parse_amounts(((claim.get("spec") or {}).get("resources") or {}).get("requests") or {})
    for item in _items(limit_range, "PersistentVolumeClaim"):
        problems += _each(item, "min", lambda name, bound: _below(_PVC, name, bound, requests, {}))
        problems += _each(item, "max", lambda name, bound: _request_above(_PVC, name, bound, requests))
    return problems


_PVC: Final = "PersistentVolumeClaim"


def _violations(item: Document, requests: Amounts, limits: Amounts) -> list[str]:
    kind = item["type"]
    problems = _each(item, "min", lambda name, bound: _below(kind, name, bound, requests, limits))
    problems += _each(item, "max", lambda name, bound: _above(kind, name, bound, requests, limits))
    problems += _each(
        item, "maxLimitRequestRatio", lambda name, bound: _ratio_above(kind, name, bound, requests, limits)
    )
    return problems


def _each(item: Document, field: str, check: Callable[[str, Quantity], str]) -> list[str]:
    bounds = parse_amounts(item.get(field) or {})
    return [problem for name in sorted(bounds) if (problem := check(name, bounds[name]))]


def _below(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str:
    start = f"minimum {name} usage per {kind} is {bound}"
    if name not in requests:
        return f"{start}.  No request is specified"
    if requests[name] < bound:
        return f"{start}, but request is {requests[name]}"
    if name in limits and limits[name] < bound:
        return f"{start}, but limit is {limits[name]}"
    return ""


def _above(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str:
    start = f"maximum {name} usage per {kind} is {bound}"
    if name not in limits:
        return f"{start}.  No limit is specified"
    if limits[name] > bound:
        return f"{start}, but limit is {limits[name]}"
    if name in requests and requests[name] > bound:
        return f"{start}, but request is {requests[name]}"
    return ""


def _request_above(kind: str, name: str, bound: Quantity, requests: Amounts) -> str:
    start = f"maximum {name} usage per {kind} is {bound}"
    if name not in requests:
        return f"{start}.  No request is specified"
    return f"{start}, but request is {requests[name]}" if requests[name] > bound else ""


def _ratio_above(kind: str, name: str, bound: Quantity, requests: Amounts, limits: Amounts) -> str:
    start = f"{name} max limit to request ratio per {kind} is {bound}"
    request, limit = requests.get(name, _ZERO), limits.get(name, _ZERO)
    if not request:
        return f"{start}, but no request is specified or request is 0"
    if not limit:
        return f"{start}, but no limit is specified or limit is 0"
    ratio = limit.ratio_to(request)
    return f"{start}, but provided ratio is {ratio:f}" if ratio > bound.as_float() else ""


def _items(limit_range: Document, kind: str) -> Sequence[Document]:
    limits = (limit_range.get("spec") or {}).get("limits") or ()
    return [item for item in limits if item.get("type") == kind]
