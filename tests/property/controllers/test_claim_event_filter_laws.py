"""The event filters of the claim controller skip exactly the events after which nothing would be done."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.pod_claims import FINALIZER, is_pod_done, needs_no_claims
from dray.api.types.core_v1 import Pod, PodResourceClaim, PodResourceClaimStatus, PodSpec, PodStatus
from dray.api.types.meta_v1 import ObjectMeta, OwnerReference
from dray.api.types.resource_v1 import (
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dray.controllers.resource_claim import plan

THEN = datetime(2026, 1, 1, tzinfo=UTC)
# Names and uids of Pods; two have the same name, one after the other.
PODS = st.sampled_from([("a", "a1"), ("a", "a2"), ("b", "b1")])


def owner(kind: str, name: str, uid: str, *, controller: bool) -> OwnerReference:
    return OwnerReference(api_version="v1", kind=kind, name=name, uid=uid, controller=controller)


def user(resource: str, name: str, uid: str) -> ResourceClaimConsumerReference:
    return ResourceClaimConsumerReference(resource=resource, name=name, uid=uid)


owners = st.one_of(
    st.builds(lambda pod, controller: owner("Pod", *pod, controller=controller), PODS, st.booleans()),
    st.just(owner("Job", "a", "j1", controller=True)),
)
users = st.one_of(st.builds(lambda pod: user("pods", *pod), PODS), st.just(user("widgets", "a", "w1")))
stamps = st.sampled_from([None, THEN])


@st.composite
def claims(draw: st.DrawFn) -> ResourceClaim:
    """A claim named `claim` with any mix of owners, users and ends."""
    return ResourceClaim(
        metadata=ObjectMeta(
            name="claim",
            namespace="n",
            owner_references=tuple(draw(st.lists(owners, max_size=2))),
            finalizers=draw(st.sampled_from([(), (FINALIZER,), ("other/one",)])),
            deletion_timestamp=draw(stamps),
        ),
        status=ResourceClaimStatus(
            allocation=draw(st.sampled_from([None, AllocationResult()])),
            reserved_for=tuple(draw(st.lists(users, max_size=2))),
        ),
    )


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """A Pod that names `claim`, by itself or as generated for it, or not at all."""
    generated = PodResourceClaim(name="e", resource_claim_template_name="t")
    entry = draw(st.sampled_from([None, generated, PodResourceClaim(name="e", resource_claim_name="claim")]))
    named = draw(st.sampled_from([(), (PodResourceClaimStatus(name="e", resource_claim_name="claim"),)]))
    name, uid = draw(PODS)
    return Pod(
        metadata=ObjectMeta(name=name, namespace="n", uid=uid, deletion_timestamp=draw(stamps)),
        spec=PodSpec(
            resource_claims=(entry,) if entry is not None else (), node_name=draw(st.sampled_from([None, "node"]))
        ),
        status=PodStatus(phase=draw(st.sampled_from(["Running", "Failed"])), resource_claim_statuses=named),
    )


@settings(max_examples=500, deadline=None)
@given(claim=claims(), known=st.lists(pods(), max_size=2), deleted=st.sets(st.sampled_from(["a1", "a2", "b1"])))
def test_a_claim_needs_work_when_something_would_be_asked_or_written(
    claim: ResourceClaim, known: list[Pod], deleted: set[str]
) -> None:
    find = {pod.metadata.name or "": pod for pod in known}.get
    is_deleted = deleted.__contains__
    asked = plan.pods_to_confirm(claim, find, is_deleted)
    written = plan.plan_claim(claim, find, is_deleted) != plan.KEEP_CLAIM
    assert plan.claim_needs_work(claim, find, is_deleted) == (bool(asked) or written)


@settings(max_examples=100, deadline=None)
@given(pod=pods())
def test_a_pod_that_is_done_or_being_deleted_needs_no_claims(pod: Pod) -> None:
    assert needs_no_claims(pod) == (is_pod_done(pod) or pod.metadata.deletion_timestamp is not None)


@settings(max_examples=500, deadline=None)
@given(old=claims(), new=claims(), same_owners=st.booleans(), pod=pods())
def test_a_change_of_a_claim_that_is_no_news_gives_no_pod_work(
    old: ResourceClaim, new: ResourceClaim, same_owners: bool, pod: Pod
) -> None:
    if same_owners:
        metadata = msgspec.structs.replace(new.metadata, owner_references=old.metadata.owner_references)
        new = msgspec.structs.replace(new, metadata=metadata)
    before = plan.pod_needs_work(pod, {"claim": old}.get)
    after = plan.pod_needs_work(pod, {"claim": new}.get)
    if after and not before:
        assert plan.affects_pods(old, new)
        made_for = (pod.metadata.name or "") in plan.owning_pod_names(old, new)
        shared = [key.name for key in plan.shared_claims_of(pod)]
        assert (made_for and plan.is_named_in_status(pod, "claim")) or "claim" in shared
