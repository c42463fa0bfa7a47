"""Namespaces, nodes, configuration, quotas, events, leases, priority classes and RBAC: one row per rule."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from dray.api.validation.core_v1_configuration import (
    validate_config_map,
    validate_config_map_update,
    validate_secret,
    validate_secret_update,
)
from dray.api.validation.core_v1_event import validate_event, validate_new_event, validate_new_event_update
from dray.api.validation.core_v1_namespace import validate_namespace, validate_namespace_status
from dray.api.validation.core_v1_node import validate_node, validate_node_update
from dray.api.validation.core_v1_quota import validate_quota, validate_quota_status, validate_quota_update
from dray.api.validation.other_groups import validate_lease, validate_priority_class, validate_priority_class_update
from dray.api.validation.rbac_v1 import (
    validate_binding_update,
    validate_cluster_role,
    validate_cluster_role_binding,
    validate_role,
    validate_role_binding,
)

Document = dict[str, Any]


def texts(errors: list[Any]) -> list[str]:
    return [str(error) for error in errors]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


RBAC = "rbac.authorization.k8s.io"
ROLE_REF = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "r"}
CONFIG_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
NEITHER = "name is neither a standard finalizer name nor is it fully qualified"
GOOD_EVENT = {
    "metadata": {"namespace": "ns"},
    "regarding": {"kind": "Pod", "namespace": "ns"},
    "eventTime": "2026-11-15T00:00:00.000000Z",
    "type": "Normal",
    "reportingController": "example.com/x",
    "reportingInstance": "x-0",
    "action": "Bind",
    "reason": "Bound",
}

CREATE: dict[str, tuple[Callable[[Document], list[Any]], Document, list[str]]] = {
    "namespace": (validate_namespace, {"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}}, []),
    "namespace finalizer": (
        validate_namespace,
        {"spec": {"finalizers": ["foo"]}},
        [f'spec.finalizers: Invalid value: "foo": {NEITHER}'],
    ),
    "metadata finalizer": (
        validate_config_map,
        {"metadata": {"finalizers": ["foo"]}},
        [f'metadata.finalizers[0]: Invalid value: "foo": {NEITHER}'],
    ),
    "active while deleted": (
        validate_namespace_status,
        {"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Active"}},
        ["status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"],
    ),
    "terminating while alive": (
        validate_namespace_status,
        {"status": {"phase": "Terminating"}},
        ["status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"],
    ),
    "node": (
        validate_node,
        {
            "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
            "status": {"capacity": {"cpu": "4", "example.com/gpu": "8"}},
        },
        [],
    ),
    "node taints": (
        validate_node,
        {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]}},
        [
            'spec.taints[1]: Duplicate value: {"key":"a","effect":"NoSchedule"}: '
            "taints must be unique by key and effect pair"
        ],
    ),
    "node taint effect": (
        validate_node,
        {"spec": {"taints": [{"key": "a"}]}},
        ["spec.taints[0].effect: Required value"],
    ),
    "half a device": (
        validate_node,
        {"status": {"capacity": {"example.com/gpu": "500m"}}},
        ['status.capacity.example.com/gpu: Invalid value: "500m": must be an integer'],
    ),
    "node features": (
        validate_node,
        {"status": {"declaredFeatures": ["A1", "DRAOptionalNodeOperations", "Part/Other"]}},
        [],
    ),
    "node features that are no names": (
        validate_node,
        {"status": {"declaredFeatures": ["A-b", "a", "a"]}},
        [
            "status.declaredFeatures[0]: Invalid value: \"A-b\": must be UpperCamelCase names separated by '/'",
            "status.declaredFeatures[1]: Invalid value: \"a\": must be UpperCamelCase names separated by '/'",
            "status.declaredFeatures[2]: Invalid value: \"a\": must be UpperCamelCase names separated by '/'",
            'status.declaredFeatures[2]: Duplicate value: "a"',
        ],
    ),
    "node features out of order": (
        validate_node,
        {"status": {"declaredFeatures": ["B", "A", "C" * 254]}},
        [
            "status.declaredFeatures[2]: Too long: may not be more than 253 bytes",
            'status.declaredFeatures: Invalid value: ["B","A","' + "C" * 254 + '"]: list must be sorted alphabetically',
        ],
    ),
    "config map": (validate_config_map, {"data": {"a.b": "c"}, "binaryData": {"d": "eA=="}}, []),
    "config map key": (
        validate_config_map,
        {"data": {"a b": "c"}},
        [f'data[a b]: Invalid value: "a b": {CONFIG_KEY}'],
    ),
    "config map key twice": (
        validate_config_map,
        {"data": {"a": "c"}, "binaryData": {"a": "eA=="}},
        ['data[a]: Invalid value: "a": duplicate of key present in binaryData'],
    ),
    "config map size": (
        validate_config_map,
        {"data": {"a": "x" * 1100000}},
        ["[]: Too long: may not be more than 1048576 bytes"],
    ),
    "secret": (validate_secret, {"type": "Opaque", "data": {"a": encoded("x" * 1048576)}}, []),
    "secret size": (
        validate_secret,
        {"data": {"a": encoded("x" * 1048577)}},
        ["data: Too long: may not be more than 1048576 bytes"],
    ),
    "secret of a service account": (
        validate_secret,
        {"type": "kubernetes.io/service-account-token"},
        ["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
    ),
    "secret for TLS": (
        validate_secret,
        {"type": "kubernetes.io/tls", "data": {"tls.crt": ""}},
        ["data[tls.key]: Required value"],
    ),
    "secret for basic auth": (
        validate_secret,
        {"type": "kubernetes.io/basic-auth"},
        ["data[username]: Required value", "data[password]: Required value"],
    ),
    "quota": (
        validate_quota,
        {
            "spec": {
                "hard": {
                    "pods": "1",
                    "requests.cpu": "1",
                    "count/resourceclaims.resource.k8s.io": "1",
                    "gpu.example.com.deviceclass.resource.k8s.io/devices": "1",
                    "requests.example.com/gpu": "2",
                }
            }
        },
        [],
    ),
    "quota name": (
        validate_quota,
        {"spec": {"hard": {"foo": "1"}}},
        [
            'spec.hard[foo]: Invalid value: "foo": must be a standard resource type or fully qualified',
            'spec.hard[foo]: Invalid value: "foo": must be a standard resource for quota',
        ],
    ),
    "quota amount": (
        validate_quota,
        {"spec": {"hard": {"pods": "0.5"}}},
        ['spec.hard[pods]: Invalid value: "500m": must be an integer'],
    ),
    "quota scopes": (
        validate_quota,
        {"spec": {"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}},
        ['spec.scopes: Invalid value: ["BestEffort","NotBestEffort"]: conflicting scopes'],
    ),
    "quota scope and resource": (
        validate_quota,
        {"spec": {"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}},
        ['spec.scopes: Invalid value: ["BestEffort"]: unsupported scope applied to resource'],
    ),
    "quota scope selector": (
        validate_quota,
        {"spec": {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}},
        [
            "spec.scopeSelector.matchExpressions[0].values: Required value: must be at least one value when `operator` "
            "is 'In' or 'NotIn' for scope selector"
        ],
    ),
    "quota status": (
        validate_quota_status,
        {"status": {"used": {"pods": "-1"}}},
        ['status.used[pods]: Invalid value: "-1": must be greater than or equal to 0'],
    ),
    "event": (validate_event, {"metadata": {"namespace": "ns"}, "involvedObject": {"namespace": "ns"}}, []),
    "event of a node": (validate_event, {"metadata": {"namespace": "default"}, "involvedObject": {"kind": "Node"}}, []),
    "event elsewhere": (
        validate_event,
        {"metadata": {"namespace": "ns"}, "involvedObject": {"namespace": "other"}},
        ['involvedObject.namespace: Invalid value: "other": does not match event.namespace'],
    ),
    "new event": (validate_new_event, GOOD_EVENT, []),
    "new event without time": (validate_new_event, {**GOOD_EVENT, "eventTime": None}, ["eventTime: Required value"]),
    "new event's type": (
        validate_new_event,
        {**GOOD_EVENT, "type": "Odd"},
        ['type: Invalid value: "": has invalid value: Odd'],
    ),
    "new event without reporter": (
        validate_new_event,
        {**GOOD_EVENT, "reportingController": "", "action": ""},
        ["reportingController: Required value", "action: Required value"],
    ),
    "lease": (validate_lease, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 15}}, []),
    "lease duration": (
        validate_lease,
        {"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}},
        [
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ],
    ),
    "priority class": (validate_priority_class, {"metadata": {"name": "a"}, "value": 1000000000}, []),
    "system class": (
        validate_priority_class,
        {"metadata": {"name": "system-node-critical"}, "value": 2000001000},
        [],
    ),
    "too important": (
        validate_priority_class,
        {"metadata": {"name": "a"}, "value": 1000000001},
        ["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
    ),
    "system name": (
        validate_priority_class,
        {"metadata": {"name": "system-x"}, "value": 1},
        [
            "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. "
            "error: system-x is not a known system priority class"
        ],
    ),
    "role": (validate_role, {"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}, []),
    "empty rule": (
        validate_role,
        {"rules": [{}]},
        [
            "rules[0].verbs: Required value: verbs must contain at least one value",
            "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[0].resources: Required value: resource rules must supply at least one resource",
        ],
    ),
    "role with paths": (
        validate_role,
        {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]},
        [
            'rules[0].nonResourceURLs: Invalid value: ["/x"]: namespaced rules cannot apply to non-resource URLs',
        ],
    ),
    "cluster role with paths": (validate_cluster_role, {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}, []),
    "aggregation of nothing": (
        validate_cluster_role,
        {"aggregationRule": {}},
        [
            "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if "
            "aggregationRule is non-nil"
        ],
    ),
    "binding": (
        validate_role_binding,
        {"roleRef": ROLE_REF, "subjects": [{"kind": "User", "apiGroup": RBAC, "name": "alice"}]},
        [],
    ),
    "cluster binding to a role": (
        validate_cluster_role_binding,
        {"roleRef": {**ROLE_REF, "kind": "Role"}},
        ['roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"'],
    ),
    "cluster binding of an account without namespace": (
        validate_cluster_role_binding,
        {"roleRef": ROLE_REF, "subjects": [{"kind": "ServiceAccount", "name": "sa"}]},
        ["subjects[0].namespace: Required value"],
    ),
    "subject": (
        validate_role_binding,
        {"roleRef": ROLE_REF, "subjects": [{"kind": "Robot", "name": "r"}]},
        [
            'subjects[0].kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group"',
        ],
    ),
}


@pytest.mark.parametrize(("validate", "document", "expected"), CREATE.values(), ids=CREATE)
def test_create(validate: Callable[[Document], list[Any]], document: Document, expected: list[str]) -> None:
    assert texts(validate(document)) == expected


FROZEN = "field is immutable when `immutable` is set"
UPDATE: dict[str, tuple[Callable[[Document, Document], list[Any]], Document, Document, list[str]]] = {
    "immutable config map": (
        validate_config_map_update,
        {"immutable": True, "data": {"a": "2"}},
        {"immutable": True, "data": {"a": "1"}},
        [f"data: Forbidden: {FROZEN}"],
    ),
    "no longer immutable": (
        validate_config_map_update,
        {"data": {"a": "1"}},
        {"immutable": True, "data": {"a": "1"}},
        [f"immutable: Forbidden: {FROZEN}"],
    ),
    "secret type": (
        validate_secret_update,
        {"type": "b"},
        {"type": "a"},
        ['type: Invalid value: "b": field is immutable'],
    ),
    "quota scopes": (
        validate_quota_update,
        {"spec": {"scopes": ["BestEffort"]}},
        {"spec": {}},
        ['spec.scopes: Invalid value: ["BestEffort"]: field is immutable'],
    ),
    "node provider": (
        validate_node_update,
        {"spec": {"providerID": "b"}},
        {"spec": {"providerID": "a"}},
        ['spec.providerID: Forbidden: node updates may not change providerID except from "" to valid'],
    ),
    "node provider set": (validate_node_update, {"spec": {"providerID": "b"}}, {"spec": {}}, []),
    "priority value": (
        validate_priority_class_update,
        {"value": 2},
        {"value": 1},
        ["value: Forbidden: may not be changed in an update."],
    ),
    "role of a binding": (
        validate_binding_update,
        {"roleRef": {"name": "b"}},
        {"roleRef": {"name": "a"}},
        ['roleRef: Invalid value: {"name":"b"}: cannot change roleRef'],
    ),
    "reason of a new event": (
        validate_new_event_update,
        {**GOOD_EVENT, "reason": "Other"},
        GOOD_EVENT,
        ['reason: Invalid value: "Other": field is immutable'],
    ),
    "series of a new event": (
        validate_new_event_update,
        {**GOOD_EVENT, "series": {"count": 2, "lastObservedTime": "t"}},
        GOOD_EVENT,
        [],
    ),
}


@pytest.mark.parametrize(("validate", "new", "old", "expected"), UPDATE.values(), ids=UPDATE)
def test_update(
    validate: Callable[[Document, Document], list[Any]], new: Document, old: Document, expected: list[str]
) -> None:
    assert texts(validate(new, old)) == expected
