"""Which messages Kubernetes' Go types hold by value rather than by pointer, so that they are never absent.

OpenAPI does not say it, so the table is kept by hand; a field missing here is taken for a pointer, and its creator
then owns the field itself beside what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.api.schema.model import StructType

# Of everything that has an apiVersion and a kind.
_OF_OBJECTS: Final = frozenset({"metadata", "spec", "status"})

_HELD_BY_VALUE: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "AllocationResult": "devices",
        "Binding": "target",
        "ClusterRoleBinding": "roleRef",
        "Container": "resources",
        "ContainerStatus": "lastState state",
        "CronJobSpec": "jobTemplate",
        "CustomResourceDefinitionSpec": "names",
        "CustomResourceDefinitionStatus": "acceptedNames",
        "DaemonSetSpec": "template updateStrategy",
        "DeploymentSpec": "strategy template",
        "DeviceTaintRuleSpec": "taint",
        "EphemeralContainer": "resources",
        "Event": "deprecatedSource involvedObject regarding source",
        "JobSpec": "template",
        "JobTemplateSpec": "metadata spec",
        "NodeDaemonEndpoints": "kubeletEndpoint",
        "NodeStatus": "daemonEndpoints nodeInfo",
        "PersistentVolumeClaimSpec": "resources",
        "PersistentVolumeClaimTemplate": "metadata spec",
        "PodTemplate": "template",
        "PodTemplateSpec": "metadata spec",
        "PreferredSchedulingTerm": "preference",
        "ReplicaSetSpec": "template",
        "ResourceClaimSpec": "devices",
        "ResourceClaimTemplateSpec": "metadata spec",
        "ResourceSliceSpec": "pool",
        "RoleBinding": "roleRef",
        "SelfSubjectReviewStatus": "userInfo",
        "ServiceStatus": "loadBalancer",
        "StatefulSetSpec": "template updateStrategy",
        "TokenReviewStatus": "user",
        "WeightedPodAffinityTerm": "podAffinityTerm",
    }.items()
}


def is_held_by_value(struct: StructType, field: str) -> bool:
    """Whether a message-typed field of a built-in type is always there."""
    if field in _OF_OBJECTS and "apiVersion" in struct.fields and "kind" in struct.fields:
        return True
    return field in _HELD_BY_VALUE.get(struct.name.rpartition(".")[2], ())
