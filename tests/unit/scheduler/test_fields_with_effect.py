"""Every field of a Pod that is about its placement has an effect: with it, the Pod is placed elsewhere than without."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.pod_label_keys import merge_label_keys
from dray.api.types.core_v1 import Node, Pod
from dray.client.resources import NAMESPACES, NODES
from dray.scheduler.diagnosis import Diagnosis
from dray.sim.placer import Placer

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
ANY: Document = {"labelSelector": {"matchLabels": {"app": "web"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}


def node(name: str, zone: str, *features: str, **spec: Any) -> Node:
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    return from_document(
        Node,
        {
            "metadata": {"name": name, "uid": name, "labels": {HOST: name, ZONE: zone}},
            "spec": spec,
            "status": {"allocatable": amounts, "capacity": amounts, "declaredFeatures": list(features)},
        },
    )


def pod(name: str, namespace: str = "default", labels: Document | None = None, **spec: Any) -> Pod:
    document: Document = {
        "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels or {"app": "web", "v": "1"}},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i"}], **deepcopy(spec)},
    }
    merge_label_keys(document)
    return from_document(Pod, document)


def place(*earlier: Pod, **spec: Any) -> str:
    """Return the node of a Pod with this spec, on nodes a and b in one zone and the tainted c in another."""
    placer = Placer()
    for name, labels in (("default", {}), ("other", {"team": "x"})):
        metadata = {"name": name, "uid": name, "labels": labels}
        placer.informers.put_document(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    for item in (
        node("a", "east"),
        node("b", "east", "UserNamespacesHostNetworkSupport"),
        node("c", "west", taints=[TAINT]),
    ):
        placer.put(NODES, item)
    for other in earlier:
        placer.add(other)
    found = placer.place(pod("new", **spec))
    return "none" if isinstance(found, Diagnosis) else found.pod.spec.node_name or ""


def anti_affinity(**term: Any) -> Document:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOST, **ANY, **term}]}}}


def preferred(kind: str, **term: Any) -> Document:
    weighted = {"weight": 100, "podAffinityTerm": {"topologyKey": HOST, **ANY, **term}}
    return {"affinity": {kind: {PREFERRED: [weighted]}}}


def spread(key: str = ZONE, **fields: Any) -> Document:
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **ANY, **fields}
    return {"topologySpreadConstraints": [constraint]}


ON_A = pod("on-a", nodeName="a")
ON_B = pod("on-b", nodeName="b")
ELSEWHERE = pod("elsewhere", "other", nodeName="a")
LARGE = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "6"}}}
LARGE_ON_B = pod("large", labels={"app": "large"}, nodeName="b", containers=[LARGE])
OLD_ON_A = pod("old", labels={"app": "web", "v": "0"}, nodeName="a")
ON_A_AND_B = {
    "nodeAffinity": {
        REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["east"]}]}]}
    }
}


@pytest.mark.behaviour("SC-14")
@pytest.mark.parametrize(
    ("earlier", "without", "given", "nodes"),
    [
        pytest.param(
            [OLD_ON_A, ON_B], anti_affinity(), anti_affinity(matchLabelKeys=["v"]), ("none", "a"), id="matchLabelKeys"
        ),
        pytest.param(
            [ON_A, pod("old-b", labels={"app": "web", "v": "0"}, nodeName="b")],
            anti_affinity(),
            anti_affinity(mismatchLabelKeys=["v"]),
            ("none", "a"),
            id="mismatchLabelKeys",
        ),
        pytest.param(
            [ELSEWHERE, LARGE_ON_B],
            anti_affinity(),
            anti_affinity(namespaceSelector={"matchLabels": {"team": "x"}}),
            ("a", "b"),
            id="namespaceSelector",
        ),
        pytest.param(
            [ON_A],
            spread(nodeTaintsPolicy="Honor"),
            spread(nodeTaintsPolicy="Honor", minDomains=2),
            ("b", "none"),
            id="minDomains",
        ),
        pytest.param(
            [ON_A, ON_B],
            {**spread(), "affinity": ON_A_AND_B},
            {**spread(nodeAffinityPolicy="Ignore"), "affinity": ON_A_AND_B},
            ("a", "none"),
            id="nodeAffinityPolicy",
        ),
        pytest.param([ON_A, ON_B], spread(nodeTaintsPolicy="Honor"), spread(), ("a", "none"), id="nodeTaintsPolicy"),
        pytest.param([ON_B], {}, preferred("podAffinity"), ("a", "b"), id="preferred affinity"),
        pytest.param(
            [ON_B],
            preferred("podAffinity"),
            preferred("podAntiAffinity"),
            ("b", "a"),
            id="preferred anti-affinity",
        ),
        pytest.param(
            [], {"hostNetwork": True}, {"hostNetwork": True, "hostUsers": False}, ("a", "b"), id="declaredFeatures"
        ),
    ],
)
def test_a_field_changes_the_placement(
    earlier: list[Pod], without: Document, given: Document, nodes: tuple[str, str]
) -> None:
    assert (place(*earlier, **without), place(*earlier, **given)) == nodes
