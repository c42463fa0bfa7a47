"""What `dray explain` and `dray simulate` say about Pods with claims of cdi.k8s.io."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.cli.explain import lines
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import claim_subject, pod_subject
from dray.sim.snapshot import Snapshot
from dray.sim.whatif.changes import Changed
from dray.sim.whatif.outcome import Outcome
from dray.sim.whatif.simulation import Run, simulate
from tests.unit.sim.cluster import CLASSIC_DRIVER, classic_claim, node, pod, resource_class

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CLUSTER = [node("node-a"), node("node-b"), resource_class()]
ON_NODE_A = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}]}
AVAILABLE = {"driver": {"availableOnNodes": ON_NODE_A}}


def waiting(**entry: object) -> Document:
    made = pod("train")
    made["spec"]["schedulerName"] = "default-scheduler"
    made["spec"]["resourceClaims"] = [{"name": "acme", **(entry or {"resourceClaimName": "one"})}]
    return made


def explained(*more: Document, kind: str = "pod", name: str = "train") -> str:
    snapshot = Snapshot.of([*CLUSTER, *more])
    find = {"pod": pod_subject, "claim": claim_subject}[kind]
    answer = explain(snapshot, find(snapshot, NamespacedName("team", name)), NOW, gates=FeatureGates())
    return "\n".join(lines(answer))


def simulated(*more: Document) -> Outcome:
    snapshot = Snapshot.of([*CLUSTER, *more])
    return simulate(Run(snapshot, Changed(snapshot), NOW, FeatureGates(), lambda *_: None), ())


@pytest.mark.behaviour("CL-34")
def test_a_claim_that_is_available_on_one_node() -> None:
    claim = classic_claim("one", phase="Allocated", driverName=CLASSIC_DRIVER, scheduling=AVAILABLE)
    assert (
        explained(claim, waiting())
        == f"""\
pod team/train fits on 1 of 2 nodes and will be scheduled
  claim team/one is allocated by driver {CLASSIC_DRIVER} on node node-a and not in use

NODES   REASON                                    FOR EXAMPLE
1       fits                                      node-a
1       resourceclaim not available on the node   node-b"""
    )
    (outcome,) = simulated(claim, waiting()).placed
    assert (outcome.name, outcome.node) == ("train", "node-a")


def test_a_claim_that_its_driver_has_to_allocate() -> None:
    claim = classic_claim("one", mode="Immediate")
    shown = explained(claim, waiting()).splitlines()
    assert shown == [
        "pod team/train waits for classic claim team/one, which is pending: "
        f"driver {CLASSIC_DRIVER} has to allocate it",
        f"  claim team/one is pending: driver {CLASSIC_DRIVER} has to allocate it",
    ]
    assert explained(claim, kind="claim", name="one") == (
        f"claim team/one is pending: driver {CLASSIC_DRIVER} has to allocate it"
    )


def test_simulate_says_which_driver_has_to_allocate() -> None:
    template = {"template": {"metadata": {}, "spec": {"resourceClassName": "acme"}}}
    (outcome,) = simulated(waiting(**template)).pending
    assert outcome.why == (
        f"waits for classic claim team/train-acme, which is pending: driver {CLASSIC_DRIVER} has to allocate it "
        "for node node-a"
    )


def test_a_pod_that_runs_with_a_classic_claim() -> None:
    claim = classic_claim("one", "train", phase="Allocated", driverName=CLASSIC_DRIVER, scheduling=AVAILABLE)
    running = waiting()
    running["spec"]["nodeName"] = "node-a"
    assert explained(claim, running).splitlines()[:2] == [
        "pod team/train is starting on node-a",
        f"  claim team/one is allocated by driver {CLASSIC_DRIVER} on node node-a and used by train",
    ]
    assert simulated(claim, running).unchanged == 1
