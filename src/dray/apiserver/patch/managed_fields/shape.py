"""Types for field management: leaves, maps, sets and keyed lists.

Messages and maps are both maps here, with named fields and a shape for other keys. Atomic values are leaves.
A `Slot` also has the value that a Go server would write for the missing field, because Kubernetes compares
objects in that form: a message held by value is always present, a required list that is unset is null.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from dray.api.schema.model import Field, ListOf, ListType, MapOf, Scalar, StructType, Type
from dray.apiserver.patch.managed_fields.field_set import is_plain_text, key_element, value_element

MISSING: Final = object()

_ZERO_SCALARS: Final[Mapping[Scalar, Any]] = {
    Scalar.STRING: "",
    Scalar.INT32: 0,
    Scalar.INT64: 0,
    Scalar.DOUBLE: 0,
    Scalar.BOOL: False,
    Scalar.TIME: None,
    Scalar.MICRO_TIME: None,
    Scalar.BYTES: None,
}


_TIMES: Final = frozenset({Scalar.TIME, Scalar.MICRO_TIME})
_NO_TEXT: Final = frozenset({Scalar.INT32, Scalar.INT64, Scalar.DOUBLE, Scalar.BOOL})


class Form(enum.Enum):
    """The form of a value for traversal."""

    LEAF = enum.auto()
    MAP = enum.auto()
    SET = enum.auto()
    KEYED = enum.auto()
    # Determined by the value: objects are maps of the same form, everything else is a leaf.
    DEDUCED = enum.auto()


class ItemKeyError(ValueError):
    """A list item without a path element."""


class Slot:
    """A named field of a map."""

    __slots__ = ("drops_empty", "drops_null", "element", "is_leaf", "is_text", "shape", "writes_null", "zero")

    def __init__(self, struct: StructType, field: Field) -> None:
        self.element = f"f:{field.name}"
        # Raw values of built-in kinds are owned as a whole.
        raw = field.type is Scalar.ANY and is_built_in(struct)
        self.shape = RAW if raw else shape_of(field.type)
        self.is_leaf = self.shape.is_leaf
        # Whether it is a leaf of which any string is a value.
        self.is_text = self.is_leaf and self.shape.takes_text
        built_in = is_built_in(struct)
        self.zero = _zero(struct, field) if built_in else MISSING
        # Go omits empty optional lists and maps, and nil pointers.
        self.drops_empty = built_in and not _is_written(struct, field) and isinstance(field.type, ListOf | MapOf)
        self.drops_null = built_in
        # In a new message it writes unset times as null.
        self.writes_null = not built_in or field.type in (Scalar.TIME, Scalar.MICRO_TIME)


class Shape:
    """A type for field management; `type` is kept to check leaves."""

    __slots__ = (
        "_only_key",
        "form",
        "is_bare",
        "is_leaf",
        "is_list",
        "is_map",
        "item",
        "map_keys",
        "slots",
        "takes_text",
        "type",
        "walked",
    )

    def __init__(self, form: Form, type_: Type, item: Shape | None = None) -> None:
        self.form = form
        # The form as booleans, which traversals test at every value.
        self.is_leaf = form is Form.LEAF
        self.is_map = form in (Form.MAP, Form.DEDUCED)
        self.is_list = form in (Form.SET, Form.KEYED)
        # The Python type of values that are traversed, none for leaves. A value of another type is a leaf.
        self.walked: Any = dict if self.is_map else list if self.is_list else ()
        self.type = type_
        # The shape of list items, or of map members that are not named fields.
        self.item: Shape = item or (self if form is Form.DEDUCED else DEDUCED)
        # The named fields of a message, filled after construction because types are recursive.
        self.slots: dict[str, Slot] = {}
        self.is_bare = isinstance(type_, StructType)
        self.map_keys: tuple[str, ...] = type_.map_keys if isinstance(type_, ListOf) else ()
        self._only_key = self.map_keys[0] if form is Form.KEYED and len(self.map_keys) == 1 else ""
        # Whether any string is of the type.
        self.takes_text = isinstance(type_, Scalar) and type_ not in _NO_TEXT

    def member(self, name: str) -> Shape:
        """Return the shape of a map's member; that of unknown members is deduced from the value."""
        slot = self.slots.get(name)
        return self.item if slot is None else slot.shape

    def item_element(self, item: Any) -> str:
        """Return the path element of an item of a set or keyed list."""
        # Most lists have one key, and most keys are names.
        if self._only_key and isinstance(item, dict):
            name = item.get(self._only_key)
            if name.__class__ is str and is_plain_text(name):
                return f'k:{{"{self._only_key}":"{name}"}}'
        if self.form is Form.KEYED:
            return self._keyed_element(item)
        return f'v:"{item}"' if item.__class__ is str and is_plain_text(item) else _set_element(item)

    def _keyed_element(self, item: Any) -> str:
        if item is None:
            raise ItemKeyError("associative list with keys may not have a null element")
        if not isinstance(item, dict):
            raise ItemKeyError("associative list with keys may not have non-map elements")
        keys: dict[str, Any] = {}
        for name in self.map_keys:
            value = item.get(name, MISSING)
            if value is MISSING:
                value = self._key_default(name)
            if value is not MISSING:
                keys[name] = value
        if not keys:
            listed = " ".join(map(json.dumps, self.map_keys))
            raise ItemKeyError(
                f"associative list with keys has an element that omits all key fields [{listed}] "
                "(and doesn't have default values for any key fields)"
            )
        return key_element(keys)

    def _key_default(self, name: str) -> Any:
        element = self.type.element if isinstance(self.type, ListOf) else None
        field = element.fields.get(name) if isinstance(element, StructType) else None
        return MISSING if field is None or field.default is None else field.default


