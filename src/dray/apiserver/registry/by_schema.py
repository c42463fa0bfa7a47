"""Kinds that are served by their schema alone, one line each.

Everything follows from the row and the schema: the names, the status subresource of a kind with a status, structural
validation, tables, protobuf, OpenAPI and discovery. A kind with rules of its own has a module instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from typing import Any, Final

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.api.field_errors import FieldErrors
from dray.api.schema.load import kind_type
from dray.api.validation.by_schema import validate_required_fields
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.generic import OWN_METADATA, GenericStatusStrategy, GenericStrategy, Warn
from dray.apiserver.registry.strategy import ALL_VERBS, Column, ResourceDefinition

_PLACEHOLDER: Final = re.compile(r"\{([^}]+)\}")
# What differs from a namespaced kind with a status and a generation.
_TRAITS: Final = frozenset({"cluster", "no-status", "no-generation"})
# Kinds whose status endpoint ignores metadata.
_STATUS_ALONE: Final = frozenset({"FlowSchema", "PriorityLevelConfiguration", "VolumeAttachment"})

# What a client should know that creates an object of a kind on which no component acts.
_NEW_STATUS: Final[dict[str, Document]] = {
    "HorizontalPodAutoscaler": {"desiredReplicas": 0, "currentMetrics": None},
    "Ingress": {"loadBalancer": {}},
    "VolumeAttachment": {"attached": False},
}
_WARNINGS: Final = {"NetworkPolicy": "NetworkPolicy is stored but not enforced"}


def _row(  # noqa: PLR0913 - a row of the table below
    api_version: str,
    kind: str,
    short_names: str = "",
    columns: str = "",
    traits: str = "",
    *,
    categories: str = "",
    verbs: tuple[str, ...] = ALL_VERBS,
    older: str = "",
    name_rule: str = "",
) -> ResourceDefinition:
    place = GroupVersion.parse(api_version)
    validate = _validator(place.kind(kind))
    words = set(traits.split())
    assert words <= _TRAITS, f"{kind}: unknown traits {words - _TRAITS}"
    has_status, has_generation = "no-status" not in words, "no-generation" not in words
    return ResourceDefinition(
        group=place.group,
        resource=plural(kind),
        singular=kind.lower(),
        kind=kind,
        namespaced="cluster" not in words,
        versions=(place.version, *older.split()),
        storage_version=place.version,
        strategy=GenericStrategy(
            validate,
            initial_status=_NEW_STATUS.get(kind, {}) if has_status else None,
            generation=has_generation,
            warn=_warn_of_creation(_WARNINGS[kind]) if kind in _WARNINGS else None,
            name_rule=name_rule,
        ),
        status_strategy=GenericStatusStrategy(restored_metadata=OWN_METADATA if kind in _STATUS_ALONE else ())
        if has_status
        else None,
        short_names=tuple(short_names.split()),
        categories=tuple(categories.split()),
        columns=(NAME, *_columns(columns)),
        verbs=verbs,
    )


def _warn_of_creation(text: str) -> Warn:
    return lambda _obj, old: (text,) if old is None else ()


def plural(kind: str) -> str:
    """Return the resource name of a kind."""
    name = kind.lower()
    if name.endswith("s"):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def _validator(gvk: GroupVersionKind) -> Callable[[Document], FieldErrors]:
    def validate(obj: Document) -> FieldErrors:
        struct = kind_type(gvk)
        assert struct is not None, f"no schema for {gvk}"
        return validate_required_fields(obj, struct)

    return validate


def _columns(text: str) -> Iterator[Column]:
    """Yield the columns of `Name=template; …`; `Name:type` has another type than string, a bare `Age` is the age."""
    for part in filter(None, map(str.strip, text.split(";"))):
        heading, _, template = part.partition("=")
        if not template:
            yield AGE
            continue
        name, _, kind = heading.partition(":")
        yield Column(name, kind or "string", f"{name} of the object.", _cell(template, kind or "string"))


@cache
def _cell(template: str, kind: str) -> Callable[[Document, datetime], Any]:
    """Return the cell of a template.

    `{path}` is the value at a path, `{path|text}` has a text for none; `{path#}` is the number of values.
    """
    path = template.strip("{}#").split(".")
    if template.endswith("#}"):
        return lambda document, now: len(_values(document, path))
    if kind != "string":
        return lambda document, now: next(iter(_values(document, path)), False if kind == "boolean" else 0)
    return lambda document, now: _PLACEHOLDER.sub(lambda match: _text(document, match[1]), template)


def _text(document: Document, expression: str) -> str:
    path, _, none = expression.partition("|")
    return ",".join(map(_show, _values(document, path.split(".")))) or none


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)


def _values(value: Any, path: list[str]) -> list[Any]:
    """Return the values at a path; lists on the way are followed in every element."""
    if isinstance(value, list):
        return [found for item in value for found in _values(item, path)]
    if not path:
        return [] if value is None else [value]
    return _values(value.get(path[0]), path[1:]) if isinstance(value, dict) else []


_HPA_COLUMNS: Final = (
    "Reference={spec.scaleTargetRef.kind}/{spec.scaleTargetRef.name}; Targets={spec.metrics.type|<none>}; "
    "MinPods={spec.minReplicas|<unset>}; MaxPods:integer={spec.maxReplicas}; "
    "Replicas:integer={status.currentReplicas}; Age"
)
_CSI_DRIVER_COLUMNS: Final = (
    "AttachRequired:boolean={spec.attachRequired}; PodInfoOnMount:boolean={spec.podInfoOnMount}; "
    "StorageCapacity:boolean={spec.storageCapacity}; TokenRequests={spec.tokenRequests.audience|<unset>}; "
    "RequiresRepublish:boolean={spec.requiresRepublish}; Modes={spec.volumeLifecycleModes|<none>}; Age"
)
_ATTACHMENT_COLUMNS: Final = (
    "Attacher={spec.attacher}; PV={spec.source.persistentVolumeName}; Node={spec.nodeName}; "
    "Attached:boolean={status.attached}; Age"
)
_INGRESS_COLUMNS: Final = (
    "Class={spec.ingressClassName|<none>}; Hosts={spec.rules.host|*}; "
    "Address={status.loadBalancer.ingress.ip}{status.loadBalancer.ingress.hostname}; Ports=80; Age"
)
_FLOW_SCHEMA_COLUMNS: Final = (
    "PriorityLevel={spec.priorityLevelConfiguration.name}; MatchingPrecedence:integer={spec.matchingPrecedence}; "
    "DistinguisherMethod={spec.distinguisherMethod.type|<none>}; Age"
)
_PRIORITY_LEVEL_COLUMNS: Final = (
    "Type={spec.type}; NominalConcurrencyShares={spec.limited.nominalConcurrencyShares|<none>}; "
    "Queues={spec.limited.limitResponse.queuing.queues|<none>}; "
    "HandSize={spec.limited.limitResponse.queuing.handSize|<none>}; "
    "QueueLengthLimit={spec.limited.limitResponse.queuing.queueLengthLimit|<none>}; Age"
)
_TEMPLATE_COLUMNS: Final = (
    "Containers={template.spec.containers.name}; Images={template.spec.containers.image}; "
    "Pod Labels={template.metadata.labels|<none>}"
)
_POLICY_COLUMNS: Final = "Pod-Selector={spec.podSelector.matchLabels|<none>}; Age"
_CLASS_COLUMNS: Final = "Controller={spec.controller}; Parameters={spec.parameters.name|<none>}; Age"
_IP_COLUMNS: Final = "ParentRef={spec.parentRef.resource}/{spec.parentRef.namespace}/{spec.parentRef.name}"
_STORAGE: Final = "storage.k8s.io/v1"
_REQUEST_COLUMNS: Final = (
    "PodName={spec.podName}; ServiceAccountName={spec.serviceAccountName}; NodeName={spec.nodeName}; "
    "SignerName={spec.signerName}; State={status.conditions.type|Pending}"
)
_MIGRATION_COLUMNS: Final = "Resource={spec.resource.resource}; Status={status.conditions.type|Pending}"
_FLOW: Final = "flowcontrol.apiserver.k8s.io/v1"

_CAPACITY_COLUMNS: Final = "StorageClassName={storageClassName}; Capacity={capacity|<unset>}"
_SCALING: Final = "autoscaling/v2"
_NETWORK: Final = "networking.k8s.io/v1"
_PLAIN: Final = "no-status no-generation"

# Kind, short names, columns and traits, one line each.
DEFINITIONS: Final = (
    _row("v1", "PodTemplate", "", _TEMPLATE_COLUMNS, "no-status"),
    _row(_SCALING, "HorizontalPodAutoscaler", "hpa", _HPA_COLUMNS, categories="all", older="v1"),
    _row(_NETWORK, "Ingress", "ing", _INGRESS_COLUMNS),
    _row(_NETWORK, "IngressClass", "", _CLASS_COLUMNS, "cluster no-status"),
    _row(_NETWORK, "NetworkPolicy", "netpol", _POLICY_COLUMNS, "no-status"),
    _row(_NETWORK, "IPAddress", "ip", _IP_COLUMNS, f"cluster {_PLAIN}", name_rule="ip-address"),
    _row(_NETWORK, "ServiceCIDR", "", "CIDRs={spec.cidrs}; Age", "cluster no-generation"),
    _row("certificates.k8s.io/v1", "PodCertificateRequest", "", _REQUEST_COLUMNS, "no-generation"),
    _row("storagemigration.k8s.io/v1", "StorageVersionMigration", "", _MIGRATION_COLUMNS, "cluster no-generation"),
    _row(_FLOW, "FlowSchema", "", _FLOW_SCHEMA_COLUMNS, "cluster"),
    _row(_FLOW, "PriorityLevelConfiguration", "", _PRIORITY_LEVEL_COLUMNS, "cluster"),
    _row(_STORAGE, "CSIDriver", "", _CSI_DRIVER_COLUMNS, f"cluster {_PLAIN}"),
    _row(_STORAGE, "CSINode", "", "Drivers:integer={spec.drivers#}; Age", "cluster no-generation"),
    _row(_STORAGE, "CSIStorageCapacity", "", _CAPACITY_COLUMNS, _PLAIN),
    _row(_STORAGE, "VolumeAttachment", "", _ATTACHMENT_COLUMNS, "cluster no-generation"),
    _row(_STORAGE, "VolumeAttributesClass", "vac", "DriverName={driverName}; Age", f"cluster {_PLAIN}"),
)
