"""Recordings: what is written is read again, the state at a moment, and replays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.scheduler.config import SchedulerConfig
from dray.scheduler.named_profiles import NAMED_PROFILES
from dray.sim.recording import (
    ADDED,
    DELETED,
    INITIAL,
    MODIFIED,
    Recording,
    change_line,
    header_line,
    read_recording,
)
from dray.sim.replay import ReplayResult, inputs, replay
from dray.sim.snapshot import SnapshotError
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

START = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)


def plain(name: str, uid: str, **status: object) -> Document:
    """A Pod without claims."""
    return {**pod(name), "metadata": {"name": name, "namespace": "default", "uid": uid}, "status": status}


def on(document: Document, node_name: str) -> Document:
    return {**document, "spec": {**document["spec"], "nodeName": node_name}}


def lines() -> Iterator[str]:
    """Two nodes with one device each; a Pod on the first one ends when another has waited for two seconds."""
    first = plain("first", "u1")
    yield header_line(START)
    for document in (
        node("a"),
        node("b"),
        device_class("gpu", f'device.driver == "{GPU}"'),
        resource_slice("a", GPU, device("gpu-0"), nodeName="a"),
    ):
        yield change_line(0, INITIAL, document)
    yield change_line(1.0, ADDED, first)
    yield change_line(1.1, MODIFIED, on(first, "b"))
    yield change_line(3.0, MODIFIED, on({**first, "status": {"phase": "Succeeded"}}, "b"))
    yield change_line(4.0, DELETED, on(first, "b"))


def run(recording: Recording, profile: str = "spread") -> ReplayResult:
    config = SchedulerConfig(profiles=(NAMED_PROFILES[profile],))
    return replay(recording, config, FeatureGates(), lambda _done, _of, _what: None)


def test_a_recording_is_read_as_it_was_written() -> None:
    found = read_recording(lines())
    assert (found.start, found.seconds, len(found.initial)) == (START, 4.0, 4)
    assert [(item.seconds, item.type) for item in found.changes] == [
        (1.0, ADDED),
        (1.1, MODIFIED),
        (3.0, MODIFIED),
        (4.0, DELETED),
    ]


def test_the_state_at_a_moment() -> None:
    found = read_recording(lines())

    def pods(seconds: float) -> list[str]:
        return [item["spec"].get("nodeName", "") for item in found.documents_at(seconds) if item["kind"] == "Pod"]

    assert (pods(0.5), pods(1.0), pods(2.0), pods(4.0)) == ([], [""], ["b"], [])


def test_a_recording_that_ends_in_the_middle_of_a_line_is_read_up_to_there() -> None:
    text = "".join(lines())
    found = read_recording(text[:-20].splitlines(keepends=True))
    assert found.seconds == 3.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a recording of `dray record`"),
        ("{}\n", "not a recording of `dray record`"),
        (
            json.dumps({"apiVersion": "v1", "kind": "List", "start": "2026-01-01T00:00:00Z"}) + "\n",
            "this is a List of v1",
        ),
        (header_line(START) + "{}\n", "line 2 is no change of an object"),
        (header_line(START) + change_line(1, "MOVED", node("a")), "line 2 has the type 'MOVED'"),
    ],
)
def test_what_is_no_recording_is_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(SnapshotError) as error:
        read_recording(text.splitlines(keepends=True))
    assert str(error.value).startswith(message)


def test_input_is_what_users_did_and_not_what_the_scheduler_wrote() -> None:
    found = inputs(read_recording(lines()))
    assert [(item.seconds, item.type) for item in found] == [(1.0, ADDED), (3.0, MODIFIED), (4.0, DELETED)]
    assert "nodeName" not in found[0].object["spec"]


def test_claims_that_were_made_for_pods_are_no_input() -> None:
    own = {**claim("made"), "metadata": {"name": "made", "uid": "c", "ownerReferences": [{"kind": "Pod", "uid": "u"}]}}
    text = [header_line(START), change_line(1, ADDED, own), change_line(1, ADDED, claim("users"))]
    assert [item.object["metadata"]["name"] for item in inputs(read_recording(text))] == ["users"]


def test_a_replay_gives_the_same_result_every_time_and_another_policy_another() -> None:
    """With `spread` the second Pod goes to the other node, with `pack` to the same one."""
    text = [*list(lines())[:5]]
    for number, name in enumerate(("x", "y"), 1):
        made = plain(name, f"u{number}")
        text += [change_line(number, ADDED, made), change_line(number + 0.5, MODIFIED, on(made, "a"))]
    recording = read_recording(text)
    first = run(recording)
    assert first == run(recording)
    assert first.refused == ()
    assert sorted(item.replayed.node for item in first.pods) == ["a", "b"]
    assert [item.recorded.node for item in first.pods] == ["a", "a"]
    assert [item.recorded.wait_seconds for item in first.pods] == [0.5, 0.5]
    packed = run(recording, "pack")
    assert len({item.replayed.node for item in packed.pods}) == 1


def test_a_replay_allocates_devices_again_when_they_are_free() -> None:
    """Two Pods want the only device; the second one gets it when the first one has ended."""
    text = [*list(lines())[:5], change_line(0.5, ADDED, template("gpu", exactly(1)))]
    text.insert(1, change_line(0, INITIAL, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}))
    one, two = waiting_pod("one", "gpu"), waiting_pod("two", "gpu")
    text += [
        change_line(1.0, ADDED, one),
        change_line(2.0, ADDED, two),
        change_line(5.0, MODIFIED, on({**one, "status": {"phase": "Succeeded"}}, "a")),
    ]
    result = run(read_recording(text))
    assert result.refused == ()
    found = {item.name: item.replayed for item in result.pods}
    assert (found["one"].node, found["two"].node) == ("a", "a")
    assert found["two"].wait_seconds is not None
    assert found["two"].wait_seconds >= 3.0


def with_volume(name: str, uid: str) -> Document:
    made = plain(name, uid)
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    return {**made, "spec": {**made["spec"], "volumes": volumes}}


def volume_claim(volume: str = "") -> Document:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "s"}
    metadata = {"name": "data", "namespace": "default", "uid": "data"}
    bound = {"volumeName": volume} if volume else {}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec | bound}


def test_a_replayed_pod_waits_for_its_volume_claim_as_long_as_the_recorded_one() -> None:
    text = [*list(lines())[:5], change_line(1.0, ADDED, with_volume("p", "u1"))]
    (missing,) = run(read_recording(text)).pods
    assert missing.replayed.node == ""
    text += [change_line(3.0, ADDED, volume_claim()), change_line(6.0, MODIFIED, volume_claim("pv"))]
    (bound,) = run(read_recording(text)).pods
    assert bound.replayed.node
    assert bound.replayed.wait_seconds is not None
    assert bound.replayed.wait_seconds >= 5.0


def test_a_recording_without_volume_claims_is_replayed_as_if_they_were_bound() -> None:
    """Who may not list them records Pods alone."""
    made = with_volume("p", "u1")
    text = [*list(lines())[:5], change_line(1.0, ADDED, made), change_line(1.5, MODIFIED, on(made, "a"))]
    (found,) = run(read_recording(text)).pods
    assert found.replayed.node


@pytest.mark.parametrize("moment", [INITIAL, ADDED])
def test_pods_of_a_replica_set_are_spread_as_they_were(moment: str) -> None:
    """The scheduler spreads them by the selector of their owner, over nodes of any size."""
    labels = {"app": "web"}
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web", "namespace": "default", "uid": "rs", "ownerReferences": []},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": plain("x", "x")["spec"]},
        },
    }
    small = node("a")
    small["status"]["allocatable"] = {"cpu": "1", "memory": "1Gi", "pods": "110"}
    text = [header_line(START), change_line(0, INITIAL, small), change_line(0, INITIAL, node("b"))]
    text.append(change_line(0 if moment == INITIAL else 0.5, moment, owner))
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}
    for number in range(4):
        made = plain(f"web-{number}", f"u{number}")
        made["metadata"] |= {"labels": labels, "ownerReferences": [reference]}
        made["spec"] = {**made["spec"], "containers": [{**made["spec"]["containers"][0], "resources": REQUESTS}]}
        text.append(change_line(1 + number, ADDED, made))
    result = run(read_recording(text))
    assert result.refused == ()
    assert sorted(item.replayed.node for item in result.pods) == ["a", "a", "b", "b"]


REQUESTS = {"requests": {"cpu": "200m"}}


def test_a_pod_on_a_node_has_its_devices_until_it_is_gone() -> None:
    text = [*list(lines())[:5], change_line(0.5, ADDED, template("gpu", exactly(1)))]
    text.insert(1, change_line(0, INITIAL, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}))
    one, two = waiting_pod("one", "gpu"), waiting_pod("two", "gpu")
    going = on({**one, "metadata": {**one["metadata"], "deletionTimestamp": "2026-01-02T03:04:38Z"}}, "a")
    text += [
        change_line(1.0, ADDED, one),
        change_line(1.5, MODIFIED, on(one, "a")),
        change_line(2.0, ADDED, two),
        change_line(3.0, MODIFIED, going),
        change_line(9.0, DELETED, going),
    ]
    found = {item.name: item.replayed for item in run(read_recording(text)).pods}
    assert found["two"].wait_seconds is not None
    assert found["two"].wait_seconds >= 7.0