def _set_element(item: Any) -> str:
    if isinstance(item, dict):
        raise ItemKeyError("associative list without keys has an element that's a map type")
    if isinstance(item, list):
        raise ItemKeyError("not supported: associative list with lists as elements")
    if item is None:
        raise ItemKeyError("associative list without keys has an element that's an explicit null")
    return value_element(item)


def is_built_in(struct: StructType) -> bool:
    """Report whether the type is built-in, so that Go writes its objects."""
    return struct.name.startswith("io.k8s.")


def shape_of(kind: Type) -> Shape:
    """Return the shape of a type."""
    if isinstance(kind, Scalar):
        return _SCALARS[kind]
    return struct_shape(kind) if isinstance(kind, StructType) else _container_shape(kind)


# Bounded because types of custom resources are replaced.
@lru_cache(maxsize=16384)
def struct_shape(struct: StructType) -> Shape:
    """Return the shape of a message."""
    shape = _bare_shape(struct)
    if shape.is_bare:
        # Set first: a recursive message gets here again.
        shape.is_bare = False
        shape.slots.update({name: Slot(struct, field) for name, field in struct.fields.items()})
    return shape


@lru_cache(maxsize=16384)
def _bare_shape(struct: StructType) -> Shape:
    return Shape(Form.LEAF if struct.atomic else Form.MAP, struct)


def _container_shape(kind: ListOf | MapOf) -> Shape:
    if isinstance(kind, MapOf):
        return Shape(Form.LEAF if kind.atomic else Form.MAP, kind, shape_of(kind.element))
    form = {ListType.MAP: Form.KEYED, ListType.SET: Form.SET}.get(kind.list_type, Form.LEAF)
    return Shape(form, kind, shape_of(kind.element))


def _zero(struct: StructType, field: Field) -> Any:
    kind = field.type
    if isinstance(kind, StructType):
        return {} if is_held_by_value(struct, field.name) else MISSING
    if not _is_written(struct, field) and not (kind in _TIMES and is_held_by_value(struct, field.name)):
        return MISSING
    return _ZERO_SCALARS.get(kind, MISSING) if isinstance(kind, Scalar) else None


DEDUCED: Final = Shape(Form.DEDUCED, Scalar.ANY)
RAW: Final = Shape(Form.LEAF, Scalar.ANY)
_SCALARS: Final = {scalar: Shape(Form.LEAF, scalar) for scalar in Scalar} | {Scalar.ANY: DEDUCED}


# Messages that Go types hold by value, so that they are always present. OpenAPI does not have this, so the tables are
# maintained by hand; other fields are treated as pointers, and their creator also owns the field itself.
_OF_OBJECTS: Final = frozenset({"metadata", "spec", "status"})

