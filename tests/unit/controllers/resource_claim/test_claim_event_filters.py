"""Which events of Pods, claims and templates the claim controller acts on."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.types.core_v1 import Pod, PodExtendedResourceClaimStatus
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.claim_problems import Problem
from dray.controllers.reconciler import ControllerContext
from dray.controllers.resource_claim.plan import (
    affects_pods,
    claim_names_of,
    claim_needs_work,
    owning_pod_names,
    shared_claims_of,
    templates_of,
)
from dray.controllers.resource_claim.reconciler import ResourceClaimController
from dray.runtime.metrics import Metrics
from dray.runtime.system import SystemClock
from tests.unit.controllers.resource_claim.builders import NAMESPACE, claim, pod

RUNNING = pod(phase="Running", node="node")
DONE = pod(phase="Succeeded", node="node")
JOB = ResourceClaimConsumerReference(api_group="example.com", resource="jobs", name="job", uid="job-uid")


@pytest.mark.behaviour("SP-82", "SP-85", "SP-86")
@pytest.mark.parametrize(
    ("given", "cached", "deleted", "expected"),
    [
        pytest.param(claim(), None, (), False, id="unused"),
        pytest.param(claim(users=("pod-uid",)), RUNNING, (), False, id="consumer-runs"),
        pytest.param(claim(users=("pod-uid",)), DONE, (), True, id="consumer-finished"),
        pytest.param(claim(users=("pod-uid",)), None, (), True, id="consumer-unknown"),
        pytest.param(claim(users=("pod-uid",)), RUNNING, ("pod-uid",), True, id="consumer-deleted"),
        pytest.param(claim(users=("old-uid",)), RUNNING, (), True, id="consumer-replaced"),
        pytest.param(claim(users=(JOB,)), None, (), False, id="consumer-is-not-a-pod"),
        pytest.param(claim(users=(JOB,)), None, ("job-uid",), False, id="consumer-with-the-uid-of-a-deleted-pod"),
        pytest.param(claim(owner="pod-uid"), RUNNING, (), False, id="owner-runs"),
        pytest.param(claim(owner="pod-uid"), DONE, (), True, id="owner-finished"),
        pytest.param(claim(owner="pod-uid"), None, (), False, id="owner-unknown"),
        pytest.param(claim(owner="pod-uid"), None, ("pod-uid",), True, id="owner-deleted"),
        pytest.param(claim(owner="old-uid"), RUNNING, (), True, id="owner-replaced"),
        pytest.param(claim(owner="old-uid", users=("pod-uid",)), RUNNING, (), True, id="owner-replaced-but-in-use"),
        pytest.param(
            claim(owner="old-uid", users=("pod-uid",)), RUNNING, ("old-uid",), False, id="owner-deleted-but-in-use"
        ),
        pytest.param(claim(deleted=True, protected=True), None, (), True, id="deleted-with-finalizer"),
        pytest.param(claim(deleted=True), None, (), False, id="deleted-without-finalizer"),
        pytest.param(claim(owner="pod-uid", deleted=True), DONE, (), False, id="deleted-and-owner-finished"),
        pytest.param(claim(protected=True), None, (), False, id="finalizer-only"),
    ],
)
def test_a_claim_needs_work(given: ResourceClaim, cached: Pod | None, deleted: tuple[str, ...], expected: bool) -> None:
    assert claim_needs_work(given, lambda _: cached, deleted.__contains__) is expected


@pytest.mark.behaviour("SP-78", "SP-81")
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, claim(), True, id="created"),
        pytest.param(claim(), None, True, id="deleted"),
        pytest.param(claim(), claim(protected=True), False, id="finalizer-added"),
        pytest.param(claim(), claim(allocated=True), True, id="allocated"),
        pytest.param(claim(allocated=True), claim(), False, id="deallocated"),
        pytest.param(claim(owner="pod-uid"), claim(owner="new-uid"), True, id="new-owner"),
        pytest.param(claim(owner="pod-uid"), claim(), True, id="owner-removed"),
    ],
)
def test_a_change_of_a_claim_affects_its_pods(
    old: ResourceClaim | None, new: ResourceClaim | None, expected: bool
) -> None:
    assert affects_pods(old, new) is expected


def test_owning_pods_before_and_after_a_change() -> None:
    old, new = claim(owner="u1", owner_name="one"), claim(owner="u2", owner_name="two")
    assert owning_pod_names(old, new) == {"one", "two"}
    assert owning_pod_names(None, new) == {"two"}
    assert owning_pod_names(old, None) == {"one"}
    assert owning_pod_names(claim(), None) == set()
    [reference] = old.metadata.owner_references
    for other in ({"controller": None}, {"kind": "Job"}, {"api_version": "batch/v1"}):
        metadata = msgspec.structs.replace(
            old.metadata, owner_references=(msgspec.structs.replace(reference, **other),)
        )
        assert owning_pod_names(msgspec.structs.replace(old, metadata=metadata), None) == set()


@pytest.mark.behaviour("SP-79", "SP-81")
def test_claims_and_templates_of_a_pod() -> None:
    given = pod(templates={"a": "template", "b": "other"}, claims={"c": "shared"}, named={"a": "mine", "b": None})
    assert claim_names_of(given) == ["mine", "shared"]
    special = PodExtendedResourceClaimStatus(request_mappings=(), resource_claim_name="extended")
    status = msgspec.structs.replace(given.status, extended_resource_claim_status=special)
    assert claim_names_of(msgspec.structs.replace(given, status=status)) == ["mine", "shared", "extended"]
    # The informer's indexes, by which events of claims and templates find their Pods.
    assert shared_claims_of(given) == [NamespacedName(NAMESPACE, "shared")]
    assert templates_of(given) == [NamespacedName(NAMESPACE, name) for name in ("template", "other")]


def controller() -> ResourceClaimController:
    """A controller whose informers have delivered nothing."""
    client: Any = None
    clock = SystemClock()
    informers = SharedInformerFactory(client, clock, random.Random(1))
    return ResourceClaimController(ControllerContext(client, informers, clock, Metrics(), FeatureGates()))


@pytest.mark.behaviour("SP-86")
@pytest.mark.parametrize("synced", [False, True])
def test_claims_are_enqueued_while_the_pods_are_unknown(monkeypatch: pytest.MonkeyPatch, synced: bool) -> None:
    # The owner may have been replaced; the event of the Pod that replaced it does not lead to this claim.
    reconciler = controller()
    monkeypatch.setattr(type(reconciler._pods), "synced", synced)
    reconciler._claim_changed(None, claim(owner="old-uid"))
    assert len(reconciler.controller.queue) == (0 if synced else 1)


@pytest.mark.behaviour("SP-79")
def test_the_error_of_a_pod_names_all_its_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    reconciler = controller()
    reported: list[str] = []
    monkeypatch.setattr(reconciler._recorder, "event", lambda *arguments: reported.append(arguments[-1]))
    error = reconciler._report(pod(), [Problem("a", "no template"), Problem("b", "quota")])
    expected = f"pod {NAMESPACE}/pod: PodResourceClaim a: no template; PodResourceClaim b: quota"
    assert error.message == f"Internal error occurred: {expected}"
    assert reported == ["PodResourceClaim a: no template", "PodResourceClaim b: quota"]


@pytest.mark.behaviour("SP-78", "SP-81")
def test_pods_that_wait_for_a_claim_are_enqueued(monkeypatch: pytest.MonkeyPatch) -> None:
    reconciler = controller()
    monkeypatch.setattr(type(reconciler._pods), "synced", True)
    waiting = pod(templates={"gpu": "template"}, named={"gpu": "claim"})
    monkeypatch.setattr(reconciler, "_pods_of", lambda *_: iter([waiting]))
    reconciler._claim_changed(claim(), claim(protected=True))
    assert len(reconciler.controller.queue) == 0
    reconciler._claim_changed(claim(), None)
    assert len(reconciler.controller.queue) == 1
