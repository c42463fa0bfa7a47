"""Table columns as kube-apiserver 1.36.4 defines them, and their cells."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.apiserver.registry import (
    configuration,
    daemon_sets,
    deployments,
    events,
    jobs,
    leases,
    namespaces,
    nodes,
    pods,
    priority_classes,
    rbac,
    replica_sets,
    resource_quotas,
)
from dray.apiserver.registry.strategy import ResourceDefinition

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
CREATED = "2026-11-15T11:55:00Z"

TEMPLATE = ["Containers string 1", "Images string 1", "Selector string 1"]
BINDING = [
    "Name string name 0",
    "Role string 0",
    "Age string 0",
    "Users string 1",
    "Groups string 1",
    "ServiceAccounts string 1",
]
ROLE = ["Name string name 0", "Created At date 0"]
# Name, type, format if any, priority: recorded responses to `as=Table`.
COLUMNS: dict[str, tuple[ResourceDefinition, list[str]]] = {
    "pods": (
        pods.PODS,
        [
            "Name string name 0",
            "Ready string 0",
            "Status string 0",
            "Restarts string 0",
            "Age string 0",
            "IP string 1",
            "Node string 1",
            "Nominated Node string 1",
            "Readiness Gates string 1",
        ],
    ),
    "nodes": (
        nodes.NODES,
        [
            "Name string name 0",
            "Status string 0",
            "Roles string 0",
            "Age string 0",
            "Version string 0",
            "Internal-IP string 1",
            "External-IP string 1",
            "OS-Image string 1",
            "Kernel-Version string 1",
            "Container-Runtime string 1",
        ],
    ),
    "namespaces": (namespaces.NAMESPACES, ["Name string name 0", "Status string 0", "Age string 0"]),
    "events": (
        events.EVENTS,
        [
            "Last Seen string 0",
            "Type string 0",
            "Reason string 0",
            "Object string 0",
            "Subobject string 1",
            "Source string 1",
            "Message string 0",
            "First Seen string 1",
            "Count string 1",
            "Name string name 1",
        ],
    ),
    "quotas": (
        resource_quotas.RESOURCE_QUOTAS,
        ["Name string name 0", "Request string 0", "Limit string 0", "Age string 0"],
    ),
    "config maps": (configuration.CONFIG_MAPS, ["Name string name 0", "Data string 0", "Age string 0"]),
    "service accounts": (configuration.SERVICE_ACCOUNTS, ["Name string name 0", "Age string 0"]),
    "secrets": (configuration.SECRETS, ["Name string name 0", "Type string 0", "Data string 0", "Age string 0"]),
    "deployments": (
        deployments.DEPLOYMENTS,
        [
            "Name string name 0",
            "Ready string 0",
            "Up-to-date string 0",
            "Available string 0",
            "Age string 0",
            *TEMPLATE,
        ],
    ),
    "replica sets": (
        replica_sets.REPLICA_SETS,
        [
            "Name string name 0",
            "Desired integer 0",
            "Current integer 0",
            "Ready integer 0",
            "Age string 0",
            *TEMPLATE,
        ],
    ),
    "daemon sets": (
        daemon_sets.DAEMON_SETS,
        [
            "Name string name 0",
            "Desired integer 0",
            "Current integer 0",
            "Ready integer 0",
            "Up-to-date integer 0",
            "Available integer 0",
            "Node Selector string 0",
            "Age string 0",
            *TEMPLATE,
        ],
    ),
    "jobs": (
        jobs.JOBS,
        [
            "Name string name 0",
            "Status string 0",
            "Completions string 0",
            "Duration string 0",
            "Age string 0",
            *TEMPLATE,
        ],
    ),
    "leases": (leases.LEASES, ["Name string name 0", "Holder string 0", "Age string 0"]),
    "roles": (rbac.ROLES, ROLE),
    "cluster roles": (rbac.CLUSTER_ROLES, ROLE),
    "role bindings": (rbac.ROLE_BINDINGS, BINDING),
    "cluster role bindings": (rbac.CLUSTER_ROLE_BINDINGS, BINDING),
    "priority classes": (
        priority_classes.PRIORITY_CLASSES,
        [
            "Name string name 0",
            "Value integer 0",
            "Global-Default boolean 0",
            "Age string 0",
            "PreemptionPolicy string 0",
        ],
    ),
}


@pytest.mark.parametrize(("definition", "expected"), COLUMNS.values(), ids=COLUMNS)
def test_columns(definition: ResourceDefinition, expected: list[str]) -> None:
    shown = [
        " ".join(filter(None, (column.name, column.type, column.format, str(column.priority))))
        for column in definition.columns
    ]
    assert shown == expected
    assert all(column.description for column in definition.columns)


def cells(definition: ResourceDefinition, document: Document) -> list[Any]:
    full = {"metadata": {"name": "x", "creationTimestamp": CREATED}, **document}
    return [column.cell(full, NOW) for column in definition.columns]


@pytest.mark.parametrize("definition", [row[0] for row in COLUMNS.values()], ids=COLUMNS)
def test_cells_of_an_object_without_content(definition: ResourceDefinition) -> None:
    shown = cells(definition, {})
    assert all(isinstance(cell, str | int | bool) for cell in shown)
    if definition is not events.EVENTS:
        assert shown[0] == "x"


RUNNING = {"state": {"running": {}}, "ready": True, "restartCount": 0}
CRASHED = {
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "restartCount": 3,
    "lastState": {"terminated": {"finishedAt": "2026-11-15T11:59:30Z"}},
}
TWO = {"containers": [{"name": "a"}, {"name": "b"}]}
INIT = {**TWO, "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]}

PODS: dict[str, tuple[Document, list[str]]] = {
    "pending": ({"spec": TWO, "status": {"phase": "Pending"}}, ["0/2", "Pending", "0"]),
    "running": (
        {"spec": TWO, "status": {"phase": "Running", "containerStatuses": [RUNNING, RUNNING]}},
        ["2/2", "Running", "0"],
    ),
    "crashing": (
        {"spec": TWO, "status": {"phase": "Running", "containerStatuses": [CRASHED, RUNNING]}},
        ["1/2", "CrashLoopBackOff", "3 (30s ago)"],
    ),
    "completed": (
        {
            "spec": {"containers": [{"name": "a"}]},
            "status": {
                "phase": "Succeeded",
                "containerStatuses": [{"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}],
            },
        },
        ["0/1", "Completed", "0"],
    ),
    "killed": (
        {
            "spec": {"containers": [{"name": "a"}]},
            "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "signal": 9}}}]},
        },
        ["0/1", "Signal:9", "0"],
    ),
    "one done, one running": (
        {
            "spec": TWO,
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}, RUNNING],
            },
        },
        ["1/2", "NotReady", "0"],
    ),
    "initializing": (
        {
            "spec": INIT,
            "status": {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]},
        },
        ["0/3", "Init:0/2", "0"],
    ),
    "init failed": (
        {
            "spec": INIT,
            "status": {"initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 2}}}]},
        },
        ["0/3", "Init:ExitCode:2", "0"],
    ),
    "with a sidecar": (
        {
            "spec": INIT,
            "status": {
                "phase": "Running",
                "initContainerStatuses": [
                    {"name": "i", "state": {"terminated": {"exitCode": 0}}, "restartCount": 5},
                    {"name": "s", "started": True, **RUNNING, "restartCount": 1},
                ],
                "containerStatuses": [RUNNING, RUNNING],
            },
        },
        ["3/3", "Running", "1"],
    ),
    "terminating": (
        {
            "metadata": {"name": "x", "creationTimestamp": CREATED, "deletionTimestamp": CREATED},
            "spec": TWO,
            "status": {"phase": "Running"},
        },
        ["0/2", "Terminating", "0"],
    ),
    "gated": (
        {
            "spec": TWO,
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
            },
        },
        ["0/2", "SchedulingGated", "0"],
    ),
}


@pytest.mark.parametrize(("document", "expected"), PODS.values(), ids=PODS)
def test_pod_cells(document: Document, expected: list[str]) -> None:
    assert cells(pods.PODS, document)[1:5] == [*expected, "5m"]


def test_wide_pod_cells() -> None:
    document = {
        "spec": {"nodeName": "n1", "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
        "status": {"podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "a", "status": "True"}]},
    }
    assert cells(pods.PODS, document)[5:] == ["10.0.0.1", "n1", "<none>", "1/2"]


ROWS: dict[str, tuple[ResourceDefinition, Document, list[Any]]] = {
    # Cells recorded for a node without a kubelet.
    "silent node": (
        nodes.NODES,
        {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}},
        ["x", "NotReady", "<none>", "5m", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"],
    ),
    "cordoned node": (
        nodes.NODES,
        {
            "metadata": {
                "name": "x",
                "labels": {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "a"},
            },
            "spec": {"unschedulable": True},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.36.4", "osImage": "Debian"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}],
            },
        },
        [
            "x",
            "Ready,SchedulingDisabled",
            "a,control-plane",
            "<unknown>",
            "v1.36.4",
            "10.0.0.9",
            "<none>",
            "Debian",
            "<unknown>",
            "<unknown>",
        ],
    ),
    "config map": (configuration.CONFIG_MAPS, {"data": {"a": "b"}, "binaryData": {"c": ""}}, ["x", 2, "5m"]),
    "quota": (
        resource_quotas.RESOURCE_QUOTAS,
        {"status": {"hard": {"pods": "2", "limits.cpu": "1", "cpu": "4"}, "used": {"pods": "1"}}},
        ["x", "cpu: 0/4, pods: 1/2", "limits.cpu: 0/1", "5m"],
    ),
    "event": (
        events.EVENTS,
        {
            "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"},
            "type": "Warning",
            "reason": "Failed",
            "message": " text \n",
            "source": {"component": "kubelet", "host": "n1"},
            "firstTimestamp": "2026-11-15T11:00:00Z",
            "lastTimestamp": "2026-11-15T11:59:00Z",
            "count": 4,
        },
        ["60s", "Warning", "Failed", "pod/p", "spec.containers{c}", "kubelet, n1", "text", "60m", 4, "x"],
    ),
    "new event": (
        events.NEW_EVENTS,
        {
            "regarding": {"kind": "Node", "name": "n"},
            "type": "Normal",
            "reason": "R",
            "note": "text",
            "reportingController": "example.com/c",
            "reportingInstance": "c-0",
            "eventTime": "2026-11-15T11:58:00.000000Z",
            "series": {"count": 9, "lastObservedTime": "2026-11-15T11:59:59.000000Z"},
        },
        ["1s", "Normal", "R", "node/n", "", "example.com/c, c-0", "text", "2m", 9, "x"],
    ),
    "deployment": (
        deployments.DEPLOYMENTS,
        {
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"b": "2", "a": "1"}},
                "template": {"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}},
            },
            "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1},
        },
        ["x", "2/3", 3, 1, "5m", "c,d", "i,j", "a=1,b=2"],
    ),
    "daemon set": (
        daemon_sets.DAEMON_SETS,
        {
            "spec": {"template": {"spec": {"nodeSelector": {"b": "2", "a": "1"}}}},
            "status": {"desiredNumberScheduled": 3, "numberReady": 2},
        },
        ["x", 3, 0, 2, 0, 0, "a=1,b=2", "5m", "", "", "<none>"],
    ),
    "finished job": (
        jobs.JOBS,
        {
            "spec": {"completions": 2, "selector": {"matchLabels": {"a": "b"}}},
            "status": {
                "succeeded": 2,
                "startTime": "2026-11-15T11:55:00Z",
                "completionTime": "2026-11-15T11:56:40Z",
                "conditions": [{"type": "Complete", "status": "True"}],
            },
        },
        ["x", "Complete", "2/2", "100s", "5m", "", "", "a=b"],
    ),
    "work queue": (jobs.JOBS, {"spec": {"parallelism": 4}}, ["x", "Running", "0/1 of 4", "", "5m", "", "", "<none>"]),
    "role": (rbac.ROLES, {}, ["x", CREATED]),
    "binding": (
        rbac.ROLE_BINDINGS,
        {
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [
                {"kind": "User", "name": "u"},
                {"kind": "Group", "name": "g"},
                {"kind": "Group", "name": "h"},
                {"kind": "ServiceAccount", "namespace": "n", "name": "s"},
            ],
        },
        ["x", "Role/r", "5m", "u", "g, h", "n/s"],
    ),
}


@pytest.mark.parametrize(("definition", "document", "expected"), ROWS.values(), ids=ROWS)
def test_cells(definition: ResourceDefinition, document: Document, expected: list[Any]) -> None:
    assert cells(definition, document) == expected
