"""What the claim controller decides; row names of upstream's table are kept where the case is the same."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from dray.api.features import FeatureGates
from dray.api.pod_claims import FINALIZER, POD_CLAIM_NAME_ANNOTATION
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate
from dray.controllers.resource_claim.created_claims import ENTRIES_MAX, EXPIRY_SECONDS, CreatedClaims
from dray.controllers.resource_claim.metrics import ClaimLabels, ClaimMetrics, labels_of
from dray.controllers.resource_claim.plan import (
    ClaimPlan,
    generate_name,
    names_to_confirm,
    needs_reservation,
    plan_claim,
    plan_pod,
    pod_needs_work,
    pods_to_confirm,
    status_patch,
)
from dray.runtime.metrics import Metrics
from tests.unit.controllers.resource_claim.builders import (
    NAMESPACE,
    alternatives,
    claim,
    exact,
    pod,
    pod_user,
    template,
)

ON = FeatureGates()


@pytest.mark.behaviour("SP-74")
@pytest.mark.parametrize(
    ("pod_name", "entry", "expected"),
    [
        pytest.param("pod", "gpu", "pod-gpu-", id="short"),
        pytest.param("p" * 49, "e" * 7, "p" * 49 + "-" + "e" * 7 + "-", id="57-characters-stay"),
        pytest.param("p" * 50, "e" * 7, "p" * 49 + "-" + "e" * 6 + "-", id="one-too-many"),
        pytest.param("p" * 253, "e" * 63, "p" * 45 + "-" + "e" * 11 + "-", id="longest"),
        pytest.param("p" * 44 + "-" + "p" * 208, "e" * 63, "p" * 44 + "-" + "e" * 11 + "-", id="no-double-hyphen"),
        pytest.param("p" * 44 + "." + "p" * 208, "e" * 63, "p" * 44 + "-" + "e" * 11 + "-", id="no-trailing-dot"),
    ],
)
def test_names(pod_name: str, entry: str, expected: str) -> None:
    assert generate_name(pod_name, entry) == expected
    assert len(expected) <= 58


@dataclass
class PodCase:
    given: Pod | None
    claims: tuple[ResourceClaim, ...] = ()
    templates: tuple[ResourceClaimTemplate, ...] = (template(),)
    created: list[str] = field(default_factory=list)
    adopted: list[tuple[str, str]] = field(default_factory=list)
    reserved: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    gates: FeatureGates = ON


WANTING = pod(templates={"gpu": "template"})
NAMED = pod(templates={"gpu": "template"}, named={"gpu": "mine"})
MINE = claim("mine", owner="pod-uid", entry="gpu")

POD_CASES = {
    "create": (PodCase(WANTING, created=["pod-gpu-"]), ["SP-75"]),
    "no-such-pod": (PodCase(None), ["SP-80"]),
    "pod-deleted": (PodCase(pod(templates={"gpu": "template"}, deleted=True)), ["SP-80"]),
    "pod-finished": (PodCase(pod(templates={"gpu": "template"}, phase="Failed")), ["SP-80"]),
    "pod-without-claims": (PodCase(pod()), []),
    "nop": (PodCase(NAMED, (MINE,)), ["SP-76"]),
    "known-to-need-none": (PodCase(pod(templates={"gpu": "template"}, named={"gpu": None})), []),
    "recreate": (PodCase(NAMED, created=["pod-gpu-"]), ["SP-78"]),
    "wrong-claim-owner": (
        PodCase(NAMED, (claim("mine", owner="other-uid", entry="gpu"),), created=["pod-gpu-"]),
        ["SP-78"],
    ),
    "create-with-other-claim": (
        PodCase(WANTING, (claim("pod-gpu-abcde", owner="other-uid", entry="gpu"),), created=["pod-gpu-"]),
        ["SP-78"],
    ),
    "find-existing-claim-by-label": (PodCase(WANTING, (MINE,), adopted=[("gpu", "mine")]), ["SP-77"]),
    "one-claim-exists-and-one-does-not": (
        PodCase(
            pod(templates={"gpu": "template", "nic": "template"}),
            (MINE,),
            adopted=[("gpu", "mine")],
            created=["pod-nic-"],
        ),
        ["SP-75", "SP-77"],
    ),
    "existing-claim-of-another-entry": (
        PodCase(WANTING, (claim("nic", owner="pod-uid", entry="nic"),), created=["pod-gpu-"]),
        ["SP-77"],
    ),
    "of-two-the-living": (
        PodCase(
            WANTING,
            (claim("a", owner="pod-uid", entry="gpu", deleted=True), claim("b", owner="pod-uid", entry="gpu")),
            adopted=[("gpu", "b")],
        ),
        ["SP-77"],
    ),
    "missing-template": (
        PodCase(
            WANTING,
            templates=(),
            problems=[
                'PodResourceClaim gpu: resource claim template "template": '
                'resourceclaimtemplate.resource.k8s.io "template" not found'
            ],
        ),
        ["SP-79"],
    ),
    "one-of-two-templates": (
        PodCase(
            pod(templates={"a": "gone", "b": "template"}),
            created=["pod-b-"],
            problems=[
                'PodResourceClaim a: resource claim template "gone": '
                'resourceclaimtemplate.resource.k8s.io "gone" not found'
            ],
        ),
        ["SP-79"],
    ),
    "prioritized-list-enabled": (
        PodCase(WANTING, templates=(template("template", alternatives()),), created=["pod-gpu-"]),
        ["PL-35"],
    ),
    "add-reserved": (
        PodCase(pod(claims={"gpu": "shared"}, node="node"), (claim("shared", allocated=True),), reserved=["shared"]),
        ["SP-81"],
    ),
    "bound-but-not-allocated": (PodCase(pod(claims={"gpu": "shared"}, node="node"), (claim("shared"),)), ["SP-81"]),
    "reserved-already": (
        PodCase(pod(claims={"gpu": "shared"}, node="node"), (claim("shared", allocated=True, users=("pod-uid",)),)),
        ["SP-81"],
    ),
    "not-bound-yet": (PodCase(pod(claims={"gpu": "shared"}), (claim("shared", allocated=True),)), ["SP-81"]),
    "user-claim-missing": (PodCase(pod(claims={"gpu": "shared"})), []),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=name, marks=[pytest.mark.behaviour(*ids)] if ids else [])
        for name, (c, ids) in POD_CASES.items()
    ],
)
def test_pods(case: PodCase) -> None:
    by_name = {c.metadata.name: c for c in case.claims}
    templates = {t.metadata.name: t for t in case.templates}
    owned = tuple(c for c in case.claims if any(o.uid == "pod-uid" for o in c.metadata.owner_references))
    plan = plan_pod(case.given, by_name.get, owned, templates.get, case.gates)
    assert [made.metadata.generate_name for _, made in plan.create] == case.created
    assert list(plan.adopt) == case.adopted
    assert [changed.metadata.name for changed in plan.reserve] == case.reserved
    assert [problem.event_message for problem in plan.problems] == case.problems
    if case.given is not None:
        # The cheap question never overlooks work.
        work = bool(case.created or case.adopted or case.reserved or case.problems)
        assert pod_needs_work(case.given, by_name.get) == work
    for changed in plan.reserve:
        assert changed.status.reserved_for[-1] == pod_user("pod-uid")


@pytest.mark.behaviour("SP-75")
def test_fields_of_a_generated_claim() -> None:
    source = template("template", exact("one"), labels={"l": "1"}, annotations={"a": "2"})
    plan = plan_pod(WANTING, lambda _: None, (), {"template": source}.get, ON)
    [(entry, made)] = plan.create
    assert entry == "gpu"
    assert made.metadata.labels == {"l": "1"}
    assert made.metadata.annotations == {"a": "2", POD_CLAIM_NAME_ANNOTATION: "gpu"}
    assert made.metadata.namespace == NAMESPACE
    [owner] = made.metadata.owner_references
    assert (owner.api_version, owner.kind, owner.name, owner.uid) == ("v1", "Pod", "pod", "pod-uid")
    assert owner.controller
    assert owner.block_owner_deletion
    assert made.metadata.finalizers == (FINALIZER,)
    assert made.spec == source.spec.spec


@pytest.mark.behaviour("N-70")
def test_a_claim_of_another_namespace_that_says_the_pod_owns_it_is_not_adopted() -> None:
    made = plan_pod(WANTING, lambda _: None, (), {"template": template("template", exact("one"))}.get, ON).create[0][1]
    named = msgspec.structs.replace(made.metadata, name="theirs", namespace="other")
    theirs = msgspec.structs.replace(made, metadata=named)
    ours = msgspec.structs.replace(made, metadata=msgspec.structs.replace(named, name="ours", namespace=NAMESPACE))
    find = {"template": template("template", exact("one"))}.get
    assert plan_pod(WANTING, lambda _: None, (theirs,), find, ON).adopt == ()
    assert plan_pod(WANTING, lambda _: None, (theirs, ours), find, ON).adopt == (("gpu", "ours"),)


@pytest.mark.parametrize(
    ("node", "given", "expected"),
    [
        ("n", claim(allocated=True), True),
        ("", claim(allocated=True), False),
        ("n", claim(), False),
        ("n", claim(allocated=True, protected=True, deleted=True), False),
        ("n", claim(allocated=True, users=("pod-uid",)), False),
        ("n", claim(allocated=True, users=("another",)), True),
    ],
    ids=["bound", "not bound", "not allocated", "being deleted", "reserved", "reserved for another Pod"],
)
def test_a_claim_is_reserved_for_a_pod_that_was_bound_without_the_scheduler(
    node: str, given: ResourceClaim, expected: bool
) -> None:
    assert needs_reservation(pod(node=node), given) is expected


@pytest.mark.behaviour("N-70")
def test_annotations_are_not_written_into_the_template() -> None:
    source = template("template", exact("one"), annotations={"a": "2"})
    plan_pod(WANTING, lambda _: None, (), {"template": source}.get, ON)
    assert source.spec.metadata.annotations == {"a": "2"}


@pytest.mark.behaviour("SP-76", "N-70")
def test_the_status_keeps_existing_names() -> None:
    given = pod(templates={"a": "t", "b": "t", "c": "t"}, named={"a": "claim-a", "c": None})
    patch = status_patch(given, {"b": "claim-b"})
    assert patch["status"] == {
        "resourceClaimStatuses": [
            {"name": "a", "resourceClaimName": "claim-a"},
            {"name": "b", "resourceClaimName": "claim-b"},
            {"name": "c"},
        ]
    }
    assert patch["metadata"] == {"name": "pod", "namespace": NAMESPACE, "uid": "pod-uid", "resourceVersion": "7"}


@pytest.mark.behaviour("SP-78", "N-70")
def test_a_named_claim_that_is_not_cached_is_confirmed_first() -> None:
    assert names_to_confirm(NAMED, lambda _: None) == ("mine",)
    assert names_to_confirm(NAMED, lambda _: MINE) == ()
    assert names_to_confirm(pod(claims={"gpu": "shared"}), lambda _: None) == ()
    assert names_to_confirm(pod(templates={"gpu": "t"}, named={"gpu": "mine"}, deleted=True), lambda _: None) == ()


@dataclass
class ClaimCase:
    given: ResourceClaim | None
    pods: tuple[Pod, ...] = ()
    known_deleted: tuple[str, ...] = ()
    users: list[str] | None = None
    allocated: bool = False
    remove_finalizer: bool = False
    delete: bool = False


RUNNING = pod(phase="Running", node="node")
DONE = pod(phase="Succeeded", node="node")
HELD = claim(allocated=True, protected=True, users=("pod-uid",))
OTHER_USER = ResourceClaimConsumerReference(api_group="example.com", resource="jobs", name="job", uid="job-uid")

CLAIM_CASES = {
    "no-such-claim": (ClaimCase(None), []),
    "stay-reserved-seen": (ClaimCase(HELD, (RUNNING,)), ["SP-82"]),
    "clear-reserved-structured": (ClaimCase(HELD, users=[], remove_finalizer=True), ["SP-82", "SP-84"]),
    "clear-reserved-known-deleted": (
        ClaimCase(HELD, (RUNNING,), ("pod-uid",), users=[], remove_finalizer=True),
        ["SP-82"],
    ),
    "clear-reserved-other-uid": (
        ClaimCase(HELD, (pod(uid="new-uid", node="node"),), users=[], remove_finalizer=True),
        ["SP-82"],
    ),
    "clear-reserved-when-done": (ClaimCase(HELD, (DONE,), users=[], remove_finalizer=True), ["SP-82", "SP-84"]),
    "deleted-before-scheduled": (
        ClaimCase(HELD, (pod(deleted=True),), users=[], remove_finalizer=True),
        ["SP-82"],
    ),
    "deleted-but-still-running": (ClaimCase(HELD, (pod(deleted=True, node="node"),)), ["SP-82"]),
    "remove-reserved": (
        ClaimCase(
            claim(allocated=True, protected=True, users=("pod-uid", pod_user("gone", "gone"))),
            (RUNNING,),
            users=["pod-uid"],
            allocated=True,
        ),
        ["SP-82"],
    ),
    "non-pod-reservation-stays": (
        ClaimCase(claim(allocated=True, protected=True, users=("gone", OTHER_USER)), users=["job-uid"], allocated=True),
        ["SP-83"],
    ),
    "only-a-non-pod": (ClaimCase(claim(allocated=True, protected=True, users=(OTHER_USER,))), ["SP-83"]),
    "allocated-by-someone-else": (
        ClaimCase(claim(allocated=True, users=("gone",)), users=[], allocated=True),
        ["SP-84"],
    ),
    "dont-clear-reserved-structured": (ClaimCase(claim(allocated=True, protected=True)), ["SP-84"]),
    "clear-reserved-structured-deleted": (
        ClaimCase(
            claim(allocated=True, protected=True, deleted=True, users=("gone",)), users=[], remove_finalizer=True
        ),
        ["SP-85"],
    ),
    "structured-deleted": (
        ClaimCase(claim(allocated=True, protected=True, deleted=True), users=[], remove_finalizer=True),
        ["SP-85"],
    ),
    "deleted-and-never-allocated": (ClaimCase(claim(protected=True, deleted=True), remove_finalizer=True), ["SP-85"]),
    "deleted-and-in-use": (
        ClaimCase(claim(allocated=True, protected=True, deleted=True, users=("pod-uid",)), (RUNNING,)),
        ["SP-85"],
    ),
    "delete-claim-when-done": (
        ClaimCase(
            claim(owner="pod-uid", entry="gpu", allocated=True, protected=True, users=("pod-uid",)),
            (DONE,),
            users=[],
            remove_finalizer=True,
            delete=True,
        ),
        ["SP-86"],
    ),
    "delete-unreserved-claim-when-done": (
        ClaimCase(claim(owner="pod-uid", entry="gpu"), (DONE,), delete=True),
        ["SP-86"],
    ),
    "delete-never-allocated-claim-when-done": (
        ClaimCase(claim(owner="pod-uid", entry="gpu", protected=True), (DONE,), remove_finalizer=True, delete=True),
        ["SP-86"],
    ),
    "delete-allocated-but-never-reserved-claim-when-done": (
        ClaimCase(claim(owner="pod-uid", entry="gpu", allocated=True, protected=True), (DONE,), delete=True),
        ["SP-84", "SP-86"],
    ),
    "delete-claim-of-replaced-pod": (
        ClaimCase(claim(owner="old-uid", entry="gpu"), (RUNNING,), delete=True),
        ["SP-86"],
    ),
    "keep-while-restarting": (
        ClaimCase(claim(owner="pod-uid", entry="gpu", allocated=True, protected=True, users=("pod-uid",)), (RUNNING,)),
        ["SP-86"],
    ),
    "owner-unknown": (ClaimCase(claim(owner="pod-uid", entry="gpu")), ["SP-86"]),
    "being-deleted-already": (ClaimCase(claim(owner="pod-uid", entry="gpu", deleted=True), (DONE,)), ["SP-86"]),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=name, marks=[pytest.mark.behaviour(*ids)] if ids else [])
        for name, (c, ids) in CLAIM_CASES.items()
    ],
)
def test_claims(case: ClaimCase) -> None:
    pods = {p.metadata.name: p for p in case.pods}
    plan = plan_claim(case.given, pods.get, set(case.known_deleted).__contains__)
    users = None if plan.status is None else [user.uid for user in plan.status.reserved_for]
    assert users == case.users
    assert (plan.remove_finalizer, plan.delete) == (case.remove_finalizer, case.delete)
    if plan.status is not None:
        assert (plan.status.allocation is not None) == case.allocated


def test_keeping_a_claim_writes_nothing() -> None:
    assert plan_claim(HELD, lambda _: RUNNING, lambda _: False) == ClaimPlan()


@pytest.mark.behaviour("SP-82")
@pytest.mark.parametrize(
    ("given", "cached", "deleted", "expected"),
    [
        pytest.param(HELD, None, False, ("pod",), id="not-seen"),
        pytest.param(HELD, None, True, (), id="known-deleted"),
        pytest.param(HELD, RUNNING, False, (), id="seen"),
        pytest.param(HELD, pod(uid="older"), False, ("pod",), id="another-of-that-name-seen"),
        pytest.param(claim(users=(OTHER_USER,)), None, False, (), id="not-a-pod"),
        pytest.param(claim(owner="pod-uid"), pod(uid="older"), False, ("pod",), id="owner-may-be-newer"),
        pytest.param(claim(owner="pod-uid"), None, False, (), id="owner-not-seen"),
    ],
)
def test_pods_to_confirm(given: ResourceClaim, cached: Pod | None, deleted: bool, expected: tuple[str, ...]) -> None:
    assert pods_to_confirm(given, lambda _: cached, lambda _: deleted) == expected


@pytest.mark.behaviour("SP-77")
def test_created_claims_are_cached_until_observed_or_expired() -> None:
    created = CreatedClaims()
    created.add(MINE, 0.0)
    key = next(iter(created._entries))
    assert created.get(key, EXPIRY_SECONDS) is MINE
    assert created.owned_by("pod-uid", EXPIRY_SECONDS) == (MINE,)
    assert created.get(key, EXPIRY_SECONDS + 1) is None
    assert created.owned_by("pod-uid", EXPIRY_SECONDS + 1) == ()
    created.discard(key)
    assert created.get(key, 0.0) is None
    assert created.owned_by("pod-uid", 0.0) == ()
    for number in range(ENTRIES_MAX + 5):
        created.add(claim(f"c{number}", owner=f"u{number}"), 0.0)
    assert len(created._entries) == len(created._by_owner) == ENTRIES_MAX


@pytest.mark.behaviour("SP-88", "PL-34", "N-122")
def test_claims_are_counted_by_their_labels() -> None:
    metrics = Metrics()
    counts = ClaimMetrics(metrics)
    plain = claim("plain")
    generated = claim("generated", alternatives(), owner="pod-uid", entry="gpu")
    allocated = claim("generated", alternatives(), owner="pod-uid", entry="gpu", allocated=True)
    special = claim(
        "special", exact(admin=True), annotations={"resource.kubernetes.io/extended-resource-claim": "true"}
    )
    for new in (plain, generated, special):
        counts.changed(None, new)
    counts.changed(generated, allocated)
    counts.changed(plain, None)

    def value(allocated: str, admin: str, source: str, listed: str) -> float:
        labels = {"allocated": allocated, "admin_access": admin, "source": source, "prioritized_list": listed}
        return metrics.value("resourceclaim_controller_resource_claims", labels)

    assert value("false", "false", "", "false") == 0
    assert value("false", "false", "resource_claim_template", "true") == 0
    assert value("true", "false", "resource_claim_template", "true") == 1
    assert value("false", "true", "extended_resource", "false") == 1
    # Kubernetes 1.37 does not tell alternatives apart.
    counts.changed(None, claim("other", owner="u", entry="gpu", allocated=True))
    shared = {"allocated": "true", "admin_access": "false", "source": "resource_claim_template"}
    assert metrics.value("dynamic_resource_allocation_resource_claims", shared) == 2
    alias = {"admin_access": "false", "source": "resource_claim_template", "prioritized_list": "true"}
    assert metrics.value("resourceclaim_controller_allocated_resource_claims", alias) == 1


@pytest.mark.behaviour("SP-88", "PL-34", "N-121")
def test_creations_are_counted_by_outcome() -> None:
    metrics = Metrics()
    counts = ClaimMetrics(metrics)
    counts.created(claim(), success=True)
    counts.created(claim("admin", exact(admin=True)), success=False)
    name = "resourceclaim_controller_creates_total"
    assert metrics.value(name, {"status": "success", "admin_access": "false"}) == 1
    assert metrics.value(name, {"status": "failure", "admin_access": "true"}) == 1
    owner = {"owner_api_group": "", "owner_api_kind": "Pod"}
    name = "dynamic_resource_allocation_resourceclaim_creates_total"
    assert metrics.value(name, {"status": "success", "admin_access": "false", **owner}) == 1
    assert metrics.value(name, {"status": "failure", "admin_access": "true", **owner}) == 1
    assert metrics.value("resourceclaim_controller_create_total") == 2
    assert metrics.value("resourceclaim_controller_create_failures_total") == 1


def test_labels_of_a_claim() -> None:
    assert labels_of(claim()) == ClaimLabels("false", "false", "", "false")
