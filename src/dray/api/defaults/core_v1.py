"""Defaults of the core kinds."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Final

from dray.api.defaults import Defaulters
from dray.api.defaults.pod_spec import canonicalize_quantities, default_pod, default_pod_spec
from dray.api.document import Document, GroupVersion, metadata_of

NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"


def _default_pod(obj: Document, _now: datetime) -> None:
    spec = obj.get("spec")
    if spec is None:
        spec = obj["spec"] = {}
    default_pod(spec)


def _default_pod_template(obj: Document, _now: datetime) -> None:
    default_template(obj.get("template"))


def default_template(template: Document | None) -> None:
    """Default a workload's pod template."""
    if template is not None:
        template.setdefault("metadata", {})
        default_pod_spec(template.setdefault("spec", {}))


def default_namespace_label(obj: Document) -> None:
    """Set the label with the namespace's name, for namespace selectors."""
    metadata = metadata_of(obj)
    if name := metadata.get("name"):
        labels = metadata.get("labels")
        if labels is None:
            labels = metadata["labels"] = {}
        labels[NAMESPACE_NAME_LABEL] = name


def _default_namespace(obj: Document, _now: datetime) -> None:
    default_namespace_label(obj)
    obj.setdefault("spec", {})
    status = obj.setdefault("status", {})
    if not status.get("phase"):
        status["phase"] = "Active"


def agree_on_first(holder: Document, single: str, plural: str, key: str = "") -> None:
    """Make a field and the first element of the list that has replaced it say the same; the field decides."""
    value, values = holder.get(single), holder.get(plural)
    first = (values[0].get(key) if key else values[0]) if values else None
    if value and value != first:
        holder[plural] = [{key: value} if key else value]
    elif first and not value:
        holder[single] = first


def _default_node(obj: Document, _now: datetime) -> None:
    agree_on_first(obj.setdefault("spec", {}), "podCIDR", "podCIDRs")
    status = obj.setdefault("status", {})
    canonicalize_quantities(status.get("capacity"))
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    else:
        canonicalize_quantities(status.get("allocatable"))


def _default_secret(obj: Document, _now: datetime) -> None:
    if not obj.get("type"):
        obj["type"] = "Opaque"
    plain = obj.pop("stringData", None)
    if plain:
        # A write-only convenience: it overrides `data` and is never returned.
        data = obj.get("data")
        if data is None:
            data = obj["data"] = {}
        for key, value in plain.items():
            data[key] = base64.b64encode(value.encode()).decode()


def _default_resource_quota(obj: Document, _now: datetime) -> None:
    canonicalize_quantities(obj.setdefault("spec", {}).get("hard"))
    status = obj.setdefault("status", {})
    canonicalize_quantities(status.get("hard"))
    canonicalize_quantities(status.get("used"))


def _default_event(obj: Document, _now: datetime) -> None:
    obj.setdefault("source", {})
    obj.setdefault("reportingComponent", "")
    obj.setdefault("reportingInstance", "")


_V1: Final = GroupVersion("", "v1")

DEFAULTERS: Final[Defaulters] = {
    _V1.kind("Pod"): _default_pod,
    _V1.kind("PodTemplate"): _default_pod_template,
    _V1.kind("Namespace"): _default_namespace,
    _V1.kind("Node"): _default_node,
    _V1.kind("Secret"): _default_secret,
    _V1.kind("ResourceQuota"): _default_resource_quota,
    _V1.kind("Event"): _default_event,
}
