"""The default profile and the scheduler's role, as Kubernetes has them."""

from __future__ import annotations

import pytest

from bench.workloads import DEFAULT, LONG
from dray.api.document import GroupResource
from dray.apiserver.authorization.bootstrap_roles import CLUSTER_ROLES, CONTROLLER_ROLES
from dray.apiserver.registry import builtin
from dray.apiserver.registry.actors import ACTED_ON_BY
from dray.scheduler.registry import DEFAULT_PLUGINS

# Kubernetes 1.37, without the plugins that are not built.
KUBERNETES = (
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeName", 0),
    ("NodeUnschedulable", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("VolumeBinding", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
    ("NodeDeclaredFeatures", 0),
    ("GangScheduling", 0),
)
OWN = {"ClassicResources", "OptionalClaims"}


@pytest.mark.behaviour("SC-15")
def test_order_and_weights_of_the_default_plugins() -> None:
    assert tuple(item for item in DEFAULT_PLUGINS if item[0] not in OWN) == KUBERNETES


def _allows(rules: object, verb: str, group: str, resource: str) -> bool:
    return any(
        verb in rule.get("verbs", ()) and group in rule.get("apiGroups", ()) and resource in rule.get("resources", ())
        for rule in rules  # type: ignore[attr-defined]
    )


@pytest.mark.behaviour("SC-18")
@pytest.mark.parametrize(
    ("role", "verb", "group", "resource"),
    [
        ("system:kube-scheduler", "watch", "scheduling.k8s.io", "podgroups"),
        ("system:kube-scheduler", "patch", "scheduling.k8s.io", "podgroups/status"),
        ("system:kube-scheduler", "delete", "", "pods"),
        ("system:kube-scheduler", "watch", "policy", "poddisruptionbudgets"),
        ("system:kube-scheduler", "update", "", "persistentvolumes"),
        ("system:kube-scheduler", "watch", "storage.k8s.io", "storageclasses"),
        ("system:kube-scheduler", "list", "scheduling.k8s.io", "workloads"),
        ("system:kube-scheduler", "patch", "", "pods/status"),
        ("resource-claim-controller", "watch", "scheduling.k8s.io", "podgroups"),
        ("resource-claim-controller", "patch", "scheduling.k8s.io", "podgroups/status"),
        ("job-controller", "create", "scheduling.k8s.io", "podgroups"),
        ("job-controller", "patch", "scheduling.k8s.io", "podgroups"),
        ("job-controller", "list", "scheduling.k8s.io", "workloads"),
        ("job-controller", "create", "scheduling.k8s.io", "workloads"),
        ("job-controller", "patch", "scheduling.k8s.io", "workloads"),
        ("podgroup-protection-controller", "update", "scheduling.k8s.io", "podgroups"),
        ("persistent-volume-binder", "update", "", "persistentvolumeclaims"),
        ("persistent-volume-binder", "update", "", "persistentvolumes/status"),
        ("pvc-protection-controller", "update", "", "persistentvolumeclaims"),
        ("pvc-protection-controller", "list", "", "pods"),
        ("pv-protection-controller", "update", "", "persistentvolumes"),
    ],
)
def test_roles(role: str, verb: str, group: str, resource: str) -> None:
    rules = CLUSTER_ROLES.get(role) or CONTROLLER_ROLES[role]
    assert _allows(rules, verb, group, resource)
    assert not _allows(rules, "delete", "policy", "poddisruptionbudgets")


@pytest.mark.behaviour("SC-13")
@pytest.mark.parametrize(
    ("resource", "component"),
    [
        ("policy/poddisruptionbudgets", "scheduler (preemption)"),
        ("scheduling.k8s.io/podgroups", "scheduler"),
        ("scheduling.k8s.io/workloads", "Job controller"),
        ("/services", "scheduler (default spreading)"),
        ("/replicationcontrollers", "scheduler (default spreading)"),
        ("apps/replicasets", "scheduler (default spreading)"),
        ("apps/statefulsets", "scheduler (default spreading)"),
        ("/persistentvolumes", "scheduler"),
        ("/persistentvolumeclaims", "scheduler"),
        ("storage.k8s.io/storageclasses", "scheduler"),
        ("node.k8s.io/runtimeclasses", "API server (RuntimeClass)"),
        ("/limitranges", "API server (LimitRanger)"),
        # Only stored: the answer to their creation has a warning.
        ("storage.k8s.io/csinodes", ""),
        ("storage.k8s.io/csidrivers", ""),
        ("storage.k8s.io/csistoragecapacities", ""),
        ("storage.k8s.io/volumeattachments", ""),
    ],
)
def test_kinds_that_kube_scheduler_reads(resource: str, component: str) -> None:
    """Each is served; the list says who acts on it, and so do docs/reference/kinds.md and the server's warnings."""
    group, _, plural = resource.partition("/")
    served = {(item.group, item.resource) for item in builtin.definitions()}
    assert (group, plural) in served
    assert component in ACTED_ON_BY.get(GroupResource(group, plural), "").split(", ") or not component
    assert bool(component) == (GroupResource(group, plural) in ACTED_ON_BY)


@pytest.mark.behaviour("SC-22")
def test_benchmarks() -> None:
    """What the speed of affinity, spreading, preemption and gangs is measured with."""
    names = {workload.name for workload in (*DEFAULT, *LONG)}
    assert names >= {
        "required anti-affinity by host, 1000 nodes",
        "spread over 3 zones, 1000 nodes",
        "preemption, 500 nodes, 5000 Pods with devices",
        "gangs of 8 with devices, 500 nodes",
        "gangs of 64 with devices, 500 nodes",
        "gangs of 9 with devices, 5000 nodes",
    }
