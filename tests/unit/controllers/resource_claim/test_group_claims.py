"""Claims of PodGroups, as the claim controller, the scheduler and the node agent see them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.codec import from_document
from dray.api.document import UID, Document
from dray.api.features import FeatureGates
from dray.api.pod_claims import FINALIZER, POD_CLAIM_NAME_ANNOTATION, is_for_pod, is_reserved_for, not_created_for
from dray.api.types.core_v1 import Pod, PodSchedulingGroup
from dray.api.types.meta_v1 import OwnerReference
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimConsumerReference
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.controllers.claim_problems import Problem
from dray.controllers.resource_claim import group_plan
from dray.controllers.resource_claim.group_plan import Membership
from dray.controllers.resource_claim.plan import ClaimPlan, claim_needs_work, make_claim, plan_claim, plan_pod
from dray.node.dra.claims import ClaimError, PodClaim, check_usable
from tests.unit.controllers.resource_claim.builders import NAMESPACE, claim, pod, template

ON = FeatureGates.parse("GenericWorkload=true,DRAWorkloadResourceClaims=true")
NO_CLAIMS = FeatureGates.parse("GenericWorkload=true")
OFF = FeatureGates()
ENTRY: Document = {"name": "gpu", "resourceClaimTemplateName": "template"}


def group(*entries: Document, named: dict[str, str] | None = None, **metadata: Any) -> PodGroup:
    statuses = [{"name": name, "resourceClaimName": value} for name, value in (named or {}).items()]
    document = {
        "metadata": {"name": "team", "namespace": NAMESPACE, "uid": "group-uid", "resourceVersion": "3", **metadata},
        "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": list(entries)},
        "status": {"resourceClaimStatuses": statuses},
    }
    return from_document(PodGroup, document)


def member(**words: Any) -> Pod:
    given = pod(**({"templates": {"gpu": "template"}} | words))
    spec = msgspec.structs.replace(given.spec, scheduling_group=PodSchedulingGroup(pod_group_name="team"))
    return msgspec.structs.replace(given, spec=spec)


def group_claim(name: str = "ours", *, uid: str = "group-uid", **words: Any) -> ResourceClaim:
    """A claim that the group owns, for its entry `gpu`."""
    made = claim(name, **words)
    owner = OwnerReference(
        api_version="scheduling.k8s.io/v1beta1", kind="PodGroup", name="team", uid=uid, controller=True
    )
    metadata = msgspec.structs.replace(
        made.metadata, owner_references=(owner,), annotations={POD_CLAIM_NAME_ANNOTATION: "gpu"}
    )
    return msgspec.structs.replace(made, metadata=metadata)


def user(uid: str = "group-uid", name: str = "team") -> ResourceClaimConsumerReference:
    return ResourceClaimConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", name=name, uid=uid)


MEMBERS: dict[str, tuple[Pod, PodGroup | None, FeatureGates, list[str], list[tuple[str, str]], list[str]]] = {
    "its own": (member(), group(), ON, ["pod-gpu-"], [], []),
    "other source": (member(), group({**ENTRY, "resourceClaimTemplateName": "x"}), ON, ["pod-gpu-"], [], []),
    "not recorded": (member(), group(ENTRY), ON, [], [], []),
    "recorded": (member(), group(ENTRY, named={"gpu": "ours"}), ON, [], [("gpu", "ours")], []),
    "no group": (member(), None, ON, [], [], []),
    "claims disabled": (
        member(),
        group(ENTRY),
        NO_CLAIMS,
        [],
        [],
        ["claim gpu is a PodGroup claim but the DRAWorkloadResourceClaims feature is disabled"],
    ),
    "groups disabled": (
        member(),
        None,
        OFF,
        [],
        [],
        ["Pod is a member of PodGroup team but GenericWorkload feature is disabled"],
    ),
}


@pytest.mark.behaviour("GW-40", "GW-41", "GW-48", "N-127", "N-128", "N-129")
@pytest.mark.parametrize("case", MEMBERS.values(), ids=MEMBERS)
def test_claims_of_a_member(
    case: tuple[Pod, PodGroup | None, FeatureGates, list[str], list[tuple[str, str]], list[str]],
) -> None:
    given, of, gates, created, adopted, problems = case
    plan = plan_pod(given, lambda _: None, (), {"template": template()}.get, gates, Membership(given, of, gates))
    assert [made.metadata.generate_name for _, made in plan.create] == created
    assert list(plan.adopt) == adopted
    assert [problem.message for problem in plan.problems] == problems
    # A disabled feature does not become enabled by trying again.
    assert all(problem.is_final for problem in plan.problems)


@pytest.mark.behaviour("GW-42", "N-130")
def test_a_claim_of_the_group_is_reserved_for_the_group() -> None:
    bound = member(node="node", named={"gpu": "ours"})
    of = group(ENTRY, named={"gpu": "ours"})
    allocated = group_claim(allocated=True)
    plan = plan_pod(bound, {"ours": allocated}.get, (), lambda _: None, ON, Membership(bound, of, ON))
    assert plan.reserve[0].status.reserved_for == (user(),)
    reserved = group_claim(allocated=True, users=(user(),))
    assert not plan_pod(bound, {"ours": reserved}.get, (), lambda _: None, ON, Membership(bound, of, ON)).reserve


@pytest.mark.behaviour("GW-41", "N-128")
def test_one_claim_for_the_group() -> None:
    of = group(ENTRY)
    (entry,) = group_plan.entries_without_claim(of, lambda _: None)
    made = make_claim(of, entry, template(), ON)
    assert isinstance(made, ResourceClaim)
    assert made.metadata.generate_name == "team-gpu-"
    assert made.metadata.annotations[POD_CLAIM_NAME_ANNOTATION] == "gpu"
    assert made.metadata.finalizers == (FINALIZER,)
    owner = made.metadata.owner_references[0]
    assert (owner.api_version, owner.kind, owner.controller) == ("scheduling.k8s.io/v1beta1", "PodGroup", True)
    assert isinstance(make_claim(of, entry, None, ON), Problem)
    # An orphan with the right owner and annotation is used, one of another group is not.
    assert group_plan.find_generated(of, "gpu", (group_claim(),)) == "ours"
    assert group_plan.find_generated(of, "gpu", (group_claim(uid="other"),)) is None
    recorded = group(ENTRY, named={"gpu": "ours"})
    assert not group_plan.entries_without_claim(recorded, {"ours": group_claim()}.get)
    assert group_plan.entries_without_claim(recorded, {"ours": group_claim(uid="other")}.get)
    deleted = group(ENTRY, deletionTimestamp="2026-01-01T00:00:00Z")
    assert not group_plan.entries_without_claim(deleted, lambda _: None)
    patch = group_plan.status_patch(of, {"gpu": "ours"})
    assert patch["status"] == {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "ours"}]}
    assert patch["metadata"]["resourceVersion"] == "3"


@pytest.mark.behaviour("GW-43", "N-131")
def test_whose_claim_it_is() -> None:
    named = group_claim(users=(user(),), allocated=True)
    assert is_for_pod(named, member())
    assert is_reserved_for(named, member())
    assert not is_for_pod(named, pod())
    assert not is_reserved_for(named, pod())
    assert not is_reserved_for(group_claim(users=(user(name="other"),)), member())
    text = "ResourceClaim team/x was not created for Pod team/pod (neither Pod nor PodGroup team is the owner)"
    assert not_created_for("x", member()) == text
    # The node agent asks the same before it prepares a claim.
    wanted = PodClaim("gpu", "ours", owned=True)
    assert check_usable(member(), wanted, named).uid == UID(named.metadata.uid or "")
    with pytest.raises(ClaimError, match="is not allowed to use"):
        check_usable(member(), wanted, group_claim())
    with pytest.raises(ClaimError, match="neither Pod nor PodGroup team is the owner"):
        check_usable(member(), wanted, claim("ours", owner="other"))


@pytest.mark.behaviour("GW-45", "GW-47", "N-134", "N-130")
def test_the_reservation_of_a_group_ends_with_the_group() -> None:
    held = group_claim(allocated=True, protected=True, users=(user(),))

    def nobody(_: str) -> Any:
        return None

    assert plan_claim(held, nobody, lambda _: False) == ClaimPlan()
    assert not claim_needs_work(held, nobody, lambda _: False)
    assert claim_needs_work(held, nobody, lambda _: False, lambda _: True)
    plan = plan_claim(held, nobody, lambda _: False, lambda _: True)
    assert plan.remove_finalizer
    assert plan.status is not None
    assert plan.status.allocation is None
    # Other users keep it.
    shared = group_claim(allocated=True, protected=True, users=(user(), user("other-uid", "other")))
    plan = plan_claim(shared, nobody, lambda _: False, lambda item: item.uid == "group-uid")
    assert plan.status is not None
    assert [item.uid for item in plan.status.reserved_for] == ["other-uid"]
