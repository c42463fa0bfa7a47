"""What the collector takes from objects: of metadata alone and of whole objects the same; and whom it gives time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dray.api.document import UID, Document, GroupVersion
from dray.client.codec import decode
from dray.client.in_process import in_process_client
from dray.client.informer import Informer, Selection
from dray.client.interface import unstructured
from dray.client.objects import key_of, resource_version_of, uid_of
from dray.client.resources import PODS
from dray.client.shared_informers import SharedInformer
from dray.controllers.garbage_collector.deadline_set import DeadlineSet
from dray.controllers.garbage_collector.graph import Graph, observe
from dray.controllers.garbage_collector.monitors import (
    CompactMetadata,
    Monitor,
    SharedMonitor,
    full_metadata,
    reduce_metadata,
)
from dray.runtime.system import SystemClock
from tests.fake_local_server import FakeLocalServer

METADATA = unstructured(GroupVersion("", "v1"), "pods", "Pod", metadata_only=True)
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u-o", "blockOwnerDeletion": True}
UNIQUE = "0a1b2c3d-0000-4000-8000-0123456789ab"
WHEN = "2026-01-01T00:00:00Z"


def pod(version: str = "1", **metadata: Any) -> Document:
    return {"metadata": {"name": "a", "namespace": "default", "uid": "u-a", "resourceVersion": version, **metadata}}


def short(version: str = "1", **metadata: Any) -> Document:
    """One whose uid and version are such that little is kept of it."""
    return pod(version, uid=UNIQUE, **metadata)


def monitor(kind: type[Monitor]) -> Monitor:
    informer: Informer[Any] = Informer(Selection(), random.Random(1))
    loop = SharedInformer(in_process_client(FakeLocalServer(), user="test"), PODS, informer, SystemClock())
    return kind(METADATA.group_resource, METADATA, loop, 0.0)


def cached(kind: type[Monitor], document: Document) -> Any:
    """What the monitor's informer tells of."""
    return decode(PODS, document) if kind is SharedMonitor else reduce_metadata(METADATA.group_resource, document)


@pytest.mark.parametrize("kind", [Monitor, SharedMonitor])
@pytest.mark.parametrize(
    "document",
    [
        pod(),
        short("17"),
        pod(ownerReferences=[OWNER, {**OWNER, "uid": "u-p", "controller": True, "blockOwnerDeletion": False}]),
        pod(finalizers=["foregroundDeletion", "example.com/x"], deletionTimestamp=WHEN),
    ],
)
async def test_what_is_taken_from_an_object(kind: type[Monitor], document: Document) -> None:
    assert monitor(kind).observe(cached(kind, document)) == observe(METADATA.group_resource, document)


@pytest.mark.parametrize("kind", [Monitor, SharedMonitor])
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(pod("1"), pod("2"), False, id="another version"),
        pytest.param(short("1"), short("2"), False, id="another version, little kept"),
        pytest.param(short("1"), short("2", finalizers=[]), False, id="empty list"),
        pytest.param(short("1"), short("2", finalizers=["x/y"]), True, id="a finalizer, little kept"),
        pytest.param(short("1", finalizers=["x/y"]), short("2"), True, id="no finalizer, little kept"),
        pytest.param(short("1", ownerReferences=[OWNER]), short("2"), True, id="no owner, little kept"),
        pytest.param(short("1"), short("2", deletionTimestamp=WHEN), True, id="being deleted, little kept"),
        pytest.param(pod("1", labels={"a": "b"}), pod("2"), False, id="labels"),
        pytest.param(pod("1", ownerReferences=[OWNER]), pod("2", ownerReferences=[OWNER]), False, id="same owner"),
        pytest.param(pod("1"), pod("2", ownerReferences=[OWNER]), True, id="an owner"),
        pytest.param(
            pod("1", ownerReferences=[OWNER]),
            pod("2", ownerReferences=[{**OWNER, "blockOwnerDeletion": False}]),
            True,
            id="not blocking",
        ),
        pytest.param(pod("1"), pod("2", finalizers=["x/y"]), True, id="a finalizer"),
        pytest.param(pod("1"), pod("2", deletionTimestamp=WHEN), True, id="being deleted"),
    ],
)
async def test_what_is_relevant_change(kind: type[Monitor], old: Document, new: Document, expected: bool) -> None:
    assert monitor(kind).is_relevant_change(cached(kind, old), cached(kind, new)) is expected


