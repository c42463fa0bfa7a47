"""What was probably meant by selectors, constraints and names that match nothing, and who holds what is missing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.cli.explain import lines
from dray.sim.explain.answers import Answer
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import pod_subject
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import (
    GPU,
    NIC,
    claim,
    device,
    device_class,
    exactly,
    node,
    pod,
    resource_slice,
    template,
    waiting_pod,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MODEL = f'device.attributes["{GPU}"].model'
MEMORY = f'device.capacity["{GPU}"].memory'
# Two classes of one driver, by model, and one of another driver without models.
CLUSTER = [
    node("node-a"),
    device_class("gpu", f'device.driver == "{GPU}" && {MODEL} == "a100"'),
    device_class("large", f'device.driver == "{GPU}" && {MODEL} == "h100"'),
    device_class("nic", f'device.driver == "{NIC}"'),
    resource_slice(
        "node-a",
        GPU,
        device("gpu-0"),
        device("gpu-1"),
        device("gpu-2", attributes={"model": {"string": "h100"}}, capacity={"memory": {"value": "80Gi"}}),
        nodeName="node-a",
    ),
    resource_slice("nics", NIC, device("nic-0", attributes={"speed": {"int": 400}}, capacity={}), nodeName="node-a"),
]


def answer(*documents: Document, waiting: Document | None = None) -> Answer:
    """The answer on the Pod `train`, which uses the template `one` unless another is given."""
    pending = waiting or waiting_pod("train", "one")
    snapshot = Snapshot.of([*CLUSTER, *documents, pending])
    return explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, gates=FeatureGates())


def sentence(*documents: Document, waiting: Document | None = None) -> str:
    found = answer(*documents, waiting=waiting).verdict
    assert found is not None
    return found.sentence


def request(device_class_name: str, *expressions: str, name: str = "gpu") -> Document:
    asked = exactly(1, *expressions, name=name)
    asked["exactly"]["deviceClassName"] = device_class_name
    return asked


@pytest.mark.parametrize(
    ("expression", "expected"),
    {
        "a value": (
            f'{MODEL} == "a1OO"',
            "is pending: model `a1OO` matches nothing; 2 devices have `a100`; "
            "write a100 instead of a1OO (fits on node-a)",
        ),
        "an attribute": (
            f'{MODEL.replace("model", "modl")} == "a100"',
            f"is pending: no device has {GPU}/modl (did you mean {GPU}/model?); "
            f"write {GPU}/model instead of {GPU}/modl (fits on node-a)",
        ),
        "a domain": (
            'device.attributes["gpu.exmaple.com"].model == "a100"',
            f"is pending: no device has gpu.exmaple.com/model (did you mean {GPU}/model?); "
            f"write {GPU}/model instead of gpu.exmaple.com/model (fits on node-a)",
        ),
        "a driver": (
            'device.driver == "gpu.exmaple.com"',
            f"is pending: driver `gpu.exmaple.com` matches nothing; 2 devices have `{GPU}`; "
            f"write {GPU} instead of gpu.exmaple.com (fits on node-a)",
        ),
        "an amount": (
            f'{MEMORY}.compareTo(quantity("100Gi")) >= 0',
            "is pending: no device of class gpu has 100Gi of memory; the most is 40Gi, of 2 devices; "
            "ask for 40Gi of memory instead of 100Gi (fits on node-a)",
        ),
        "a model of another class": (
            f'{MODEL} == "h100"',
            "is pending: no device of class gpu matches the selectors of request gpu; 1 device of class large does; "
            "use class large instead of gpu in request gpu (fits on node-a)",
        ),
    }.values(),
)
def test_a_selector_that_matches_nothing(expression: str, expected: str) -> None:
    assert sentence(template("one", request("gpu", expression))) == expected


def test_an_amount_that_another_class_has_is_two_suggestions() -> None:
    found = answer(template("one", request("gpu", f'{MEMORY}.isGreaterThan(quantity("79Gi"))')))
    assert [change.text for change in found.changes] == ["use class large instead of gpu in request gpu"]
    found = answer(template("one", request("gpu", f'{MEMORY}.compareTo(quantity("60Gi")) >= 0')))
    assert [change.text for change in found.changes] == [
        "ask for 40Gi of memory instead of 60Gi",
        "use class large instead of gpu in request gpu",
    ]


def test_a_constraint_on_an_attribute_that_one_class_lacks() -> None:
    same = {"requests": ["gpu", "nic"], "matchAttribute": f"{GPU}/model"}
    both = template("one", request("gpu"), request("nic", name="nic"), constraints=[same])
    assert sentence(both) == (
        f"is pending: no device of class nic has {GPU}/model, which a constraint needs; "
        f"drop the constraint on attribute {GPU}/model (fits on node-a)"
    )


def plain_pod(**spec: Any) -> Document:
    waiting = pod("train")
    waiting["spec"] |= spec
    return waiting


def test_a_misspelt_label_is_corrected_and_tested() -> None:
    assert sentence(waiting=plain_pod(nodeSelector={"kubernetes.io/hostnam": "node-a"})) == (
        'is pending: no node has the label "kubernetes.io/hostnam" of the node selector '
        '(did you mean "kubernetes.io/hostname"?); '
        "write kubernetes.io/hostname instead of kubernetes.io/hostnam (fits on node-a)"
    )
    assert sentence(waiting=plain_pod(nodeSelector={"rack": "r1"})) == (
        'is pending: no node has the label "rack" of the node selector; '
        "drop rack from the node selector (fits on node-a)"
    )


@pytest.mark.behaviour("TT-07")
def test_no_advice_relabels_a_node() -> None:
    zoned = node("node-b")
    zoned["metadata"]["labels"]["zone"] = "a"
    waiting = plain_pod(nodeSelector={"zone": "somewhere"})
    assert sentence(zoned, waiting=waiting).endswith("; drop zone from the node selector (fits on node-a and 1 more)")


@pytest.mark.behaviour("TT-07")
def test_a_full_node_that_the_pod_names() -> None:
    """A node that is added has another name, and would not help; a free device is elsewhere."""
    taken = [claim(f"c-{index}", f"{GPU}/node-a/gpu-{index}", pods=(f"p-{index}",)) for index in range(2)]
    other = [node("node-b"), resource_slice("node-b", GPU, device("gpu-0"), nodeName="node-b")]
    users = [pod(f"p-{index}", "node-a") for index in range(2)]
    waiting = waiting_pod("train", "one", nodeSelector={"kubernetes.io/hostname": "node-a"})
    found = answer(template("one", exactly(1)), *taken, *other, *users, waiting=waiting)
    assert not [change for change in found.changes if change.text.startswith("add a node")]
    assert "drop kubernetes.io/hostname from the node selector" in {change.text for change in found.changes}


@pytest.mark.behaviour("TT-07")
def test_a_misspelt_toleration() -> None:
    tainted = node("node-b", taints=[{"key": "dedicated", "value": "x", "effect": "NoSchedule"}])
    waiting = plain_pod(
        nodeSelector={"kubernetes.io/hostname": "node-b"}, tolerations=[{"key": "dedicatd", "operator": "Exists"}]
    )
    assert sentence(tainted, waiting=waiting) == (
        'is pending: no node has a taint "dedicatd", which the Pod tolerates (did you mean "dedicated"?); '
        "write dedicated instead of dedicatd (fits on node-b)"
    )


@pytest.mark.behaviour("TT-07")
def test_tolerations_that_every_pod_has_are_no_typo() -> None:
    taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    tolerations = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
    waiting = plain_pod(nodeSelector={"kubernetes.io/hostname": "node-b"}, tolerations=tolerations)
    text = sentence(node("node-b", unschedulable=True, taints=taints), waiting=waiting)
    assert text == "is pending, 0 of 2 nodes fit: node-b: cordoned; 1 more for other reasons; uncordon node-b"


@pytest.mark.behaviour("TT-07")
@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("wbe", '(did you mean "web"?); write web instead of wbe (fits on node-a)'),
        ("absent", "affinity; create the Pods that it is to be near, or correct the pod affinity"),
    ],
)
def test_an_affinity_to_pods_that_do_not_exist(wanted: str, said: str) -> None:
    near = pod("web", "node-a")
    near["metadata"]["labels"] = {"app": "web"}
    term = {"labelSelector": {"matchLabels": {"app": wanted}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    text = sentence(near, waiting=plain_pod(affinity=affinity))
    assert text.startswith(f'is pending: no Pod has the label app="{wanted}" of the pod affinity')
    assert text.endswith(said)


@pytest.mark.behaviour("TT-07")
def test_devices_of_other_classes_in_incomplete_pools_do_not_count() -> None:
    nics = resource_slice("more", NIC, device("nic-1", attributes={}, capacity={}), count=2, nodeName="node-a")
    gpus = resource_slice("gpus", GPU, device("gpu-9"), count=2, nodeName="node-a")
    taken = [claim(f"c-{index}", f"{GPU}/node-a/gpu-{index}", pods=(f"p-{index}",)) for index in range(2)]
    users = [pod(f"p-{index}", "node-a") for index in range(2)]
    found = answer(template("one", exactly(1)), nics, gpus, *taken, *users)
    assert found.groups[0].text == "of 3 devices 2 in use, 1 in incomplete pools"


@pytest.mark.behaviour("TT-07")
def test_a_mistake_in_a_class_names_the_class() -> None:
    broken = device_class("broken", f'{MODEL.replace("model", "modle")} == "a100"')
    wanted = exactly(1)
    wanted["exactly"]["deviceClassName"] = "broken"
    text = sentence(broken, template("one", wanted))
    assert text.startswith(f"is pending: DeviceClass broken: no device has {GPU}/modle")


def test_a_resource_that_nothing_provides() -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": {"example.com/gpus": "1"}}}
    asking = plain_pod(containers=[container | {"resources": {"requests": {"example.com/gpus": "1"}}}])
    assert sentence(waiting=asking) == (
        'is pending: no node and no DeviceClass provides resource "example.com/gpus"; '
        "install the device plugin for it, or set extendedResourceName example.com/gpus in a DeviceClass"
    )


def test_holders_are_named_once_with_all_of_their_devices() -> None:
    holder = claim("old", f"{GPU}/node-a/gpu-0", f"{GPU}/node-a/gpu-1", pods=("p",))
    found = answer(template("one", request("gpu")), holder, pod("p", "node-a"))
    assert found.holders == ("node-a has 0 of 1: claim team/old (Pod p, for 1d) holds gpu-0, gpu-1",)


def test_holders_are_named_once_for_all_alternatives() -> None:
    holder = claim("old", f"{GPU}/node-a/gpu-0", f"{GPU}/node-a/gpu-1", pods=("p",))
    alternatives = [{"name": name, **request("gpu")["exactly"]} for name in ("first", "second")]
    found = answer(template("one", {"name": "gpu", "firstAvailable": alternatives}), holder, pod("p", "node-a"))
    assert found.holders == ("node-a has 0 of 1: claim team/old (Pod p, for 1d) holds gpu-0, gpu-1",)


def test_holders_of_counters_are_named() -> None:
    def part(name: str, amount: str) -> Document:
        return device(name, consumesCounters=[{"counterSet": "card", "counters": {"memory": {"value": amount}}}])

    pool = {"name": "parts", "generation": 1, "resourceSliceCount": 2}
    counters = resource_slice("parts-0", "part.example.com", nodeName="node-a")
    counters["spec"] |= {"pool": pool, "sharedCounters": [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]}
    del counters["spec"]["devices"]
    devices = resource_slice(
        "parts-1", "part.example.com", part("whole", "80Gi"), part("half", "40Gi"), nodeName="node-a"
    )
    devices["spec"]["pool"] = pool
    holder = claim("old", "part.example.com/parts/whole", pods=("p",))
    found = answer(
        device_class("part", 'device.driver == "part.example.com"'),
        counters,
        devices,
        template("one", request("part")),
        holder,
        pod("p", "node-a"),
    )
    assert found.holders == ("node-a has 0 of 1: claim team/old (Pod p, for 1d) holds whole",)


def test_the_verdict_names_the_nodes_that_the_advice_is_about() -> None:
    """The nearest node has its devices in use; what helps is to uncordon another."""
    other = node("node-b", unschedulable=True)
    slices = resource_slice("node-b", GPU, device("gpu-0"), nodeName="node-b")
    holder = claim("old", f"{GPU}/node-a/gpu-0", f"{GPU}/node-a/gpu-1", pods=("p",))
    assert sentence(other, slices, holder, pod("p", "node-a"), template("one", request("gpu"))) == (
        "is pending, 0 of 2 nodes fit: node-a: all 2 devices are in use; node-b: cordoned; uncordon node-b"
    )


def test_devices_that_do_not_match_are_not_counted_beside_those_that_do() -> None:
    taken = claim("old", f"{GPU}/node-a/gpu-2", pods=("p",))
    any_gpu = device_class("any", f'device.driver == "{GPU}"')
    wanted = request("any", f'{MODEL} == "h100"')
    found = answer(any_gpu, template("one", wanted), taken, pod("p", "node-a"))
    assert found.groups[0].text == "its only matching device is in use"


def test_an_answer_about_300_nodes_is_short() -> None:
    """Every kind of reason, on 300 nodes: the text stays below 25 lines."""
    documents: list[Document] = [template("one", request("gpu"))]
    for number in range(300):
        name = f"node-{number}"
        taints = [{"key": "maintenance", "effect": "NoSchedule"}] if number % 3 == 0 else []
        documents.append(node(name, taints=taints, unschedulable=number % 5 == 0))
        documents.append(resource_slice(name, GPU, device("gpu-0"), nodeName=name))
        documents.append(claim(f"c-{number}", f"{GPU}/{name}/gpu-0", pods=(f"p-{number}",)))
        documents.append(pod(f"p-{number}", name))
    documents.append(claim("c", f"{GPU}/node-a/gpu-0", f"{GPU}/node-a/gpu-1", pods=("p",)))
    documents.append(pod("p", "node-a"))
    text = list(lines(answer(*documents)))
    assert len(text) < 25, text
    assert text[0].startswith("pod team/train is pending, 0 of 301 nodes fit: ")
