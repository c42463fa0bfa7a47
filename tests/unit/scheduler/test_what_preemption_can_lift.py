"""The list of rejections in docs/scheduler.md, and whether preemption can help, against the answers of the filters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.document import Document
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.resources import (
    DEVICE_CLASSES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dray.framework.cycle_state import CycleState
from dray.framework.pod_info import PodInfo
from dray.framework.status import Code
from dray.scheduler.config import ProfileConfig
from dray.scheduler.diagnosis import Diagnosis
from dray.scheduler.profile import explain
from dray.sim.placer import Placer
from tests.unit.scheduler.test_fields_with_effect import REQUIRED, ZONE, anti_affinity, spread

PAGE = Path(__file__).parents[3] / "docs" / "scheduler.md"
# The tests of the plugin ClassicResources have the claims that drivers allocate.
IN_USE = "`resourceclaim in use`"
WEB: Document = {"labelSelector": {"matchLabels": {"app": "web"}}}
HOST = "kubernetes.io/hostname"


def documented() -> Iterator[tuple[str, str]]:
    """Yield the rejections of the page and what it says about them."""
    rows = PAGE.read_text().split("| rejection of a node | can preemption help? |\n|---|---|\n")[1]
    for line in rows.splitlines():
        if not line.startswith("| "):
            return
        reason, answer = line.strip("| ").split(" | ")
        yield reason, answer


def pod(name: str = "new", labels: Document | None = None, **spec: Any) -> Pod:
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels or {"app": "web"}},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i"}], **spec},
    }
    return from_document(Pod, document)


def container(**fields: Any) -> list[Document]:
    return [{"name": "c", "image": "i", **fields}]


def cpu(amount: str) -> list[Document]:
    return container(resources={"requests": {"cpu": amount}})


PORTS = container(ports=[{"containerPort": 80, "hostPort": 80}])
AFFINITY: Document = {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": HOST, **WEB}]}}}
SELECTOR: Document = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}
CLAIM: Document = {"resourceClaims": [{"name": "d", "resourceClaimName": "claim"}]}
ELSEWHERE: Document = {
    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}]
}
HERE: Document = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}
RESULT = {"request": "d", "driver": "d.example.com", "pool": "m", "device": "d"}
VOLUME: Document = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
ADDED: Document = {"NodeAffinity": {"addedAffinity": {REQUIRED: SELECTOR}}}

# By the text of the page: what is on the node, the node, the new Pod, and arguments of plugins.
CASES: dict[str, tuple[list[Pod], Document, Pod, dict[str, Any]]] = {
    "`Insufficient cpu`, or another resource of which the node has enough in total": (
        [pod("old", nodeName="n", containers=cpu("3"))],
        {},
        pod(containers=cpu("3")),
        {},
    ),
    "`Too many pods`": ([pod("old", nodeName="n"), pod("older", nodeName="n")], {}, pod(), {}),
    "`node(s) didn't have free ports for the requested pod ports`": (
        [pod("old", nodeName="n", containers=PORTS)],
        {},
        pod(containers=PORTS),
        {},
    ),
    "`node(s) didn't match pod anti-affinity rules`": ([pod("old", nodeName="n")], {}, pod(**anti_affinity()), {}),
    "`node(s) didn't satisfy existing pods anti-affinity rules`": (
        [pod("old", nodeName="n", **anti_affinity())],
        {},
        pod(),
        {},
    ),
    "`node(s) didn't match pod topology spread constraints`": (
        [pod("old", nodeName="n")],
        {},
        pod(**spread(minDomains=2)),
        {},
    ),
    "`cannot allocate all claims`, while Pods of a lower priority use devices of the node": (
        [],
        {},
        pod(priority=1, **CLAIM),
        {"claim": {}, "held": True},
    ),
    "`cannot allocate all claims`, in other cases": ([], {}, pod(**CLAIM), {"claim": {}}),
    "`Insufficient cpu`, or another resource of which the node does not have enough in total": (
        [],
        {},
        pod(containers=cpu("5")),
        {},
    ),
    "`node(s) didn't match the requested node name`": ([], {}, pod(nodeName="other"), {}),
    "`node(s) were unschedulable`": ([], {"unschedulable": True}, pod(), {}),
    "`node(s) had untolerated taint(s)`": ([], {"taints": [{"key": "k", "effect": "NoSchedule"}]}, pod(), {}),
    "`node(s) didn't match Pod's node affinity/selector`": ([], {}, pod(nodeSelector={"a": "b"}), {}),
    "`node(s) didn't match scheduler-enforced node affinity`": ([], {}, pod(), {"args": ADDED}),
    "`node(s) didn't match pod affinity rules`": ([], {}, pod(labels={"app": "other"}, **AFFINITY), {}),
    "`node(s) didn't match pod topology spread constraints (missing required label)`": (
        [],
        {},
        pod(**spread("rack")),
        {},
    ),
    "`node(s) didn't match PersistentVolume's node affinity`": ([], {}, pod(**VOLUME), {"volume": True}),
    "`node(s) didn't match Pod's required features`": ([], {}, pod(hostNetwork=True, hostUsers=False), {}),
    "`resourceclaim not available on the node`": (
        [],
        {},
        pod(**CLAIM),
        {"claim": {"allocation": {"devices": {"results": [RESULT]}, "nodeSelector": ELSEWHERE}}},
    ),
}


def claim_document(name: str, status: Document) -> ResourceClaim:
    requests = [{"name": "d", "exactly": {"deviceClassName": "d", "allocationMode": "ExactCount", "count": 1}}]
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": requests}},
        "status": status,
    }
    return from_document(ResourceClaim, document)


def rejection(earlier: list[Pod], spec: Document, wanted: Pod, given: dict[str, Any]) -> tuple[str, Code]:
    placer = Placer(ProfileConfig(args=given.get("args", {})))
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "2"}
    labels = {HOST: "n", ZONE: "z"}
    node = {
        "metadata": {"name": "n", "uid": "n", "labels": labels},
        "spec": spec,
        "status": {"allocatable": amounts, "capacity": amounts},
    }
    placer.put(NODES, from_document(Node, node))
    for other in earlier:
        placer.add(other)
    if "volume" in given:
        volume = {"local": {"path": "/d"}, "nodeAffinity": {"required": SELECTOR}}
        bound = {"volumeName": "pv", "accessModes": ["ReadWriteOnce"]}
        placer.informers.put_document(PERSISTENT_VOLUMES, {"metadata": {"name": "pv"}, "spec": volume})
        placer.informers.put_document(
            PERSISTENT_VOLUME_CLAIMS,
            {"metadata": {"name": "data", "namespace": "default"}, "spec": bound, "status": {"phase": "Bound"}},
        )
    claims = []
    if "claim" in given:
        placer.put(DEVICE_CLASSES, from_document(DeviceClass, {"metadata": {"name": "d"}, "spec": {}}))
        claims = [claim_document("claim", given["claim"])]
    if "held" in given:
        pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
        devices = {"driver": "d.example.com", "nodeName": "n", "pool": pool, "devices": [{"name": "d"}]}
        placer.put(RESOURCE_SLICES, from_document(ResourceSlice, {"metadata": {"name": "s"}, "spec": devices}))
        results = {"devices": {"results": [RESULT | {"pool": "n"}]}, "nodeSelector": HERE}
        users = [{"resource": "pods", "name": "old", "uid": "old"}]
        held = claim_document("held", {"allocation": results, "reservedFor": users})
        entry = {"name": "d", "resourceClaimName": "held"}
        placer.add(pod("old", nodeName="n", priority=0, resourceClaims=[entry]), [held])
    for claim in claims:
        placer.put(RESOURCE_CLAIMS, claim)
    placer.put(PODS, wanted)
    state = CycleState(PodInfo(wanted))
    placer.update_snapshot()
    found = placer._cycle.place(placer.profile, state)
    assert isinstance(found, Diagnosis)
    status = explain(placer.profile, state, found).statuses["n"]
    return status.reasons[0], status.code


@pytest.mark.behaviour("SC-21", "PE-15")
@pytest.mark.parametrize(("text", "answer"), [item for item in documented() if IN_USE not in item[0]])
def test_the_page_says_what_filters_answer(text: str, answer: str) -> None:
    reason, code = rejection(*CASES[text])
    assert reason.startswith(text.split("`")[1])
    assert (answer == "yes") == (code is Code.UNSCHEDULABLE)


@pytest.mark.behaviour("SC-21")
def test_the_page_says_the_rest() -> None:
    section = PAGE.read_text().split("## Preemption")[1].split("## Gangs")[0]
    assert len(list(documented())) == len(CASES) + 1
    for text in (
        "own grace period",
        "deallocates the claim",
        "only if there is no alternative",
        "always enforces",
        "429",
    ):
        assert text in section
