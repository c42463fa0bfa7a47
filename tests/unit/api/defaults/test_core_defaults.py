"""Defaults of the built-in kinds, compared with recorded responses of kube-apiserver 1.36.4 where available."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.defaults import core_v1, other_groups, workloads
from dray.api.defaults.pod_spec import canonicalize_quantities, default_pod
from dray.api.document import GroupVersionKind

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, tzinfo=UTC)
MODULES = (core_v1, workloads, other_groups)
DEFAULTERS = {kind: default for module in MODULES for kind, default in module.DEFAULTERS.items()}


def defaulted(group: str, kind: str, document: Document) -> Document:
    result = copy.deepcopy(document)
    defaulter = DEFAULTERS[GroupVersionKind(group, "v1", kind)]
    defaulter(result, NOW)
    again = copy.deepcopy(result)
    defaulter(again, NOW)
    assert again == result, "defaulting is idempotent"
    return result


def test_smallest_pod() -> None:
    given = {"spec": {"automountServiceAccountToken": False, "containers": [{"name": "c", "image": "pause"}]}}
    assert defaulted("", "Pod", given)["spec"] == {
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "c",
                "image": "pause",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "enableServiceLinks": True,
    }


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("pause", "Always"),
        ("pause:latest", "Always"),
        ("pause:3.9", "IfNotPresent"),
        ("localhost:5000/pause", "Always"),
        ("localhost:5000/pause:1", "IfNotPresent"),
        ("pause@sha256:0123", "IfNotPresent"),
        ("pause:latest@sha256:0123", "IfNotPresent"),
    ],
)
def test_pull_policy(image: str, policy: str) -> None:
    spec: Document = {"containers": [{"name": "c", "image": image}]}
    default_pod(spec)
    assert spec["containers"][0]["imagePullPolicy"] == policy


def container(**fields: Any) -> Document:
    spec: Document = {"containers": [{"name": "c", "image": "pause", **fields}]}
    default_pod(spec)
    made: Document = spec["containers"][0]
    return made


def test_requests_follow_limits_in_canonical_form() -> None:
    resources = {"limits": {"cpu": "0.1", "memory": "1024Mi", "example.com/gpu": 2}, "requests": {"cpu": "0.05"}}
    assert container(resources=resources)["resources"] == {
        "limits": {"cpu": "100m", "memory": "1Gi", "example.com/gpu": "2"},
        "requests": {"cpu": "50m", "memory": "1Gi", "example.com/gpu": "2"},
    }


def test_quantities_are_rounded_up_to_thousandths() -> None:
    resources = {"cpu": "0.0001", "memory": "1.5", "storage": "1e3"}
    canonicalize_quantities(resources)
    assert resources == {"cpu": "1m", "memory": "1500m", "storage": "1e3"}


def test_parts_of_a_container() -> None:
    made = container(
        ports=[{"containerPort": 80}],
        env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        readinessProbe={"httpGet": {"port": 80}},
        startupProbe={"grpc": {"port": 1}, "periodSeconds": 2},
        lifecycle={"preStop": {"httpGet": {"port": 1}}},
    )
    assert made["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert made["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert made["readinessProbe"] == {
        "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert made["startupProbe"]["periodSeconds"] == 2
    assert made["startupProbe"]["grpc"] == {"port": 1, "service": ""}
    assert made["lifecycle"]["preStop"]["httpGet"]["path"] == "/"


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({}, {"emptyDir": {}}),
        ({"secret": {"secretName": "s"}}, {"secret": {"secretName": "s", "defaultMode": 420}}),
        ({"configMap": {"name": "s", "defaultMode": 256}}, {"configMap": {"name": "s", "defaultMode": 256}}),
        ({"hostPath": {"path": "/x"}}, {"hostPath": {"path": "/x", "type": ""}}),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {
                "projected": {
                    "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}],
                    "defaultMode": 420,
                }
            },
        ),
    ],
)
def test_volumes(volume: Document, expected: Document) -> None:
    spec: Document = {"volumes": [{"name": "v", **copy.deepcopy(volume)}]}
    default_pod(spec)
    assert spec["volumes"] == [{"name": "v", **expected}]


def test_host_network_takes_host_ports() -> None:
    spec: Document = {"hostNetwork": True, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}
    default_pod(spec)
    assert spec["containers"][0]["ports"][0]["hostPort"] == 80


def test_both_names_of_the_service_account() -> None:
    spec: Document = {"serviceAccount": "x"}
    default_pod(spec)
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("x", "x")


def template(**spec: Any) -> Document:
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "pause:1"}], **spec}}


def test_templates_keep_requests_and_service_links_unset() -> None:
    limits = {"limits": {"cpu": "1"}}
    given = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i", "resources": limits}]}}}}
    spec = defaulted("apps", "ReplicaSet", given)["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == limits
    assert "enableServiceLinks" not in spec
    assert spec["restartPolicy"] == "Always"


ROWS: dict[str, tuple[str, str, Document, Document]] = {
    "Deployment": (
        "apps",
        "Deployment",
        {"spec": {}},
        {
            "spec": {
                "replicas": 1,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
                "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
            }
        },
    ),
    "Deployment that recreates": (
        "apps",
        "Deployment",
        {"spec": {"replicas": 0, "strategy": {"type": "Recreate"}}},
        {
            "spec": {
                "replicas": 0,
                "strategy": {"type": "Recreate"},
                "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
            }
        },
    ),
    "DaemonSet": (
        "apps",
        "DaemonSet",
        {"spec": {}},
        {
            "spec": {
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
                "revisionHistoryLimit": 10,
            }
        },
    ),
    "Namespace": (
        "",
        "Namespace",
        {"metadata": {"name": "n"}},
        {
            "metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}},
            "spec": {},
            "status": {"phase": "Active"},
        },
    ),
    "Node": (
        "",
        "Node",
        {"status": {"capacity": {"memory": "1048576Ki"}}},
        {"spec": {}, "status": {"capacity": {"memory": "1Gi"}, "allocatable": {"memory": "1Gi"}}},
    ),
    "Secret": (
        "",
        "Secret",
        {"data": {"a": "b2xk", "b": "eA=="}, "stringData": {"a": "new"}},
        {"type": "Opaque", "data": {"a": "bmV3", "b": "eA=="}},
    ),
    "ResourceQuota": (
        "",
        "ResourceQuota",
        {"spec": {"hard": {"pods": 4, "requests.cpu": "1000m"}}},
        {"spec": {"hard": {"pods": "4", "requests.cpu": "1"}}, "status": {}},
    ),
    "RoleBinding": (
        "rbac.authorization.k8s.io",
        "RoleBinding",
        {"roleRef": {"kind": "Role"}, "subjects": [{"kind": "User"}, {"kind": "ServiceAccount"}]},
        {
            "roleRef": {"kind": "Role", "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io"}, {"kind": "ServiceAccount"}],
        },
    ),
    "PriorityClass": (
        "scheduling.k8s.io",
        "PriorityClass",
        {"value": 5},
        {"value": 5, "preemptionPolicy": "PreemptLowerPriority"},
    ),
    "Lease": ("coordination.k8s.io", "Lease", {}, {"spec": {}}),
}


@pytest.mark.parametrize(("group", "kind", "given", "expected"), ROWS.values(), ids=ROWS)
def test_kinds(group: str, kind: str, given: Document, expected: Document) -> None:
    assert defaulted(group, kind, given) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"parallelism": 1, "completions": 1, "backoffLimit": 6}),
        ({"parallelism": 2}, {"parallelism": 2, "backoffLimit": 6}),
        ({"completions": 3}, {"parallelism": 1, "completions": 3, "backoffLimit": 6}),
        ({"backoffLimitPerIndex": 1}, {"parallelism": 1, "completions": 1, "backoffLimit": 2147483647}),
    ],
)
def test_job(spec: Document, expected: Document) -> None:
    made = defaulted("batch", "Job", {"spec": {"template": template(restartPolicy="Never"), **spec}})
    assert made["metadata"]["labels"] == {"a": "b"}
    found = {name: made["spec"].get(name) for name in expected}
    assert found == expected
    assert ("completions" in made["spec"]) == ("completions" in expected)
    rest = {"completionMode": "NonIndexed", "suspend": False, "podReplacementPolicy": "TerminatingOrFailed"}
    assert rest.items() <= made["spec"].items()
