"""The diagnosis of a failed wait."""

from __future__ import annotations

from typing import Any

from dray.cmd.testing.diagnosis import EVENTS_MAX, Related, diagnose

DRIVER = "lamp.example.com"
SLICE = {
    "metadata": {"name": "s"},
    "spec": {
        "driver": DRIVER,
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "a", "attributes": {"colour": {"string": "red"}}}],
    },
}


def claim(name: str, **status: Any) -> dict[str, Any]:
    requests = [{"name": "lamp", "exactly": {"deviceClassName": "lamps", "allocationMode": "ExactCount", "count": 1}}]
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": {"devices": {"requests": requests}},
        "status": status,
    }


def test_object_that_does_not_exist() -> None:
    assert diagnose(None, Related()) == (
        "  it does not exist\n  no events\n  the node agent is not running\n  published devices: none"
    )


def test_a_pod_and_everything_around() -> None:
    result = {"request": "lamp", "driver": DRIVER, "pool": "n", "device": "a"}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "nodeName": "n",
            "resourceClaims": [
                {"name": "one", "resourceClaimName": "waits"},
                {"name": "two", "resourceClaimName": "has"},
                {"name": "three", "resourceClaimTemplateName": "t"},
                {"name": "four", "resourceClaimName": "missing"},
            ],
        },
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "too hot",
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "NotReady", "message": "no"},
                {"type": "PodScheduled", "status": "True"},
            ],
            "resourceClaimStatuses": [{"name": "three", "resourceClaimName": "made"}],
            "initContainerStatuses": [{"name": "i", "state": {"running": {}}}],
            "containerStatuses": [
                {"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                {"name": "b", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}},
            ],
        },
    }
    related = Related(
        verdict=["pod default/p waits"],
        events=[
            *({"type": "Normal", "reason": f"Old{number}", "message": ""} for number in range(EVENTS_MAX)),
            {"type": "Warning", "reason": "FailedScheduling", "message": "no", "count": 2},
        ],
        claims=[claim("waits"), claim("has", allocation={"devices": {"results": [result]}}), claim("made")],
        slices=[SLICE],
        drivers=[DRIVER],
        outputs={"container b": "one\ntwo\n", "nobody": ""},
    )
    lines = diagnose(pod, related).splitlines()
    assert lines[:12] == [
        "  pod default/p waits",
        "  phase Failed (Evicted: too hot)",
        "  on node n",
        "  condition Ready is False: NotReady: no",
        "  container i is running",
        "  container a waiting: CrashLoopBackOff",
        "  container b terminated: exit code 3: Error",
        "  claim waits is not allocated",
        f"  claim has has {DRIVER}/n/a",
        "  claim made is not allocated",
        "  claim missing does not exist",
        "  event Normal Old1: ",
    ]
    assert lines[-6:] == [
        "  event Warning FailedScheduling (x2): no",
        f"  registered drivers: {DRIVER}",
        f"  published devices: {DRIVER}/n (1 devices)",
        "  output of container b:",
        "    one",
        "    two",
    ]
