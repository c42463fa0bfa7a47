"""Pods: strategies, table columns and selectable fields."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dray.api.defaults.core_v1 import agree_on_first
from dray.api.defaults.pod_spec import canonicalize_quantities
from dray.api.document import Document, GroupVersionKind
from dray.api.field_errors import FieldErrors, Path, invalid
from dray.api.pod_label_keys import merge_label_keys
from dray.api.pod_level_resources import default_pod_level_resources
from dray.api.pod_warnings import pod_warnings
from dray.api.timestamps import format_time
from dray.api.validation.core_v1_namespace import validate_kube_finalizers
from dray.api.validation.core_v1_pod import validate_pod_create, validate_pod_status_update, validate_pod_update
from dray.api.validation.core_v1_pod_subresources import validate_ephemeral_containers_update, validate_resize
from dray.apiserver.registry.columns import AGE, NAME, since
from dray.apiserver.registry.gated_fields import POD_FIELDS, drop_disabled_fields, drop_disabled_status_fields
from dray.apiserver.registry.pod_status import quality_of_service, summarize
from dray.apiserver.registry.strategy import (
    Column,
    Content,
    ResourceDefinition,
    Strategy,
    Subresource,
    WriteContext,
    carry_generation,
    proxy_of,
    restore,
    restore_metadata,
    spec_changed,
    start_generation,
)

_NONE: Final = "<none>"
_OF_EVERY_UPDATE: Final = ("name", "namespace", "resourceVersion", "managedFields")
# What a resize changes in a container.
_RESIZED: Final = ("resources", "resizePolicy")


class PodStrategy(Strategy):
    """Strategy of Pods; most of the spec is immutable."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Set the phase, the QoS class and the condition of scheduling gates; merge label keys into selectors."""
        start_generation(obj)
        spec = obj.get("spec") or {}
        context.warnings.extend(drop_disabled_fields(POD_FIELDS, obj, None, context.gates))
        merge_label_keys(obj)
        # After admission, whose webhooks may have added containers.
        default_pod_level_resources(spec)
        status: Document = {"phase": "Pending", "qosClass": quality_of_service(spec)}
        if spec.get("schedulingGates"):
            status["conditions"] = [_gated(context.now)]
        obj["status"] = status

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec."""
        return validate_kube_finalizers(obj) + validate_pod_create(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status."""
        restore(obj, old, "status")
        drop_disabled_fields(POD_FIELDS, obj, old, context.gates)
        _keep_pod_level_resources(obj, old)
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate that only mutable fields changed."""
        return validate_pod_update(obj, old)

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Warn of what is probably not meant; updates of Pods are frequent, and mostly not made by people."""
        return pod_warnings(obj) if old is None else ()


def _gated(now: datetime) -> Document:
    return {
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": format_time(now),
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }


