"""The default profile and the scheduler's role, as Kubernetes has them."""

from __future__ import annotations

import pytest

from dray.apiserver.authorization.bootstrap_roles import CLUSTER_ROLES, CONTROLLER_ROLES
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
        ("job-controller", "create", "scheduling.k8s.io", "podgroups"),
        ("job-controller", "list", "scheduling.k8s.io", "workloads"),
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
