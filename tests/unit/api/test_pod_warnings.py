"""Warnings about Pods and templates, in Kubernetes' words."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.pod_warnings import pod_warnings, workload_warnings

pytestmark = pytest.mark.api_faults


def pod(container: Document | None = None, *, name: str = "p", **spec: Any) -> Document:
    containers = [{"name": "c", "image": "i", **(container or {})}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


CASES = {
    "nothing": (pod(), []),
    "name": (
        pod(name="a.b"),
        [
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label "
            "is recommended: [must not contain dots]"
        ],
    ),
    "node selector": (
        pod(nodeSelector={"beta.kubernetes.io/os": "linux", "zone": "x"}),
        ['spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use "kubernetes.io/os" instead'],
    ),
    "memory": (
        pod({"resources": {"requests": {"memory": "100m", "cpu": "100m"}, "limits": {"memory": "1Gi"}}}),
        ['spec.containers[0].resources.requests[memory]: fractional byte value "100m" is invalid, must be an integer'],
    ),
    "environment": (
        pod({"env": [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A"}]}),
        ['spec.containers[0].env[2]: hides previous definition of "A", which may be dropped when using apply'],
    ),
    "ports": (
        pod({"ports": [{"containerPort": 80}, {"containerPort": 80, "hostPort": 80}, {"containerPort": 80}]}),
        [
            "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[2]: duplicate port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[1]",
        ],
    ),
    "ports of other containers": (
        pod(
            {"ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}]},
            initContainers=[{"name": "i", "ports": [{"containerPort": 80, "hostPort": 8080}]}],
        ),
        [
            "spec.containers[0].ports[0]: dangerously ambiguous port definition with spec.initContainers[0].ports[0]",
        ],
    ),
    "address without port": (
        pod({"ports": [{"containerPort": 80, "protocol": "TCP", "hostIP": "10.0.0.1"}]}),
        [
            "spec.containers[0].ports[0]: hostIP set without hostPort: "
            "{Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:10.0.0.1}"
        ],
    ),
    "environment that extends itself": (
        pod({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A):2"}]}),
        [],
    ),
    "aliases": (
        pod(hostAliases=[{"ip": "1.1.1.1"}, {"ip": "1.1.1.2"}, {"ip": "1.1.1.1"}]),
        ['spec.hostAliases[2].ip: duplicate ip "1.1.1.1"'],
    ),
    "volumes": (
        pod(volumes=[{"name": "v", "rbd": {}}]),
        ["spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+"],
    ),
    "spread": (
        pod(topologySpreadConstraints=[{"topologyKey": "failure-domain.beta.kubernetes.io/zone"}]),
        [
            "spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since "
            'v1.17; use "topology.kubernetes.io/zone" instead',
            "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
        ],
    ),
    "affinity": (
        pod(
            affinity={
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {}}]
                },
            }
        ),
        [
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: "
            "a null labelSelector results in matching no pod",
            "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm."
            "labelSelector: a null labelSelector results in matching no pod",
        ],
    ),
    "grace period": (
        pod(terminationGracePeriodSeconds=-1),
        ["spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"],
    ),
    "secrets": (
        pod(imagePullSecrets=[{"name": "s"}, {"name": "s"}]),
        ['spec.imagePullSecrets[1].name: duplicate name "s"'],
    ),
    "secret": (pod(imagePullSecrets=[{}]), ['spec.imagePullSecrets[0].name: invalid empty name ""']),
}


@pytest.mark.parametrize(("given", "expected"), CASES.values(), ids=CASES)
def test_pods(given: Document, expected: list[str]) -> None:
    assert pod_warnings(given) == expected


def test_terms_of_node_affinity() -> None:
    term = {"matchExpressions": [{"key": "failure-domain.beta.kubernetes.io/zone", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert pod_warnings(pod(affinity={"nodeAffinity": required})) == [
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].key: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use "
        '"topology.kubernetes.io/zone" instead'
    ]


def test_templates_warn_when_the_desired_state_changes() -> None:
    def workload(generation: int) -> Document:
        metadata = {"name": "w.x", "generation": generation}
        return {"metadata": metadata, "spec": {"template": pod(imagePullSecrets=[{}])}}

    in_template = 'spec.template.spec.imagePullSecrets[0].name: invalid empty name ""'
    in_name = (
        "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label "
        "is recommended: [must not contain dots]"
    )
    assert workload_warnings(workload(1), None) == [in_name, in_template]
    assert workload_warnings(workload(1), None, names_pods=False) == [in_template]
    assert workload_warnings(workload(2), workload(1)) == [in_template]
    assert workload_warnings(workload(1), workload(1)) == []