class PodStatusStrategy(Strategy):
    """Strategy of the status, which scheduler, controllers and nodes write."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore spec and owner references."""
        restore(obj, old, "spec")
        restore_metadata(obj, old, "ownerReferences", "generation")
        status, previous = obj.setdefault("status", {}), old.get("status") or {}
        agree_on_first(status, "podIP", "podIPs", "ip")
        canonicalize_quantities(status.get("allocatedResources"))
        if not status.get("qosClass") and previous.get("qosClass"):
            status["qosClass"] = previous["qosClass"]
        _keep_claim_statuses(status, previous, context.verb)
        drop_disabled_status_fields(POD_FIELDS, obj, old, context.gates)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate addresses, container states and claims."""
        return validate_pod_status_update(obj, old)


class PodEphemeralContainersStrategy(Strategy):
    """Strategy of the subresource `ephemeralcontainers`."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore everything but the ephemeral containers."""
        containers = (obj.get("spec") or {}).get("ephemeralContainers")
        _restore_all(obj, old)
        if containers:
            obj["spec"]["ephemeralContainers"] = containers
        else:
            obj["spec"].pop("ephemeralContainers", None)
        drop_disabled_fields(POD_FIELDS, obj, old, context.gates)
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate that containers were only added."""
        return validate_ephemeral_containers_update(obj, old)


class PodResizeStrategy(Strategy):
    """Strategy of the subresource `resize`."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore everything but resources; other containers are left for the validation."""
        _keep_pod_level_resources(obj, old)
        spec, previous = obj.get("spec") or {}, old.get("spec") or {}
        resized: Document = {
            kind: _with_resources_of(spec, previous, kind) for kind in ("containers", "initContainers")
        }
        resized["resources"] = spec.get("resources")
        _restore_all(obj, old)
        obj["spec"].update({name: value for name, value in resized.items() if value})
        default_pod_level_resources(obj["spec"])
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate that the resize is one, and keeps the QoS class."""
        before = (old.get("status") or {}).get("qosClass") or quality_of_service(old.get("spec") or {})
        errors = validate_resize(obj, old)
        if quality_of_service(obj.get("spec") or {}) != before:
            text = "Pod QOS Class may not change as a result of resizing"
            errors.append(invalid(Path("spec"), before, text))
        return errors


def _keep_pod_level_resources(obj: Document, old: Document) -> None:
    """Keep the resources of the Pod as a whole if the writer leaves them out, perhaps because it does not know them."""
    resources = (old.get("spec") or {}).get("resources")
    if resources is not None and obj.setdefault("spec", {}).get("resources") is None:
        obj["spec"] = {**obj["spec"], "resources": resources}


def _restore_all(obj: Document, old: Document) -> None:
    """Restore spec, status and metadata, except what every update may set."""
    restore(obj, old, "spec", "status")
    obj["spec"] = dict(obj["spec"])
    metadata: Document = obj["metadata"]
    kept = {name: metadata[name] for name in _OF_EVERY_UPDATE if name in metadata}
    obj["metadata"] = (old.get("metadata") or {}) | kept


def _with_resources_of(spec: Document, previous: Document, kind: str) -> list[Document]:
    new, old = spec.get(kind) or [], previous.get(kind) or []
    if [item.get("name") for item in new] != [item.get("name") for item in old]:
        return list(new)
    resized = []
    for container, before in zip(new, old, strict=True):
        merged = {name: value for name, value in before.items() if name not in _RESIZED}
        resized.append(merged | {name: container[name] for name in _RESIZED if name in container})
    return resized


def _keep_claim_statuses(status: Document, old: Document, verb: str) -> None:
    """Keep what a writer leaves out, perhaps because it does not know the field; an explicit empty list clears it."""
    for name in ("resourceClaimStatuses", "nodeAllocatableResourceClaimStatuses"):
        if status.get(name) is None:
            restore(status, old, name)
        elif status[name] == []:
            del status[name]
    # It is no list that could be empty: a patch removes it, which only a writer that knows it can do.
    if verb == "update" and status.get("extendedResourceClaimStatus") is None:
        restore(status, old, "extendedResourceClaimStatus")


# --- Table cells.


def _ready(pod: Document, now: datetime) -> str:
    summary = summarize(pod)
    return f"{summary.ready}/{summary.total}"


def _status(pod: Document, now: datetime) -> str:
    return summarize(pod).reason


def _restarts(pod: Document, now: datetime) -> str:
    summary = summarize(pod)
    if not summary.restarts or not summary.last_restart:
        return str(summary.restarts)
    return f"{summary.restarts} ({since(summary.last_restart, now)} ago)"


def _first_address(pod: Document) -> str:
    status = pod.get("status") or {}
    addresses = status.get("podIPs") or ()
    address: str | None = addresses[0].get("ip") if addresses else status.get("podIP")
    return address or ""


def _ip(pod: Document, now: datetime) -> str:
    return _first_address(pod) or _NONE


def _node(pod: Document, now: datetime) -> str:
    return (pod.get("spec") or {}).get("nodeName") or _NONE


def _nominated(pod: Document, now: datetime) -> str:
    return (pod.get("status") or {}).get("nominatedNodeName") or _NONE


def _readiness_gates(pod: Document, now: datetime) -> str:
    gates = (pod.get("spec") or {}).get("readinessGates") or ()
    if not gates:
        return _NONE
    true = {item.get("type") for item in (pod.get("status") or {}).get("conditions") or () if item["status"] == "True"}
    return f"{sum(gate.get('conditionType') in true for gate in gates)}/{len(gates)}"


COLUMNS: Final = (
    NAME,
    Column("Ready", "string", "Ready containers / all containers.", _ready),
    Column("Status", "string", "The aggregate status of the pod's containers.", _status),
    Column("Restarts", "string", "The number of container restarts, and the time since the last one.", _restarts),
    AGE,
    Column("IP", "string", "The pod's first address.", _ip, priority=1),
    Column("Node", "string", "The node the pod is bound to.", _node, priority=1),
    Column("Nominated Node", "string", "The node that preemption nominated for the pod.", _nominated, priority=1),
    Column("Readiness Gates", "string", "True readiness gates / all readiness gates.", _readiness_gates, priority=1),
)


def _addresses(pod: Document) -> str:
    return ",".join(item.get("ip") or "" for item in (pod.get("status") or {}).get("podIPs") or ())


def _stream(name: str, kind: str, path: str) -> Subresource:
    """Return a subresource that is a stream to a container."""
    options = GroupVersionKind("", "v1", kind)
    return Subresource(name, options, ("create", "get"), content=Content.CONNECTION, stream_path=path)


PODS: Final = ResourceDefinition(
    group="",
    resource="pods",
    singular="pod",
    kind="Pod",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=PodStrategy(),
    status_strategy=PodStatusStrategy(),
    subresources=(
        Subresource("binding", GroupVersionKind("", "v1", "Binding"), ("create",)),
        Subresource("ephemeralcontainers", strategy=PodEphemeralContainersStrategy()),
        Subresource("eviction", GroupVersionKind("policy", "v1", "Eviction"), ("create",)),
        Subresource("log", verbs=("get",), content=Content.TEXT),
        Subresource("resize", strategy=PodResizeStrategy()),
        _stream("attach", "PodAttachOptions", "attach"),
        _stream("exec", "PodExecOptions", "exec"),
        _stream("portforward", "PodPortForwardOptions", "portForward"),
        proxy_of("Pod"),
    ),
    short_names=("po",),
    categories=("all",),
    columns=COLUMNS,
    selectable_fields={
        "spec.nodeName": lambda pod: pod["spec"].get("nodeName") or "",
        "spec.restartPolicy": lambda pod: pod["spec"].get("restartPolicy") or "",
        "spec.schedulerName": lambda pod: pod["spec"].get("schedulerName") or "",
        "spec.serviceAccountName": lambda pod: pod["spec"].get("serviceAccountName") or "",
        "spec.hostNetwork": lambda pod: "true" if pod["spec"].get("hostNetwork") else "false",
        "status.phase": lambda pod: (pod.get("status") or {}).get("phase") or "",
        "status.podIP": _first_address,
        "status.podIPs": _addresses,
        "status.nominatedNodeName": lambda pod: (pod.get("status") or {}).get("nominatedNodeName") or "",
    },
    graceful_deletion=True,
)

DEFINITIONS: Final = (PODS,)