@pytest.mark.parametrize("kind", [Monitor, SharedMonitor])
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(short(labels={"a": "b"}), False, id="neither"),
        pytest.param(short(ownerReferences=[]), False, id="empty list"),
        pytest.param(short(ownerReferences=[OWNER]), True, id="owned"),
        pytest.param(short(deletionTimestamp=WHEN), True, id="being deleted"),
    ],
)
async def test_which_new_objects_the_graph_stores(kind: type[Monitor], document: Document, expected: bool) -> None:
    watched, obj = monitor(kind), cached(kind, document)
    assert watched.may_be_dependent(obj) is expected
    graph = Graph()
    graph.put(watched.observe(obj))
    assert bool(len(graph)) is expected


@pytest.mark.parametrize(
    ("document", "little"),
    [
        pytest.param(short(), True, id="nothing of interest"),
        pytest.param(short(labels={"a": "b"}, ownerReferences=[]), True, id="no owners, empty list"),
        pytest.param(short(ownerReferences=[OWNER]), False, id="owned"),
        pytest.param(short(finalizers=["x/y"]), False, id="held"),
        pytest.param(short(deletionTimestamp=WHEN), False, id="being deleted"),
        pytest.param(short("0"), True, id="version 0"),
        pytest.param(short("007"), False, id="leading zeros"),
        pytest.param(short(""), False, id="no version"),
        pytest.param(short("x1"), False, id="a version that is no number"),
        pytest.param(short("\u0661"), False, id="digits of another script"),
        pytest.param(pod(), False, id="another sort of uid"),
        pytest.param(pod(uid=UNIQUE.upper()), False, id="upper case"),
        pytest.param(pod(uid=UNIQUE.replace("-", "+")), False, id="no dashes"),
        pytest.param(pod(uid="0" + UNIQUE[:-1]), False, id="dashes elsewhere"),
        pytest.param({}, False, id="no metadata"),
    ],
)
def test_little_is_kept_of_most_objects_and_nothing_is_lost(document: Document, little: bool) -> None:
    kept = reduce_metadata(METADATA.group_resource, document)
    assert isinstance(kept, CompactMetadata) is little
    assert full_metadata(METADATA.group_resource, kept) == observe(METADATA.group_resource, document)
    whole = document if document else {"metadata": {}}
    for read in (key_of, uid_of, resource_version_of):
        assert read(kept) == read(whole)


def test_all_deadlines_are_equal_and_fire_once() -> None:
    deadlines = DeadlineSet(1.0)
    assert deadlines.next_seconds(0.0) is None
    assert deadlines.add(UID("a"), 0.0)
    assert not deadlines.add(UID("b"), 0.25)
    # Once begun it is not given again.
    assert not deadlines.add(UID("a"), 0.5)
    assert deadlines.next_seconds(0.5) == 0.5
    assert deadlines.pop_expired(0.5) == ()
    assert deadlines.pop_expired(1.0) == ("a",)
    assert deadlines.next_seconds(1.0) == 0.25
    assert deadlines.next_seconds(9.0) == 0.0
    assert deadlines.pop_expired(9.0) == ("b",)
    assert (deadlines.pop_expired(9.0), deadlines.next_seconds(9.0)) == ((), None)


def test_a_removed_deadline_does_not_fire() -> None:
    deadlines = DeadlineSet(1.0)
    deadlines.add(UID("a"), 0.0)
    deadlines.add(UID("b"), 0.0)
    deadlines.discard(UID("a"))
    deadlines.discard(UID("unknown"))
    assert deadlines.pop_expired(1.0) == ("b",)
