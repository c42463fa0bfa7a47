"""Facts about Pods, whose they are, what they are called, and what the informer has not delivered yet."""

from __future__ import annotations

import random

import msgspec
import pytest

from dray.api.document import GroupVersionKind, NamespacedName
from dray.api.selectors import LabelSelector
from dray.api.types.core_v1 import Container, Pod, PodSpec, PodTemplateSpec
from dray.api.types.meta_v1 import ObjectMeta
from dray.controllers.pod_control import pod_status, pod_templates
from dray.controllers.pod_control.expectations import CONFIRM_SECONDS, EXPIRY_SECONDS, PodExpectations
from dray.controllers.pod_control.ownership import Owner, adoption_patch, match_dependents, orphan_index, release_patch
from tests.unit.controllers.pod_control.pods import NOW, pod

KIND = GroupVersionKind("apps", "v1", "ReplicaSet")
WEB = {"app": "web"}


def owner(*, deleting: bool = False) -> Owner:
    metadata = ObjectMeta(name="web", namespace="team", uid="u1", deletion_timestamp=NOW if deleting else None)
    return Owner(KIND, metadata, LabelSelector.from_labels(WEB))


@pytest.mark.parametrize(
    ("item", "active", "terminating", "ready"),
    [
        (pod(), True, False, False),
        (pod(ready_for=1.0), True, False, True),
        (pod(phase="Succeeded"), False, False, False),
        (pod(phase="Failed"), False, False, False),
        (pod(deleting=True), False, True, False),
        (pod(deleting=True, phase="Failed"), False, False, False),
    ],
)
def test_what_counts(item: Pod, active: bool, terminating: bool, ready: bool) -> None:
    assert (pod_status.is_active(item), pod_status.is_terminating(item), pod_status.is_ready(item)) == (
        active,
        terminating,
        ready,
    )


@pytest.mark.parametrize(
    ("item", "min_ready", "wait"),
    [
        (pod(), 0, None),
        (pod(ready_for=0.0), 0, 0.0),
        (pod(ready_for=3.0), 10, 7.0),
        (pod(ready_for=10.0), 10, 0.0),
    ],
)
def test_available(item: Pod, min_ready: int, wait: float | None) -> None:
    assert pod_status.available_in_seconds(item, min_ready, NOW) == wait
    assert pod_status.is_available(item, min_ready, NOW) is (wait == 0.0)


def test_the_next_to_become_available() -> None:
    pods = [pod(), pod(ready_for=3.0), pod(ready_for=8.0), pod(ready_for=20.0)]
    assert pod_status.next_available_seconds(pods, 10, NOW) == 2.0
    assert pod_status.next_available_seconds(pods, 0, NOW) is None
    assert pod_status.next_available_seconds(pods[3:], 10, NOW) is None


def test_belongings() -> None:
    mine, stray = pod("mine", labels=WEB, owner="u1"), pod("stray", labels={"app": "x"}, owner="u1")
    found, other = pod("found", labels=WEB), pod("other", labels={"app": "x"})
    dying = pod("dying", labels=WEB, deleting=True)
    result = match_dependents(owner(), [mine, stray], [found, other, dying])
    assert (result.owned, result.adopt, result.release) == ((mine,), (found,), (stray,))
    leaving = match_dependents(owner(deleting=True), [mine, stray], [found])
    assert (leaving.owned, leaving.adopt, leaving.release) == ((mine, stray), (), ())
    assert match_dependents(owner(), [pod("namesake", labels=WEB, owner="u2")], []).owned == ()
    assert (orphan_index(found), orphan_index(mine)) == (("team",), ())


def test_patches_name_the_uid() -> None:
    reference = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web",
        "uid": "u1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    item = pod("p")
    assert adoption_patch(owner(), item) == {"metadata": {"uid": "uid-p", "ownerReferences": [reference]}}
    assert release_patch(owner(), item, finalizer="f") == {
        "metadata": {
            "uid": "uid-p",
            "ownerReferences": [{"$patch": "delete", "uid": "u1"}],
            "$deleteFromPrimitiveList/finalizers": ["f"],
        }
    }


