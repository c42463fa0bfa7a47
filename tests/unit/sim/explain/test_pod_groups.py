"""Why a gang waits: Pods that do not exist, Pods that do not fit, and whom a higher priority would evict."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.api.pod_claims import FINALIZER
from dray.sim.doctor.rules import examine
from dray.sim.explain.answers import Answer, Standing
from dray.sim.explain.explainer import explain
from dray.sim.explain.pod_group import find_pod_group, groups_of_workload
from dray.sim.explain.pod_group_explainer import explain_member, explain_pod_group, explain_workload_groups
from dray.sim.explain.subject import pod_subject
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.sim.whatif.changes import Changed
from dray.sim.whatif.outcome import Outcome
from dray.sim.whatif.preemption import Preemption
from dray.sim.whatif.simulation import Run, simulate
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
GATES = FeatureGates()
CLUSTER = [
    node("node-a"),
    device_class("gpu", f'device.driver == "{GPU}"'),
    resource_slice("node-a", GPU, device("gpu-0"), device("gpu-1"), nodeName="node-a"),
    template("one", exactly(1)),
]


def gang(name: str = "train", count: int = 2, **spec: Any) -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}, **spec},
    }


def members(count: int, group: str = "train") -> list[Document]:
    found = [waiting_pod(f"{group}-{number}", "one") for number in range(count)]
    for item in found:
        item["spec"]["schedulingGroup"] = {"podGroupName": group}
    return found


def holder(name: str, device_name: str) -> list[Document]:
    """A running Pod of priority 0 with a device."""
    running = pod(name, "node-a")
    running["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    return [running, claim(name, device_name, pods=(name,), finalizers=[FINALIZER])]


def explained(*documents: Document) -> Answer:
    snapshot = Snapshot.of([*CLUSTER, *documents])
    return explain_pod_group(snapshot, find_pod_group(snapshot, NamespacedName("team", "train")), NOW, gates=GATES)


def test_a_gang_with_too_few_pods() -> None:
    assert explained(gang(count=3), *members(2)).sentence == (
        "podgroup team/train waits: only 2 of the 3 Pods that minCount asks for exist; create 1 more, or lower minCount"
    )


def test_a_gang_that_fits() -> None:
    answer = explained(gang(), *members(2))
    assert "fits: all of its 2 waiting Pods have a place" in answer.sentence


def test_how_many_fit_and_whom_a_higher_priority_would_evict() -> None:
    answer = explained(gang(), *members(2), *holder("batch", f"{GPU}/node-a/gpu-0"))
    assert answer.sentence.startswith(
        "podgroup team/train waits: 1 of the 2 Pods that minCount asks for fit at the same time; pod train-1: 0/1 nodes"
    )
    assert answer.sentence.endswith("; with priority 1 it would take the place of team/batch")
    assert answer.victims is not None
    assert (answer.victims.priority, answer.victims.pods) == (1, ("team/batch",))


def test_a_gang_that_is_too_large_has_no_victims() -> None:
    answer = explained(gang(count=3), *members(3))
    assert "waits: 2 of the 3 Pods that minCount asks for fit at the same time" in answer.sentence
    assert answer.sentence.endswith("; add nodes, or lower minCount: even without all other Pods only 2 of the 3 fit")
    assert answer.victims is None


def test_a_pod_of_a_gang_that_is_too_large_is_not_helped_by_what_one_pod_needs() -> None:
    held = [item for number in range(2) for item in holder(f"batch-{number}", f"{GPU}/node-a/gpu-{number}")]
    snapshot = Snapshot.of([*CLUSTER, gang(count=3), *members(3), *held])
    subject = pod_subject(snapshot, NamespacedName("team", "train-0"))
    alone = explain(snapshot, subject, NOW, gates=GATES)
    assert alone.changes
    answer = explain_member(snapshot, alone, NOW, gates=GATES)
    assert "waits for its PodGroup train, which waits: 0 of the 3 Pods" in answer.sentence
    assert answer.sentence.endswith("even without all other Pods only 2 of the 3 fit")
    assert answer.changes == ()
    assert answer.holders == alone.holders


def test_a_running_gang() -> None:
    running = [dict(item, spec=item["spec"] | {"nodeName": "node-a"}) for item in members(2)]
    answer = explained(gang(), *running)
    assert (answer.standing, answer.sentence) == (
        Standing.PLACED,
        "podgroup team/train has all of its 2 Pods on nodes",
    )


def test_a_pod_that_fits_alone_waits_for_its_gang() -> None:
    snapshot = Snapshot.of([*CLUSTER, gang(count=3), *members(3)])
    subject = pod_subject(snapshot, NamespacedName("team", "train-0"))
    answer = explain_member(snapshot, explain(snapshot, subject, NOW, gates=GATES), NOW, gates=GATES)
    assert "waits for its PodGroup train, which waits: 2 of the 3 Pods" in answer.sentence


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([gang("other")], 'waits for its PodGroup "train", which does not exist'),
        ([gang(count=4)], "waits for its gang: only 1 of the 4 Pods that minCount asks for exist"),
    ],
)
def test_a_pod_whose_group_is_not_tried(groups: list[Document], text: str) -> None:
    snapshot = Snapshot.of([*CLUSTER, *groups, *members(1)])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train-0")), NOW, gates=GATES)
    assert text in answer.sentence


def test_workloads_are_explained_by_their_groups() -> None:
    workload = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "job", "namespace": "team"},
        "spec": {"podGroupTemplates": [{"name": "t", "schedulingPolicy": {"basic": {}}}]},
    }
    of_job = gang(count=3, workloadRef={"workloadName": "job", "templateName": "t"})
    snapshot = Snapshot.of([*CLUSTER, workload, of_job, *members(3)])
    key = NamespacedName("team", "job")
    answer = explain_workload_groups(snapshot, key, groups_of_workload(snapshot, key), NOW, gates=GATES)
    assert answer.sentence.startswith("workload team/job has PodGroup train, which waits: 2 of the 3 Pods")
    bare = Snapshot.of([*CLUSTER, workload])
    empty = explain_workload_groups(bare, key, groups_of_workload(bare, key), NOW, gates=GATES)
    assert empty.sentence == "workload team/job has no PodGroups: its controller has created none yet"
    with pytest.raises(SnapshotError, match=r'podgroups "trian" not found in namespace "team".*train'):
        find_pod_group(snapshot, NamespacedName("team", "trian"))


def test_doctor_reports_groups_and_not_each_of_their_pods() -> None:
    snapshot = Snapshot.of([*CLUSTER, gang(count=3), *members(2), gang("big", 2), *members(2, "big")])
    found = {(item.rule, item.subject) for item in examine(snapshot, NOW)}
    assert {("incomplete-gang", "podgroup team/train"), ("long-wait", "podgroup team/big")} <= found
    assert not [item for item in found if item[0] == "long-wait" and item[1].startswith("pod ")]
    half = members(2)
    half[0]["spec"]["nodeName"] = "node-a"
    found = {(item.rule, item.subject) for item in examine(Snapshot.of([*CLUSTER, gang(), *half]), NOW)}
    assert ("half-placed-gang", "podgroup team/train") in found


def simulated(preemption: Preemption, *documents: Document) -> Outcome:
    snapshot = Snapshot.of([*CLUSTER, *holder("batch", f"{GPU}/node-a/gpu-0")])
    run = Run(snapshot, Changed(snapshot), NOW, GATES, lambda *_: None, preemption)
    return simulate(run, documents)


@pytest.mark.behaviour("SC-20")
def test_simulate_places_gangs_whole_or_not_at_all_and_shows_who_would_go() -> None:
    manifests = (gang(), *members(2))
    outcome = simulated(Preemption.BY_PRIORITY, *manifests)
    assert {item.name for item in outcome.pending} == {"train-0", "train-1"}
    urgent = simulated(Preemption.ALWAYS, *manifests)
    assert not [item for item in urgent.pending if item.name.startswith("train")]
    assert [item.name for item in urgent.preempted] == ["batch"]
    assert urgent.preempted[0].preemptor == "team/train"


def job(**scheduling: Any) -> Document:
    """A Job of three Pods, of which two fit."""
    spec = {
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": "team"},
        "spec": {"parallelism": 3, "completions": 3, "template": {"spec": spec}, **scheduling},
    }


@pytest.mark.behaviour("SC-20", "GW-67")
def test_simulate_places_the_pods_of_a_job_as_the_gang_that_it_asks_for() -> None:
    snapshot = Snapshot.of(CLUSTER)
    run = Run(snapshot, Changed(snapshot), NOW, GATES, lambda *_: None)
    assert [len(simulate(run, [job()]).placed), len(simulate(run, [job()]).pending)] == [2, 1]
    gang_policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    outcome = simulate(run, [job(scheduling=gang_policy)])
    assert [len(outcome.placed), len(outcome.pending)] == [0, 3]


@pytest.mark.behaviour("GW-26")
def test_members_that_differ_from_their_group_are_named() -> None:
    answer = explained(gang(priority=7), *members(2))
    assert answer.sentence == (
        "podgroup team/train waits: all pods in a single pod group should have the same priority as the pod group's "
        "priority, got 0 and 7; create the Pods and the PodGroup with the same schedulerName and priorityClassName"
    )


@pytest.mark.behaviour("GW-18")
def test_a_pod_whose_group_is_missing_in_a_cluster_without_groups() -> None:
    snapshot = Snapshot.of([*CLUSTER, *members(1)])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train-0")), NOW, gates=GATES)
    assert answer.sentence.startswith('pod team/train-0 waits for its PodGroup "train", which does not exist')


def test_a_pod_that_was_tried_has_a_group_that_the_files_do_not_contain() -> None:
    tried = members(1)
    tried[0]["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    snapshot = Snapshot.of([*CLUSTER, *tried])
    answer = explain(snapshot, pod_subject(snapshot, NamespacedName("team", "train-0")), NOW, gates=GATES)
    assert "does not exist" not in answer.sentence
