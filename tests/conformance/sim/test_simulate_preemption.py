"""What-if runs in which Pods are preempted: who goes, for whom, and that only changes are shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.cli.simulate import lines
from dray.sim.snapshot import Snapshot
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
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


def holder(name: str, on: str, priority: int = 0, owner: str = "") -> list[Document]:
    """A running Pod with a claim for a device of its node."""
    user = pod(name, on)
    user["spec"] |= {
        "schedulerName": "default-scheduler",
        "priority": priority,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}],
    }
    user["status"] = {"phase": "Running"}
    if owner:
        reference = {"apiVersion": "batch/v1", "kind": owner, "name": "x", "uid": "x", "controller": True}
        user["metadata"]["ownerReferences"] = [reference]
    held = claim(
        f"{name}-gpu",
        f"{GPU}/{on}/gpu-0",
        pods=(name,),
        finalizers=["resource.kubernetes.io/delete-protection"],
    )
    return [user, held]


def cluster(*more: Document) -> Snapshot:
    documents = [device_class("gpu", f'device.driver == "{GPU}"'), template("one", exactly(1)), URGENT]
    for name in ("node-a", "node-b", "node-c"):
        documents += [node(name), resource_slice(name, GPU, device("gpu-0"), nodeName=name)]
    documents += [
        *holder("batch", "node-a", owner="Job"),
        *holder("lone", "node-b", 10),
        *holder("dear", "node-c", 500),
    ]
    return Snapshot.of([*documents, *more])


def outcome_of(
    before: Snapshot, manifests: Sequence[Document] = (), preemption: Preemption = Preemption.BY_PRIORITY
) -> Outcome:
    return simulate(Run(before, Changed(before), NOW, FeatureGates(), lambda *_: None, preemption), manifests)


def gone(outcome: Outcome) -> list[tuple[str, str, str, str]]:
    return [(item.name, item.node, item.preemptor, item.controller) for item in outcome.preempted]


@pytest.mark.behaviour("PE-48")
def test_a_pod_of_higher_priority_takes_the_least_important_place() -> None:
    outcome = outcome_of(cluster(), [waiting_pod("now", "one", priorityClassName="urgent")])
    assert [(row.name, row.node, row.devices) for row in outcome.placed] == [
        ("now", "node-a", (f"{GPU}/node-a/gpu-0",))
    ]
    assert gone(outcome) == [("batch", "node-a", "team/now", "Job")]
    shown = "\n".join(lines(outcome))
    assert shown.startswith("1 scheduled, 0 moved, 1 preempted, 0 pending, 0 lost, 2 unchanged\n")
    assert "team/batch   node-a   team/now   its Job creates it again" in shown


def test_pods_without_priority_evict_nobody_unless_asked() -> None:
    manifests = [waiting_pod("now", "one")]
    by_priority = outcome_of(cluster(), manifests)
    assert (gone(by_priority), [row.name for row in by_priority.pending]) == ([], ["now"])
    always = outcome_of(cluster(), manifests, Preemption.ALWAYS)
    assert gone(always) == [("batch", "node-a", "team/now", "Job")]


def test_a_pending_pod_is_let_in_by_asking() -> None:
    before = cluster(waiting_pod("waits", "one"), waiting_pod("too", "one"))
    outcome = outcome_of(before, preemption=Preemption.ALWAYS)
    assert {row.name for row in outcome.placed} == {"waits", "too"}
    assert {(item.name, item.controller) for item in outcome.preempted} == {("batch", "Job"), ("lone", "")}


def test_nobody_is_evicted_without_preemption() -> None:
    outcome = outcome_of(
        cluster(), [waiting_pod("now", "one", priorityClassName="urgent")], preemption=Preemption.NEVER
    )
    assert (gone(outcome), [row.name for row in outcome.pending]) == ([], ["now"])


def test_only_what_changes_is_shown() -> None:
    before = cluster(waiting_pod("waits", "one"))
    outcome = outcome_of(before, [waiting_pod("also", "one")])
    shown = list(lines(outcome))
    assert shown[0] == "0 scheduled, 0 moved, 2 pending (1 as before), 0 lost, 3 unchanged"
    assert not any("team/waits" in line for line in shown)
    assert any("team/also" in line for line in shown)
    assert shown[-1] == "The usage of 1 class and 3 nodes does not change; see --all."
    everything = list(lines(outcome, everything=True))
    assert any("team/waits" in line for line in everything)
    assert any(line.startswith("node-c ") for line in everything)


@pytest.mark.behaviour("SC-20")
def test_a_victim_with_a_finalizer_frees_its_device_when_its_containers_have_stopped() -> None:
    before = cluster()
    batch = next(item for item in before.documents["Pod"] if item["metadata"]["name"] == "batch")
    batch["metadata"]["finalizers"] = ["example.com/hold"]
    outcome = outcome_of(before, [waiting_pod("now", "one", priorityClassName="urgent")])
    assert [(row.name, row.node) for row in outcome.placed] == [("now", "node-a")]
    assert gone(outcome) == [("batch", "node-a", "team/now", "Job")]


@pytest.mark.behaviour("SC-20")
def test_disruption_budgets_that_preemption_does_not_keep_are_named() -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "team"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        "status": {"disruptionsAllowed": 0},
    }
    before = cluster(budget)
    for item in before.documents["Pod"]:
        item["metadata"]["labels"] = {"app": "kept"}
    outcome = outcome_of(before, [waiting_pod("now", "one", priorityClassName="urgent")])
    assert outcome.notes == (
        "the disruption budget team/keep allows 0 evictions, preemption evicts 1 (batch): "
        "no other victims would let the Pods fit",
    )
    assert not outcome_of(cluster(budget), [waiting_pod("now", "one", priorityClassName="urgent")]).notes
