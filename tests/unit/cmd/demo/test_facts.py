"""What the demo says about manifests, objects and answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.api.document import Document
from dray.cmd.demo import found
from dray.cmd.demo.asked import asked
from dray.cmd.demo.board import Look, board, is_complete, is_running, is_waiting
from dray.cmd.demo.cluster import read_manifest
from dray.cmd.demo.found import ContainerDevices
from dray.cmd.demo.scene import Card
from dray.cmd.demo.story import CLASSES, NODES, RESOURCE, STEPS, DemoNode
from dray.sim.explain.answers import Answer, Change, Given, NodeAnswer, Standing

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
    ],
)
def test_who_asks_for_what(manifest: str, text: str) -> None:
    assert [fact.text for fact in asked(read_manifest(MANIFESTS / manifest))] == [text]


def test_every_manifest_is_part_of_the_story() -> None:
    told = {CLASSES, *(step.manifest for step in STEPS if step.manifest)}
    assert told == {path.name for path in MANIFESTS.iterdir()}
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


def test_cards_are_as_full_as_what_is_held_of_them() -> None:
    look = Look([node("a"), node("p", "2")], [pod("x", "p", {RESOURCE: "1"})], [claim("c", "gpu-0-2g-0")], slices("a"))
    rows = board(look, (DRA_NODE, PLUGIN_NODE))
    assert rows[0].cards == (Card("H100", 2, 7),)
    assert rows[1].cards == (Card("gpu", 1, 1), Card("gpu", 0, 1))
    assert rows[1].pods == ("x",)
    assert is_complete(look, (DRA_NODE, PLUGIN_NODE))


@pytest.mark.parametrize(
    "look",
    [
        Look(),
        Look([node("a"), node("p")], slices=slices("a")),
        Look([node("a"), node("p", "2")], slices=slices("a")[1:]),
        Look([node("a", ready="Unknown"), node("p", "2")], slices=slices("a")),
    ],
    ids=["nothing", "no plugin", "half a pool", "not ready"],
)
def test_what_is_missing_is_noticed(look: Look) -> None:
    assert not is_complete(look, (DRA_NODE, PLUGIN_NODE))


def test_how_far_a_pod_is() -> None:
    running = {"containerStatuses": [{"state": {"running": {}}}]}
    waiting = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    for status, expected in (({}, (False, False)), (running, (True, False)), (waiting, (False, True))):
        item = pod("x", **status)
        assert (is_running(item), is_waiting(item)) == expected


def test_what_a_pod_was_given() -> None:
    chosen = pod("x", "a")
    chosen["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    special = pod("y", "a", extendedResourceClaimStatus={"resourceClaimName": "made"})
    plugged = pod("z", "p")
    look = Look(claims=[claim("c", "gpu-1", "gpu/small"), claim("made", "gpu-2")])
    devices = [ContainerDevices("z", "main", {RESOURCE: ("null",)}, {})]
    assert [fact.text for item in (chosen, special, plugged) for fact in found.given(item, look, devices)] == [
        "x has gpu-1 of a as alternative small of request gpu, by claim c",
        "y has gpu-2 of a, by a claim that the scheduler made for it",
        "z has null of p, by the node's device plugin",
    ]


def test_what_was_negotiated() -> None:
    scheduler = {"potentialNodes": ["b", "a"]}
    driver = {"unsuitableNodes": ["b"]}
    terms = [{"matchFields": [{"values": ["a"]}]}]
    states: list[Document] = [
        {"status": {"scheduling": {"scheduler": scheduler}}},
        {"status": {"scheduling": {"scheduler": {**scheduler, "selectedNode": "a"}, "driver": driver}}},
        {"status": {"scheduling": {"driver": {"availableOnNodes": {"nodeSelectorTerms": terms}}}}},
    ]
    assert [fact.text for fact in found.negotiation(states)] == [
        "the scheduler proposes a, b",
        "the driver finds b unsuitable",
        "the scheduler selects a",
        "the driver allocates, for use on a",
    ]
    assert not found.is_negotiated(states)
    assert found.is_negotiated([{"status": {"attributes": {"card": "0"}}}])


def test_what_nodes_said_and_what_would_help() -> None:
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
        changes=(Change("lower the count", ("a", "b")),),
        holders=("a has 0 of 1: claim default/c holds gpu-0",),
    )
    assert [fact.text for fact in found.tried(answer)] == ["a: yes, fits: gpu: gpu-0", "b: no, gpu: no devices"]
    assert [fact.text for fact in found.passed_over(answer)] == ["a had no gpu/big: 1 devices: 1 in use"]
    assert [fact.text for fact in found.advice(answer)] == ["lower the count: fits on a, b", answer.holders[0]]
