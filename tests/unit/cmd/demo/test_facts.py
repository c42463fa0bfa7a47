"""The facts that the demo derives from manifests, objects and explanations."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.api.document import Document
from dray.cmd.demo import facts
from dray.cmd.demo.cluster import read_manifest
from dray.cmd.demo.cluster_state import ClusterState, is_complete, is_running, is_unschedulable, node_rows
from dray.cmd.demo.facts import ContainerDevices, request_facts
from dray.cmd.demo.scenario import CLASSES, NODES, RESOURCE, STEPS, DemoNode
from dray.cmd.demo.screen import Card
from dray.sim.explain.answers import Answer, Change, Given, NodeAnswer, Size, Standing

MANIFESTS = Path(__file__).parents[4] / "examples" / "demo"
DRA_NODE, PLUGIN_NODE = DemoNode("a", "H100", 1), DemoNode("p")


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ("2-template.yaml", 'pod notebook: 1 gpu.example.com where model == "H100" && profile == "2g"'),
        (
            "3-alternatives.yaml",
            'pod trainer: 1 full-gpu.example.com where model == "H100", else 1 full-gpu.example.com where '
            'model == "A100"',
        ),
        ("4-device-plugin.yaml", "pod veteran: example.com/gpu: 1"),
        ("5-extended-resource.yaml", "deployment renderer, 3 Pods, each: example.com/gpu: 1"),
        ("6-classic.yaml", "pod analyst: 1 acme-gpu with memory 2Gi"),
        ("7-latecomer.yaml", "pod latecomer: 1 full-gpu.example.com"),
        ("8-urgent.yaml", "pod urgent: 1 full-gpu.example.com"),
    ],
)
def test_requests_of_a_manifest(manifest: str, text: str) -> None:
    assert [fact.text for fact in request_facts(read_manifest(MANIFESTS / manifest))] == [text]


def test_every_manifest_is_part_of_a_step() -> None:
    used = {CLASSES, *(step.manifest for step in STEPS if step.manifest)}
    assert used == {path.name for path in MANIFESTS.iterdir()}
    for step in STEPS:
        assert set(step.pod_resources) <= {node.name for node in NODES}


def node(name: str, gpus: str = "", ready: str = "True") -> Document:
    allocatable = {RESOURCE: gpus} if gpus else {}
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable, "conditions": conditions}}


def slices(node_name: str) -> list[Document]:
    spec = {"driver": "gpu.example.com", "nodeName": node_name, "pool": {"name": node_name, "resourceSliceCount": 2}}
    shares = {"gpu-0": "7", "gpu-0-2g-0": "2"}
    devices = [
        {"name": name, "consumesCounters": [{"counterSet": "gpu-0", "counters": {"slices": {"value": share}}}]}
        for name, share in shares.items()
    ]
    counters = [{"name": "gpu-0", "counters": {"slices": {"value": "7"}}}]
    return [
        {"metadata": {"name": "1"}, "spec": {**spec, "sharedCounters": counters}},
        {"metadata": {"name": "2"}, "spec": {**spec, "devices": devices}},
    ]


def claim(name: str, device: str, request: str = "gpu", pool: str = "a") -> Document:
    result = {"driver": "gpu.example.com", "pool": pool, "device": device, "request": request}
    return {"metadata": {"name": name}, "status": {"allocation": {"devices": {"results": [result]}}}}


def pod(name: str, node_name: str = "", limits: dict[str, str] | None = None, **status: object) -> Document:
    spec: Document = {"containers": [{"name": "main", "resources": {"limits": limits or {}}}]}
    if node_name:
        spec["nodeName"] = node_name
    return {"metadata": {"name": name, "labels": {"story": "s"}}, "spec": spec, "status": status}


def test_cards_show_their_usage() -> None:
    state = ClusterState(
        [node("a"), node("p", "2")], [pod("x", "p", {RESOURCE: "1"})], [claim("c", "gpu-0-2g-0")], slices("a")
    )
    rows = node_rows(state, (DRA_NODE, PLUGIN_NODE))
    assert rows[0].cards == (Card("H100", 2, 7),)
    assert rows[1].cards == (Card("gpu", 1, 1), Card("gpu", 0, 1))
    assert rows[1].pods == ("x",)
    assert is_complete(state, (DRA_NODE, PLUGIN_NODE))


@pytest.mark.parametrize(
    "state",
    [
        ClusterState(),
        ClusterState([node("a"), node("p")], slices=slices("a")),
        ClusterState([node("a"), node("p", "2")], slices=slices("a")[1:]),
        ClusterState([node("a", ready="Unknown"), node("p", "2")], slices=slices("a")),
    ],
    ids=["nothing", "no plugin", "half a pool", "not ready"],
)
def test_an_incomplete_cluster(state: ClusterState) -> None:
    assert not is_complete(state, (DRA_NODE, PLUGIN_NODE))


def test_progress_of_a_pod() -> None:
    running: Document = {"containerStatuses": [{"state": {"running": {}}}]}
    waiting = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    for status, expected in (({}, (False, False)), (running, (True, False)), (waiting, (False, True))):
        item = pod("x", **status)
        assert (is_running(item), is_unschedulable(item)) == expected


def test_allocations_of_a_pod() -> None:
    chosen = pod("x", "a")
    chosen["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    extended = pod("y", "a", extendedResourceClaimStatus={"resourceClaimName": "made"})
    plugged = pod("z", "p")
    state = ClusterState(claims=[claim("c", "gpu-1", "gpu/small"), claim("made", "gpu-2")])
    devices = [ContainerDevices("z", "main", {RESOURCE: ("null",)}, {})]
    assert [
        fact.text for item in (chosen, extended, plugged) for fact in facts.allocation_facts(item, state, devices)
    ] == [
        "x has gpu-1 of a as alternative small of request gpu, by claim c",
        "y has gpu-2 of a, by a claim created by the scheduler",
        "z has null of p, by the node's device plugin",
    ]


def test_negotiation() -> None:
    scheduler = {"potentialNodes": ["b", "a"]}
    driver = {"unsuitableNodes": ["b"]}
    terms = [{"matchFields": [{"values": ["a"]}]}]
    states: list[Document] = [
        {"status": {"scheduling": {"scheduler": scheduler}}},
        {"status": {"scheduling": {"scheduler": {**scheduler, "selectedNode": "a"}, "driver": driver}}},
        {"status": {"scheduling": {"driver": {"availableOnNodes": {"nodeSelectorTerms": terms}}}}},
    ]
    assert [fact.text for fact in facts.negotiation_facts(states)] == [
        "the scheduler proposes a, b",
        "the driver reports b as unsuitable",
        "the scheduler selects a",
        "the driver allocates, for use on a",
    ]
    assert not facts.is_negotiated(states)
    assert facts.is_negotiated([{"status": {"attributes": {"card": "0"}}}])


def test_explanation() -> None:
    answer = Answer(
        "pod",
        "default",
        "x",
        Standing.PLACED,
        node="a",
        nodes=(
            NodeAnswer("a", fits=True, rejections={}, would_get=("gpu: gpu-0",)),
            NodeAnswer("b", fits=False, rejections={"DynamicResources": ()}, devices='request "gpu": no devices'),
        ),
        given=(Given("default/c", "gpu/small", "d/a/gpu-0", ('request "gpu/big": 1 devices: 1 in use',)),),
        changes=(Change("lower the count", ("a", "b"), Size.LOWER_REQUEST),),
        holders=("a has 0 of 1: claim default/c holds gpu-0",),
    )
    assert [fact.text for fact in facts.node_facts(answer)] == ["a: yes, fits: gpu: gpu-0", "b: no, gpu: no devices"]
    assert [fact.text for fact in facts.alternative_facts(answer)] == [
        "not available on a: gpu/big: 1 devices: 1 in use"
    ]
    assert [fact.text for fact in facts.suggestion_facts(answer)] == [
        "lower the count: fits on a, b",
        answer.holders[0],
    ]