def template(image: str = "i", **labels: str) -> PodTemplateSpec:
    return PodTemplateSpec(
        metadata=ObjectMeta(labels=labels, annotations={"a": "1"}, finalizers=("f/f",)),
        spec=PodSpec(containers=(Container(name="c", image=image),)),
    )


def test_a_pod_from_a_template() -> None:
    made = pod_templates.make_pod(owner(), template(app="web"))
    assert made.metadata.generate_name == "web-"
    assert (made.metadata.labels, made.metadata.annotations) == (WEB, {"a": "1"})
    assert made.metadata.finalizers == ("f/f",)
    assert made.metadata.owner_references[0].uid == "u1"
    given = pod_templates.with_random_name(made, random.Random(1))
    name = given.metadata.name or ""
    assert name.startswith("web-")
    assert len(name) == 9
    assert set(name[4:]) <= set(pod_templates.ALPHABET)
    assert pod_templates.with_name(made, "web-x").metadata.generate_name is None


@pytest.mark.parametrize(("name", "prefix"), [("web", "web-"), ("n" * 252, "n" * 252 + "-"), ("n" * 253, "n" * 253)])
def test_prefix(name: str, prefix: str) -> None:
    assert pod_templates.pod_name_prefix(name) == prefix


def test_a_long_prefix_leaves_room_for_the_suffix() -> None:
    made = Pod(metadata=ObjectMeta(generate_name="n" * 100 + "-"))
    assert len(pod_templates.with_random_name(made, random.Random(1)).metadata.name or "") == 63


def test_hash() -> None:
    first = pod_templates.template_hash(template(app="web"), None)
    assert set(first) <= set(pod_templates.ALPHABET)
    assert 1 <= len(first) <= 10
    assert pod_templates.template_hash(template(app="web"), None) == first
    others = {
        pod_templates.template_hash(template("j", app="web"), None),
        pod_templates.template_hash(template(app="x"), None),
        pod_templates.template_hash(template(app="web"), 0),
        pod_templates.template_hash(template(app="web"), 1),
    }
    assert len(others | {first}) == 5
    # Kept by name in the cluster: it must not change from one version to the next.
    assert first == "897cf6f69"


def observe(expectations: PodExpectations, old: Pod | None, new: Pod | None) -> None:
    """Handle an informer event, as `PodControl` has it handled."""
    if expectations.creations:
        expectations.observe_creation(old, new)
    if expectations.deletions:
        expectations.observe_deletion(old, new)