_HELD_BY_VALUE: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "APIGroup": "preferredVersion",
        "APIServiceCondition": "lastTransitionTime",
        "AllocationResult": "devices",
        "Binding": "target",
        "CertificateSigningRequestCondition": "lastTransitionTime lastUpdateTime",
        "ClusterRoleBinding": "roleRef",
        "CompositePodGroupTemplate": "schedulingPolicy",
        "Condition": "lastTransitionTime",
        "Container": "resources",
        "ContainerResourceMetricSource": "target",
        "ContainerResourceMetricStatus": "current",
        "ContainerStateRunning": "startedAt",
        "ContainerStateTerminated": "finishedAt startedAt",
        "ContainerStatus": "lastState state",
        "CronJobSpec": "jobTemplate",
        "CustomResourceDefinitionCondition": "lastTransitionTime",
        "CustomResourceDefinitionSpec": "names",
        "CustomResourceDefinitionStatus": "acceptedNames",
        "DaemonSetCondition": "lastTransitionTime",
        "DaemonSetSpec": "template updateStrategy",
        "DeploymentCondition": "lastTransitionTime lastUpdateTime",
        "DeploymentSpec": "strategy template",
        "DeviceTaintRuleSpec": "taint",
        "Endpoint": "conditions",
        "EphemeralContainer": "resources",
        "Event": "deprecatedFirstTimestamp deprecatedLastTimestamp deprecatedSource eventTime firstTimestamp "
        "involvedObject lastTimestamp regarding source",
        "EventSeries": "lastObservedTime",
        "ExternalMetricSource": "metric target",
        "ExternalMetricStatus": "current metric",
        "FlowSchemaCondition": "lastTransitionTime",
        "FlowSchemaSpec": "priorityLevelConfiguration",
        "HTTPIngressPath": "backend",
        "HorizontalPodAutoscalerCondition": "lastTransitionTime",
        "HorizontalPodAutoscalerSpec": "scaleTargetRef",
        "IngressServiceBackend": "port",
        "IngressStatus": "loadBalancer",
        "JobCondition": "lastProbeTime lastTransitionTime",
        "JobSpec": "template",
        "JobTemplateSpec": "metadata spec",
        "LimitedPriorityLevelConfiguration": "limitResponse",
        "MutatingWebhook": "clientConfig",
        "NamespaceCondition": "lastTransitionTime",
        "NetworkPolicySpec": "podSelector",
        "NodeCondition": "lastHeartbeatTime lastTransitionTime",
        "NodeDaemonEndpoints": "kubeletEndpoint",
        "NodeStatus": "daemonEndpoints nodeInfo",
        "ObjectMetricSource": "describedObject metric target",
        "ObjectMetricStatus": "current describedObject metric",
        "PersistentVolumeClaimCondition": "lastProbeTime lastTransitionTime",
        "PersistentVolumeClaimSpec": "resources",
        "PersistentVolumeClaimTemplate": "metadata spec",
        "PodCondition": "lastProbeTime lastTransitionTime",
        "PodGroupSpec": "schedulingPolicy",
        "PodGroupTemplate": "schedulingPolicy",
        "PodTemplate": "template",
        "PodTemplateSpec": "metadata spec",
        "PodVolumeHealth": "lastTransitionTime",
        "PodsMetricSource": "metric target",
        "PodsMetricStatus": "current metric",
        "PreferredSchedulingTerm": "preference",
        "PriorityLevelConfigurationCondition": "lastTransitionTime",
        "ReplicaSetCondition": "lastTransitionTime",
        "ReplicaSetSpec": "template",
        "ReplicationControllerCondition": "lastTransitionTime",
        "ResourceClaimSpec": "devices",
        "ResourceClaimTemplateSpec": "metadata spec",
        "ResourceMetricSource": "target",
        "ResourceMetricStatus": "current",
        "ResourceSliceSpec": "pool",
        "RoleBinding": "roleRef",
        "SelfSubjectReviewStatus": "userInfo",
        "ServiceStatus": "loadBalancer",
        "StatefulSetCondition": "lastTransitionTime",
        "StatefulSetSpec": "template updateStrategy",
        "StorageHealthCondition": "lastTransitionTime",
        "TokenRequestStatus": "expirationTimestamp",
        "TokenReviewStatus": "user",
        "ValidatingWebhook": "clientConfig",
        "VolumeAttachmentSpec": "source",
        "VolumeError": "time",
        "VolumeHealthStatus": "lastTransitionTime",
        "WeightedPodAffinityTerm": "podAffinityTerm",
    }.items()
}
# Fields that Go writes though OpenAPI calls them optional, and that it omits though OpenAPI requires them.
_WRITTEN: Final = frozenset(
    {
        ("ClusterRole", "rules"),
        ("ContainerImage", "names"),
        ("CSINodeDriver", "topologyKeys"),
        ("DeviceClaim", "requests"),
        ("EndpointSlice", "endpoints"),
        ("EndpointSlice", "ports"),
        ("HorizontalPodAutoscalerStatus", "currentMetrics"),
        ("ProjectedVolumeSource", "sources"),
        ("Role", "rules"),
        ("WorkloadSpec", "podGroupTemplates"),
    }
)
_OMITTED: Final = frozenset(
    {
        ("CounterSet", "counters"),
        ("DeviceCounterConsumption", "counters"),
        ("ValidatingAdmissionPolicyBindingSpec", "validationActions"),
    }
)


def _is_written(struct: StructType, field: Field) -> bool:
    """Report whether Go writes a field that is empty."""
    place = (struct.name.rpartition(".")[2], field.name)
    return place in _WRITTEN or (field.required and place not in _OMITTED)


def is_held_by_value(struct: StructType, field: str) -> bool:
    """Report whether a message-typed field of a built-in type is held by value, so that it is always present."""
    if field in _OF_OBJECTS and "apiVersion" in struct.fields and "kind" in struct.fields:
        return True
    return field in _HELD_BY_VALUE.get(struct.name.rpartition(".")[2], ())
