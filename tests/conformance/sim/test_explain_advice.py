"""What `dray explain` advises: corrected names, the smallest change that works, the victims of a higher priority."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.cli.explain import lines
from dray.sim.explain.answers import Answer, Size
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import pod_subject
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import (
    GPU,
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
H100 = f'device.attributes["{GPU}"].model == "H100"'
LINES_MAX = 25


def gpu(name: str, model: str = "H100", **attributes: str) -> Document:
    given = {"model": model, **attributes}
    return device(name, attributes={key: {"string": value} for key, value in given.items()})


def machine(name: str, *devices: Document, **spec: Any) -> list[Document]:
    return [node(name, **spec), resource_slice(name, GPU, *devices, nodeName=name)]


def holder(name: str, on: str, priority: int = 0, **labels: str) -> list[Document]:
    """A Pod with a claim for the device `NODE/DEVICE`."""
    user = pod(name, on.partition("/")[0])
    user["metadata"]["labels"] = labels
    user["spec"] |= {"priority": priority, "resourceClaims": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]}
    return [user, claim(f"{name}-gpu", f"{GPU}/{on}", pods=(name,))]


def asked(*documents: Document) -> Answer:
    snapshot = Snapshot.of([device_class("gpu", f'device.driver == "{GPU}"'), *documents])
    subject = pod_subject(snapshot, NamespacedName("team", "train"))
    return explain(snapshot, subject, NOW, gates=FeatureGates())


def advice(answer: Answer) -> list[tuple[str, tuple[str, ...]]]:
    return [(change.text, change.nodes) for change in answer.changes]


# --- Names. ---


def test_a_misspelt_value() -> None:
    answer = asked(
        *machine("a", gpu("gpu-0")), template("t", exactly(1, H100.replace("H100", "H1OO"))), waiting_pod("train", "t")
    )
    assert answer.sentence == (
        "pod team/train is pending: model `H1OO` matches nothing; 1 device has `H100`; "
        "write H100 instead of H1OO (fits on a)"
    )
    assert answer.changes[0].size is Size.CORRECT_NAME


def test_an_attribute_of_another_domain() -> None:
    answer = asked(
        *machine("a", gpu("gpu-0")),
        template("t", exactly(1, H100.replace(GPU, "gpu.exmaple.com"))),
        waiting_pod("train", "t"),
    )
    assert answer.sentence == (
        "pod team/train is pending: no device has gpu.exmaple.com/model (did you mean gpu.example.com/model?); "
        "write gpu.example.com/model instead of gpu.exmaple.com/model (fits on a)"
    )


def test_a_constraint_on_an_attribute_that_no_device_has() -> None:
    constraint = {"matchAttribute": f"{GPU}/numa_node"}
    answer = asked(
        *machine("a", gpu("gpu-0", numaNode="0"), gpu("gpu-1", numaNode="0")),
        template("t", exactly(2), constraints=[constraint]),
        waiting_pod("train", "t"),
    )
    assert answer.sentence == (
        "pod team/train is pending: no device has gpu.example.com/numa_node, which a constraint needs "
        "(did you mean gpu.example.com/numaNode?); "
        "write gpu.example.com/numaNode instead of gpu.example.com/numa_node in the constraint (fits on a)"
    )


def test_a_resource_that_nobody_provides() -> None:
    served = device_class("card", f'device.driver == "{GPU}"')
    served["spec"]["extendedResourceName"] = "example.com/gpu"
    asks = pod("train")
    asks["spec"]["containers"][0]["resources"] = {"requests": {"example.com/gpus": "1"}}
    assert asked(*machine("a", gpu("gpu-0")), served, asks).sentence == (
        'pod team/train is pending: no node and no DeviceClass provides resource "example.com/gpus" '
        '(did you mean "example.com/gpu"?); write example.com/gpu instead of example.com/gpus (fits on a)'
    )


def test_a_label_that_no_node_has() -> None:
    asks = pod("train")
    asks["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    assert asked(*machine("node1"), asks).sentence == (
        'pod team/train is pending: no node has the label kubernetes.io/hostname="node-1" of the node selector '
        '(did you mean "node1"?); write node1 instead of node-1 (fits on node1)'
    )


def test_a_template_of_which_no_claim_can_be_created() -> None:
    wrong = template("t", exactly(1), constraints=[{"matchAttribute": f"{GPU}/numa-node"}])
    sentence = asked(*machine("a", gpu("gpu-0")), wrong, waiting_pod("train", "t")).sentence
    assert sentence.startswith("pod team/train is pending: its claim cannot be created: ")
    assert 'spec.devices.constraints[0].matchAttribute: Invalid value: "numa-node"' in sentence


# --- The smallest change. ---


def test_claims_to_free_are_as_few_as_possible() -> None:
    held = [*holder("x", "a/gpu-0"), *holder("y", "a/gpu-1"), *holder("z", "a/gpu-2")]
    answer = asked(
        *machine("a", gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2"), gpu("gpu-3")),
        *held,
        template("t", exactly(2)),
        waiting_pod("train", "t"),
    )
    assert answer.sentence == (
        "pod team/train is pending, 0 of 1 nodes fit: a: of 4 devices 3 in use, 1 usable but 2 needed on one node; "
        "free claim team/z-gpu (Pod z, for 1d) (fits on a)"
    )


@pytest.mark.behaviour("TT-08")
def test_nothing_is_taken_from_more_important_pods() -> None:
    held = [*holder("x", "a/gpu-0"), *holder("y", "a/gpu-1"), *holder("z", "a/gpu-2")]
    priorities = {"x": 5, "y": 20, "z": 10}
    for item in held:
        if item["kind"] == "Pod":
            item["spec"]["priority"] = priorities[item["metadata"]["name"]]
    given = [*machine("a", gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2")), *held, template("t", exactly(1))]
    texts = [text for text, _ in advice(asked(*given, waiting_pod("train", "t", priority=10)))]
    assert texts[0] == "free claim team/x-gpu (Pod x, for 1d)"
    texts = [text for text, _ in advice(asked(*given, waiting_pod("train", "t", priority=0)))]
    assert not [text for text in texts if text.startswith("free")]


def test_a_lower_count_is_smaller_than_many_claims() -> None:
    names = [f"gpu-{number}" for number in range(6)]
    held = [item for number, name in enumerate(names[:4]) for item in holder(f"h{number}", f"a/{name}")]
    answer = asked(*machine("a", *map(gpu, names)), *held, template("t", exactly(6)), waiting_pod("train", "t"))
    texts = [text for text, _ in advice(answer)]
    assert texts[0] == "lower the count of request gpu to 2"
    assert texts[1].startswith("free claim team/h")
    assert texts[1].endswith(" and 1 more")


def test_another_model_is_an_alternative_not_a_dropped_selector() -> None:
    answer = asked(
        *machine("a", gpu("gpu-0")),
        *machine("b", gpu("gpu-0", "A100")),
        *holder("x", "a/gpu-0"),
        template("t", exactly(1, H100)),
        waiting_pod("train", "t"),
    )
    assert advice(answer) == [
        ("free claim team/x-gpu (Pod x, for 1d)", ("a",)),
        ("add an alternative with model A100 to request gpu", ("b",)),
        ("add a node like a", ("the new node",)),
    ]


def test_a_taint_of_a_node() -> None:
    taint = {"key": "maintenance", "value": "disk", "effect": "NoSchedule"}
    answer = asked(*machine("a", gpu("gpu-0"), taints=[taint]), template("t", exactly(1)), waiting_pod("train", "t"))
    assert answer.sentence == (
        "pod team/train is pending, 0 of 1 nodes fit: a: taint maintenance=disk:NoSchedule is not tolerated; "
        "remove the taint maintenance=disk:NoSchedule of a, or tolerate it"
    )


def test_counters_that_are_used_up_are_in_human_units() -> None:
    def part(name: str, memory: str) -> Document:
        consumed = [{"counterSet": "card", "counters": {"memory": {"value": memory}}}]
        return device(name, consumesCounters=consumed)

    shared = resource_slice("counters", GPU, count=2, nodeName="a")
    shared["spec"] |= {
        "pool": {"name": "a", "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}],
    }
    parts = resource_slice("a", GPU, part("half-0", "40Gi"), part("whole", "80Gi"), count=2, nodeName="a")
    whole = exactly(1, 'device.capacity["gpu.example.com"].memory.compareTo(quantity("1Gi")) > 0')
    answer = asked(node("a"), shared, parts, *holder("x", "a/half-0"), template("t", whole), waiting_pod("train", "t"))
    text = "\n".join(lines(answer))
    assert answer.sentence == (
        "pod team/train is pending, 0 of 1 nodes fit: a: of 2 devices 1 in use, 1 lack counter memory; "
        "free claim team/x-gpu (Pod x, for 1d) (fits on a)"
    ), text
    asking = (template("t", whole), waiting_pod("train", "t"))
    snapshot = Snapshot.of([device_class("gpu", "true"), node("a"), shared, parts, *holder("x", "a/half-0"), *asking])
    detailed = explain(
        snapshot, pod_subject(snapshot, NamespacedName("team", "train")), NOW, node="a", gates=FeatureGates()
    )
    assert "counter memory of counter set card: 80Gi needed, 40Gi left" in "\n".join(lines(detailed, "a"))


# --- Priority. ---


def priority_class(name: str, value: int) -> Document:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}


def busy(*more: Document) -> Answer:
    return asked(
        *machine("a", gpu("gpu-0")),
        *machine("b", gpu("gpu-0")),
        *holder("cheap", "b/gpu-0", 10, app="cheap"),
        *holder("dear", "a/gpu-0", 500),
        priority_class("low", 10),
        priority_class("urgent", 1000),
        priority_class("system-node-critical", 2000001000),
        template("t", exactly(1)),
        waiting_pod("train", "t"),
        *more,
    )


@pytest.mark.behaviour("PE-48")
def test_the_victims_of_a_higher_priority_are_named() -> None:
    victims = busy().victims
    assert victims is not None
    assert (victims.priority, victims.node, victims.pods) == (11, "b", ("team/cheap",))
    assert victims.priority_class == "urgent"
    assert "use priority class urgent (11 or more), which evicts Pod team/cheap on b" in "\n".join(lines(busy()))


def test_a_budget_that_would_be_violated_is_counted() -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "team"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "cheap"}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    }
    victims = busy(budget).victims
    assert victims is not None
    assert victims.violated_budgets == 1
    text = (
        "use priority class urgent (11 or more), which evicts Pod team/cheap on b, which its disruption budget does not"
    )
    assert f"{text} allow" in "\n".join(lines(busy(budget)))


@pytest.mark.behaviour("PE-13", "PE-48")
def test_a_pod_that_must_not_preempt_is_told_so() -> None:
    answer = asked(
        *machine("b", gpu("gpu-0")),
        *holder("cheap", "b/gpu-0", 10),
        priority_class("urgent", 1000),
        priority_class("polite", 2000) | {"preemptionPolicy": "Never"},
        template("t", exactly(1)),
        waiting_pod("train", "t", priority=2000, priorityClassName="polite", preemptionPolicy="Never"),
    )
    assert answer.victims is not None
    text = (
        "it evicts nobody (preemptionPolicy Never): use priority class urgent (11 or more), which evicts Pod team/cheap"
    )
    assert text in "\n".join(lines(answer))


def test_no_priority_helps_where_no_device_matches() -> None:
    answer = asked(
        *machine("a", gpu("gpu-0", "A100")),
        *holder("x", "a/gpu-0"),
        template("t", exactly(1, f'device.attributes["{GPU}"].model == "TPU"')),
        waiting_pod("train", "t"),
    )
    assert answer.victims is None


# --- Many nodes. ---


def test_three_hundred_nodes_are_few_lines() -> None:
    documents: list[Document] = []
    for number in range(300):
        name = f"node-{number:03}"
        model = "H100" if number < 88 else "A100"
        taints = [{"key": "maintenance", "effect": "NoSchedule"}] if number < 8 else []
        documents += machine(name, *(gpu(f"gpu-{n}", model) for n in range(2)), taints=taints)
        if 8 <= number < 88:
            documents += [*holder(f"x{number}", f"{name}/gpu-0"), *holder(f"y{number}", f"{name}/gpu-1")]
    answer = asked(*documents, template("t", exactly(1, H100)), waiting_pod("train", "t"))
    shown = list(lines(answer))
    assert len(shown) < LINES_MAX
    assert [(group.count, group.text) for group in answer.groups] == [
        (80, "all 160 devices are in use"),
        (8, "taint maintenance:NoSchedule is not tolerated"),
        (212, 'no device matches `model == "H100"`'),
    ]
    assert len(list(lines(answer, all_nodes=True))) > len(answer.nodes)


# --- Why this node. ---


def test_a_placed_pod_shows_the_scores_of_its_node_and_of_the_runners_up() -> None:
    placed = pod("train", "b")
    placed["spec"]["schedulerName"] = "default-scheduler"
    busy_pod = pod("busy", "a")
    busy_pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3", "memory": "6Gi"}}
    answer = asked(*machine("a"), *machine("b"), busy_pod, placed)
    assert [score.node for score in answer.scores] == ["b", "a"]
    assert answer.scores[0].total == sum(answer.scores[0].by_plugin.values())
    best, other = (score.by_plugin["NodeResourcesFit"] for score in answer.scores)
    assert best > other
    shown = list(lines(answer))
    assert shown[0] == "pod team/train is starting on b"
    assert shown[3].split()[:3] == ["NODE", "SCORE", "NodeResourcesFit"]
    assert shown[4].startswith("b (chosen)   ")
    assert shown[-1].startswith("Note: the scores are those of the default profile")
    configuration: Document = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    strategy: Document = {"apiVersion": configuration["apiVersion"], "kind": "NodeResourcesFitArgs"}
    strategy |= {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}}
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [{"name": "NodeResourcesFit", "args": strategy}]}
    packed = asked(*machine("a"), *machine("b"), busy_pod, placed, configuration | {"profiles": [profile]})
    best, other = (score.by_plugin["NodeResourcesFit"] for score in packed.scores)
    assert best > other
    assert packed.scores[0].node == "a"
    assert not packed.notes