class TestUnseen:
    """What was written stays until the informer tells of it."""

    key = NamespacedName("team", "p")

    def view(self, expectations: PodExpectations, *cached: Pod, now: float = 0.0) -> list[tuple[str, bool]]:
        pods = expectations.apply("u1", cached, now, NOW)
        return [(item.metadata.name or "", item.metadata.deletion_timestamp is not None) for item in pods]

    def test_a_creation_is_expected_until_it_is_observed(self) -> None:
        expectations = PodExpectations()
        expectations.expect_creation("u1", self.key, None, 0.0)
        assert self.view(expectations) == []
        expectations.created(pod())
        assert self.view(expectations) == [("p", False)]
        assert expectations.unanswered("u1") == []
        assert self.view(expectations, pod()) == [("p", False)]
        observe(expectations, None, pod())
        assert self.view(expectations) == []

    def test_the_informer_may_be_faster_than_the_answer(self) -> None:
        expectations = PodExpectations()
        expectations.expect_creation("u1", self.key, None, 0.0)
        observe(expectations, None, pod())
        observe(expectations, pod(), None)
        expectations.created(pod())
        assert self.view(expectations) == []

    def test_lost_and_refused(self) -> None:
        expectations = PodExpectations()
        expectations.expect_creation("u1", self.key, "slot", 0.0)
        assert expectations.unanswered("u1") == [(self.key, "slot")]
        expectations.creation_failed(self.key)
        assert expectations.unanswered("u1") == []

    def test_a_rejection_says_nothing_of_an_earlier_request_without_an_answer(self) -> None:
        expectations = PodExpectations()
        expectations.expect_creation("u1", self.key, "slot", 0.0)
        expectations.expect_creation("u1", self.key, "slot", 1.0)
        expectations.creation_rejected(self.key)
        assert expectations.unanswered("u1") == [(self.key, "slot")]
        expectations.apply("u1", (), EXPIRY_SECONDS + 2, NOW)
        assert expectations.unanswered("u1") == []
        expectations.expect_creation("u1", self.key, "slot", 0.0)
        expectations.creation_rejected(self.key)
        assert expectations.unanswered("u1") == []

    def test_an_event_from_before_the_pod_was_found_does_not_take_it_back(self) -> None:
        """A repeated creation found the Pod finished; the informer then delivers how it began."""
        began, finished = (
            msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=version))
            for item, version in ((pod(phase="Pending"), "3"), (pod(phase="Succeeded"), "7"))
        )
        expectations = PodExpectations()
        expectations.expect_creation("u1", self.key, None, 0.0)
        expectations.created(finished)
        observe(expectations, None, began)
        assert expectations.apply("u1", (began,), 0.0, NOW) == (finished,)
        observe(expectations, began, finished)
        assert not expectations.pending("u1")

    def test_events_of_an_earlier_pod_of_that_name_do_not_take_back_the_later_one(self) -> None:
        """The first Pod was deleted unobserved, and its name was used again."""
        first, second = (
            msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=version))
            for item, version in ((pod(uid="first"), "3"), (pod(uid="second"), "7"))
        )
        expectations = PodExpectations()
        expectations.expect_creation("u1", self.key, None, 0.0)
        expectations.expect_creation("u1", self.key, None, 1.0)
        expectations.created(second)
        observe(expectations, None, first)
        observe(expectations, first, None)
        assert expectations.apply("u1", (), 0.0, NOW) == (second,)
        observe(expectations, None, second)
        assert not expectations.pending("u1")
        expectations.expect_creation("u1", self.key, None, 0.0)
        expectations.created(second)
        observe(expectations, second, None)
        assert not expectations.pending("u1")

    def test_unobserved_objects_are_confirmed_by_live_reads(self) -> None:
        expectations = PodExpectations()
        expectations.expect_creation("u1", self.key, None, 0.0)
        assert expectations.pending("u1")
        assert expectations.to_confirm("u1", 100.0) == []
        expectations.created(pod())
        assert expectations.to_confirm("u1", CONFIRM_SECONDS - 1) == []
        assert expectations.to_confirm("u1", CONFIRM_SECONDS) == [self.key]
        observe(expectations, None, pod())
        assert not expectations.pending("u1")

    def test_creations_expire(self) -> None:
        expectations = PodExpectations()
        expectations.expect_creation("u1", self.key, None, 0.0)
        expectations.created(pod())
        assert self.view(expectations, now=EXPIRY_SECONDS) == [("p", False)]
        assert self.view(expectations, now=EXPIRY_SECONDS + 1) == []

    def test_a_deletion_is_expected_until_it_is_observed(self) -> None:
        expectations = PodExpectations()
        expectations.expect_deletion("uid-p", 0.0)
        assert self.view(expectations, pod(), pod("q")) == [("p", True), ("q", False)]
        observe(expectations, pod(), pod(ready_for=1.0))
        assert self.view(expectations, pod()) == [("p", True)]
        assert self.view(expectations, pod(), now=EXPIRY_SECONDS + 1) == [("p", False)]

    @pytest.mark.parametrize("observed", [None, pod(deleting=True), pod(uid="another")])
    def test_the_end_of_a_deletion(self, observed: Pod | None) -> None:
        expectations = PodExpectations()
        expectations.expect_deletion("uid-p", 0.0)
        observe(expectations, pod(), observed)
        assert self.view(expectations, pod()) == [("p", False)]

    def test_a_failed_deletion_and_a_gone_owner(self) -> None:
        expectations = PodExpectations()
        expectations.expect_deletion("uid-p", 0.0)
        expectations.deletion_failed("uid-p")
        expectations.expect_creation("u1", self.key, None, 0.0)
        expectations.delete("u1")
        assert self.view(expectations, pod()) == [("p", False)]
        assert expectations.unanswered("u1") == []
