"""What a node reports of a Pod."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.node.agent.pod.events import (
    MustFail,
    PodAdded,
    PodUpdated,
    ProbeKind,
    ProbeResultChanged,
    Rejected,
    Released,
    StartFailed,
    TimerFired,
)
from dray.node.agent.pod.status import HostInfo, pod_status
from dray.node.resource_manager import Rejection
from tests.unit.node.agent.builders import Life, at, container, pod, record

HOST = HostInfo("runc", ("10.0.0.1",))
DELETED = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}


def status(life: Life, reported: Document | None = None) -> Document:
    return pod_status(life.machine, HOST, at(life.now), reported=reported)


def conditions(document: Document) -> dict[str, tuple[str, str | None]]:
    return {item["type"]: (item["status"], item.get("reason")) for item in document["conditions"]}


def state(document: Document, name: str = "a") -> tuple[str, Any]:
    every = document["containerStatuses"] + document.get("initContainerStatuses", [])
    found = next(item for item in every if item["name"] == name)
    kind, content = next(iter(found["state"].items()))
    return kind, content.get("reason")


def test_before_anything_runs_the_pod_is_pending() -> None:
    life = Life(pod())
    life.tell(PodAdded())
    seen = status(life)
    assert seen["phase"] == "Pending"
    assert state(seen) == ("waiting", "ContainerCreating")
    assert conditions(seen) == {
        "PodReadyToStartContainers": ("False", None),
        "Initialized": ("True", None),
        "Ready": ("False", "ContainersNotReady"),
        "ContainersReady": ("False", "ContainersNotReady"),
        "PodScheduled": ("True", None),
    }


def test_a_running_pod() -> None:
    life = Life(pod())
    life.running()
    life.started(now=2.0)
    seen = status(life)
    assert seen["phase"] == "Running"
    assert seen["podIP"] == seen["hostIP"] == "10.0.0.1"
    assert seen["startTime"] == "2026-01-01T00:00:00Z"
    assert seen["containerStatuses"][0]["state"] == {"running": {"startedAt": "2026-01-01T00:00:02Z"}}
    assert seen["containerStatuses"][0]["containerID"] == "runc://a-0"
    assert conditions(seen)["Ready"] == ("True", None)


def test_init_containers_hold_the_others() -> None:
    life = Life(pod(container("a"), initContainers=[container("i1")]))
    life.running()
    life.started("i1")
    seen = status(life)
    assert seen["phase"] == "Pending"
    assert state(seen) == ("waiting", "PodInitializing")
    assert state(seen, "i1") == ("running", None)
    assert conditions(seen)["Initialized"] == ("False", "ContainersNotInitialized")
    ready = next(item for item in seen["conditions"] if item["type"] == "Initialized")
    assert ready["message"] == "containers with incomplete status: [i1]"


@pytest.mark.parametrize(
    ("code", "phase", "reason"), [(0, "Succeeded", "Completed"), (3, "Failed", "Error")], ids=["done", "failed"]
)
@pytest.mark.behaviour("SP-117")
def test_the_final_phase_waits_for_the_release(code: int, phase: str, reason: str) -> None:
    life = Life(pod(restartPolicy="Never"))
    life.running()
    life.started()
    life.exited(code=code, now=4.0)
    before = status(life)
    assert before["phase"] == "Running"
    assert state(before) == ("terminated", reason)
    life.tell(Released())
    after = status(life)
    assert after["phase"] == phase
    ended = after["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["finishedAt"]) == (code, "2026-01-01T00:00:04Z")
    assert conditions(after)["Ready"] == ("False", "PodCompleted" if code == 0 else "PodFailed")


def test_a_deleted_pod_that_always_restarts_ends_as_failed() -> None:
    life = Life(pod())
    life.running()
    life.started()
    life.tell(PodUpdated(pod(metadata=DELETED)))
    life.exited(code=143)
    life.tell(Released())
    assert status(life)["phase"] == "Failed"


def test_a_pod_deleted_before_it_ran_says_that_its_containers_are_lost() -> None:
    life = Life(pod())
    life.running()
    life.tell(StartFailed("a", "ErrImagePull", "no"))
    life.tell(PodUpdated(pod(metadata=DELETED)))
    life.tell(Released())
    seen = status(life)
    assert seen["phase"] == "Failed"
    assert state(seen) == ("terminated", "ContainerStatusUnknown")


def test_a_sidecars_end_is_no_failure() -> None:
    sidecar = container("side", restartPolicy="Always")
    life = Life(pod(container("a"), initContainers=[sidecar], restartPolicy="Never"))
    life.running()
    life.started("side")
    life.started("a")
    life.exited("a")
    life.exited("side", code=137)
    life.tell(Released())
    assert status(life)["phase"] == "Succeeded"


def test_restarts_are_counted_and_the_last_state_kept() -> None:
    life = Life(pod())
    life.running()
    life.started()
    life.exited(code=1, now=1.0)
    life.started(attempt=1, now=1.0)
    running = status(life)["containerStatuses"][0]
    assert running["restartCount"] == 1
    assert running["lastState"]["terminated"]["exitCode"] == 1
    life.exited(attempt=1, code=2, now=2.0)
    waiting = status(life)["containerStatuses"][0]
    assert waiting["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert waiting["lastState"]["terminated"]["exitCode"] == 2
    assert waiting["restartCount"] == 1
    assert status(life)["phase"] == "Running"
    life.tell(TimerFired(), 12.0)
    assert state(status(life)) == ("waiting", "ContainerCreating")


@pytest.mark.behaviour("DP-23")
def test_a_rejected_pod_has_no_containers() -> None:
    life = Life(pod())
    life.tell(PodAdded())
    assert state(status(life)) == ("waiting", "ContainerCreating")
    life.tell(Rejected(Rejection("OutOfcpu", "Node didn't have enough resource: cpu")))
    # While it may have something from before it has not failed yet.
    assert (status(life)["phase"], status(life).get("reason")) == ("Pending", None)
    life.tell(Released())
    seen = status(life)
    assert (seen["phase"], seen["reason"]) == ("Failed", "OutOfcpu")
    assert seen["message"] == "Pod was rejected: Node didn't have enough resource: cpu"
    # What was reported before is taken back: kubectl would show ContainerCreating instead of the Pod's reason.
    assert (seen["containerStatuses"], seen["initContainerStatuses"]) == (None, None)


def test_a_doomed_pod_says_why_without_being_rejected() -> None:
    life = Life(pod())
    life.running()
    life.started()
    life.tell(MustFail(Rejection("DeviceFailure", "device gone")))
    life.exited(code=143)
    life.tell(Released())
    seen = status(life)
    assert (seen["phase"], seen["reason"], seen["message"]) == ("Failed", "DeviceFailure", "device gone")


def test_an_unready_container_makes_the_pod_unready() -> None:
    life = Life(pod(container("a", readinessProbe={"exec": {"command": ["true"]}}), container("b")))
    life.running()
    life.started("a")
    life.started("b")
    seen = status(life)
    ready = next(item for item in seen["conditions"] if item["type"] == "Ready")
    assert ready["message"] == "containers with unready status: [a]"
    life.tell(ProbeResultChanged("a", "a-0", ProbeKind.READINESS, healthy=True))
    assert conditions(status(life))["Ready"] == ("True", None)


def test_readiness_gates_hold_the_pod_back() -> None:
    life = Life(pod(readinessGates=[{"conditionType": "example.com/ok"}]))
    life.running()
    life.started()
    ready = next(item for item in status(life)["conditions"] if item["type"] == "Ready")
    assert ready["reason"] == "ReadinessGatesNotReady"
    assert ready["message"] == 'corresponding condition of pod readiness gate "example.com/ok" does not exist.'
    reported = {"conditions": [{"type": "example.com/ok", "status": "True"}]}
    life.tell(PodUpdated(pod(readinessGates=[{"conditionType": "example.com/ok"}], status=reported)))
    assert conditions(status(life))["Ready"] == ("True", None)


def test_a_condition_keeps_its_time_until_it_changes_and_drops_old_texts() -> None:
    life = Life(pod())
    life.tell(PodAdded())
    first = status(life)
    life.running()
    life.started(now=5.0)
    second = status(life, first)
    ready = next(item for item in second["conditions"] if item["type"] == "Ready")
    assert ready == {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": "2026-01-01T00:00:05Z",
        "reason": None,
        "message": None,
        "observedGeneration": 1,
    }
    life.tell(TimerFired(), 9.0)
    third = status(life, second)
    again = next(item for item in third["conditions"] if item["type"] == "Ready")
    assert again["lastTransitionTime"] == "2026-01-01T00:00:05Z"
    assert status(life, third) == third


def test_what_was_ready_before_the_agent_restarted_stays_ready() -> None:
    before = {
        "containerStatuses": [
            {"name": "a", "ready": True, "restartCount": 2, "containerID": "runc://a-2", "image": "", "imageID": ""}
        ]
    }
    probed = container("a", readinessProbe={"exec": {"command": ["true"]}})
    life = Life(pod(probed, status=before), record("a", attempt=2))
    life.running()
    assert status(life)["containerStatuses"][0]["ready"] is True
