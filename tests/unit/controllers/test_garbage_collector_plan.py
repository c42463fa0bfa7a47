"""Garbage collection's decisions: rows of facts and the step they call for."""

from __future__ import annotations

import pytest

from dray.api.document import UID, GroupResource
from dray.client.interface import PropagationPolicy
from dray.client.objects import OwnerReference
from dray.controllers.garbage_collector.graph import FOREGROUND, ORPHAN, Graph, Node, Observed
from dray.controllers.garbage_collector.plan import (
    CheckDependents,
    DeleteObject,
    DropOwners,
    FinishForeground,
    Nothing,
    OrphanDependents,
    OwnerState,
    Step,
    StopBlocking,
    patch_unblocking,
    patch_without_finalizer,
    patch_without_owners,
    plan_being_deleted,
    plan_owned,
)

PODS = GroupResource("", "pods")
PRESENT, ABSENT, WAITING = OwnerState.PRESENT, OwnerState.ABSENT, OwnerState.DELETING_DEPENDENTS
BACKGROUND = PropagationPolicy.BACKGROUND


def owner(uid: str, *, block: bool = True) -> OwnerReference:
    return OwnerReference("v1", "Pod", uid, UID(uid), block_owner_deletion=block)


def obj(
    uid: str, *owners: str, finalizers: tuple[str, ...] = (), deleted: bool = False, block: bool = True
) -> Observed:
    references = tuple(owner(item, block=block) for item in owners)
    return Observed(UID(uid), PODS, "default", uid, references, finalizers, deleted, "1")


def node(observed: Observed, *dependents: Observed) -> Node:
    result = Node(observed.uid, observed)
    result.dependents = {item.uid: Node(item.uid, item) for item in dependents}
    return result


FOREGROUND_CHILD = obj("child", "a", finalizers=(FOREGROUND,), deleted=True)


@pytest.mark.parametrize(
    ("states", "dependents", "finalizers", "expected"),
    [
        pytest.param({}, (), (), Nothing(), id="no owners"),
        pytest.param({"x": PRESENT}, (), (), Nothing(), id="owner there"),
        pytest.param({"x": ABSENT}, (), (), DeleteObject(BACKGROUND), id="only owner gone"),
        pytest.param({"x": ABSENT, "y": ABSENT}, (), (), DeleteObject(BACKGROUND), id="all owners gone"),
        pytest.param({"x": ABSENT, "y": PRESENT}, (), (), DropOwners(frozenset({UID("x")})), id="one owner left"),
        pytest.param(
            {"x": WAITING, "y": PRESENT}, (), (), DropOwners(frozenset({UID("x")})), id="one owner waits, one stays"
        ),
        pytest.param({"x": WAITING}, (), (), DeleteObject(BACKGROUND), id="owner waits for it"),
        pytest.param(
            {"x": WAITING},
            (obj("child", "a"),),
            (),
            DeleteObject(PropagationPolicy.FOREGROUND),
            id="owner waits and it has dependents",
        ),
        pytest.param(
            {"x": WAITING},
            (FOREGROUND_CHILD,),
            (),
            DeleteObject(PropagationPolicy.FOREGROUND, unblock=True),
            id="circle of waiting",
        ),
        pytest.param(
            {"x": ABSENT}, (), (ORPHAN,), DeleteObject(PropagationPolicy.ORPHAN), id="its orphan finalizer is kept"
        ),
        pytest.param(
            {"x": ABSENT}, (), (FOREGROUND,), DeleteObject(PropagationPolicy.FOREGROUND), id="foreground is kept"
        ),
    ],
)
def test_owned(
    states: dict[str, OwnerState], dependents: tuple[Observed, ...], finalizers: tuple[str, ...], expected: Step
) -> None:
    live = obj("a", *states, finalizers=finalizers)
    by_uid = {UID(uid): state for uid, state in states.items()}
    assert plan_owned(live, by_uid, tuple(Node(item.uid, item) for item in dependents)) == expected


@pytest.mark.parametrize(
    ("finalizers", "dependents", "expected"),
    [
        pytest.param((), (), Nothing(), id="just being deleted"),
        pytest.param((FOREGROUND,), (), FinishForeground(), id="nothing to wait for"),
        pytest.param(
            (FOREGROUND,), (obj("c", "a"),), CheckDependents((UID("c"),)), id="waits for a blocking dependent"
        ),
        pytest.param((FOREGROUND,), (obj("c", "a", block=False),), FinishForeground(), id="others do not block"),
        pytest.param((FOREGROUND,), (FOREGROUND_CHILD,), CheckDependents(()), id="the dependent waits itself"),
        pytest.param((ORPHAN,), (obj("c", "a"),), OrphanDependents((UID("c"),)), id="orphans"),
    ],
)
def test_being_deleted(finalizers: tuple[str, ...], dependents: tuple[Observed, ...], expected: Step) -> None:
    live = obj("a", finalizers=finalizers, deleted=True)
    assert plan_being_deleted(live, node(live, *dependents)) == expected


def test_a_circle_of_waiting_is_opened() -> None:
    graph = Graph()
    waiting = {"finalizers": (FOREGROUND,), "deleted": True}
    for name, above in (("a", "c"), ("b", "a"), ("c", "b")):
        graph.put(obj(name, above, **waiting))  # type: ignore[arg-type]
    live = obj("a", "c", **waiting)  # type: ignore[arg-type]
    known = graph.node(UID("a"))
    assert known is not None
    assert plan_being_deleted(live, known) == StopBlocking()
    # Once one of them no longer blocks, the others wait in a line.
    graph.put(obj("b", "a", block=False, **waiting))  # type: ignore[arg-type]
    assert plan_being_deleted(live, known) == FinishForeground()


def test_a_dependent_is_looked_at_when_its_owner_goes() -> None:
    graph = Graph()
    assert graph.put(obj("a"), as_owner=True) == ()
    assert graph.put(obj("b", "a")) == ()
    assert graph.remove(UID("a")) == ("b",)


def test_a_dependent_of_an_owner_never_seen_is_looked_at() -> None:
    graph = Graph()
    assert graph.put(obj("b", "a")) == ("b",)
    # Then the owner shows up: nothing to do.
    assert graph.put(obj("a")) == ()
    assert graph.remove(UID("a")) == ("b",)


def test_a_foreground_deletion_looks_at_all_dependents_and_itself() -> None:
    graph = Graph()
    graph.put(obj("a"))
    graph.put(obj("b", "a"))
    graph.put(obj("c", "a", block=False))
    assert graph.put(obj("a", finalizers=(FOREGROUND,), deleted=True)) == ("b", "c", "a")
    # The last blocking dependent's going, or its unblocking, wakes the owner.
    assert graph.put(obj("b", "a", block=False)) == ("a", "b")
    assert graph.remove(UID("c")) == ("a",)


def test_a_changed_owner_list_is_looked_at() -> None:
    graph = Graph()
    graph.put(obj("a"))
    graph.put(obj("b", "a"))
    assert graph.put(obj("b", "z")) == ("b",)


def test_a_circle_of_owners_is_two_nodes_and_is_forgotten_whole() -> None:
    graph = Graph()
    graph.put(obj("a", "b"))
    graph.put(obj("b", "a"))
    assert len(graph) == 2
    assert graph.remove(UID("a")) == ("b",)
    assert graph.remove(UID("b")) == ()
    assert len(graph) == 0


def test_a_kind_that_is_no_longer_served_takes_its_objects_along() -> None:
    graph = Graph()
    widgets = GroupResource("example.com", "widgets")
    graph.put(Observed(UID("w"), widgets, "default", "w"), as_owner=True)
    graph.put(obj("b", "w"))
    assert graph.remove_resource(widgets) == ("b",)


def test_patches_are_bound_to_the_version_read() -> None:
    document = {
        "metadata": {
            "uid": "u",
            "resourceVersion": "7",
            "finalizers": ["orphan", "mine"],
            "ownerReferences": [{"uid": "x", "name": "x"}, {"uid": "y", "name": "y", "blockOwnerDeletion": True}],
        }
    }
    guard = {"uid": "u", "resourceVersion": "7"}
    assert patch_without_owners(document, frozenset({UID("x")})) == {
        "metadata": {**guard, "ownerReferences": [{"uid": "y", "name": "y", "blockOwnerDeletion": True}]}
    }
    assert patch_without_owners(document, frozenset({UID("x"), UID("y")})) == {
        "metadata": {**guard, "ownerReferences": None}
    }
    assert patch_without_owners(document, frozenset({UID("z")})) is None
    assert patch_without_finalizer(document, "orphan") == {"metadata": {**guard, "finalizers": ["mine"]}}
    assert patch_without_finalizer(document, "absent") is None
    unblocked = patch_unblocking(document)["metadata"]["ownerReferences"]
    assert [item["blockOwnerDeletion"] for item in unblocked] == [False, False]


def test_what_owns_nothing_and_is_owned_by_nothing_is_not_kept() -> None:
    graph = Graph()
    graph.put(obj("alone"))
    assert len(graph) == 0
    graph.put(obj("alone"), as_owner=True)
    graph.put(obj("b", "alone"))
    assert graph.is_observed(UID("alone"))
