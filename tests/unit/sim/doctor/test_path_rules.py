"""Findings about Pods and workloads that are stopped on their path, and how alike ones are grouped."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.api.document import Document
from dray.cli.doctor import lines
from dray.sim.doctor.findings import Finding, Severity, grouped
from dray.sim.doctor.rules import examine
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import GPU, claim, device, device_class, node, pod, resource_slice, taint_rule
from tests.unit.sim.explain.test_path import EXCEEDED, deployment, event, placed, quota, waits

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SOUND = [
    node("node-a"),
    device_class("gpu", f'device.driver == "{GPU}"'),
    resource_slice("node-a", GPU, device("gpu-0"), nodeName="node-a"),
]


def found(*documents: Document) -> list[Finding]:
    return examine(Snapshot.of([*SOUND, *documents]), NOW)


def named(name: str, made: Document) -> Document:
    return made | {"metadata": made["metadata"] | {"name": name, "uid": f"uid-{name}"}}


def crashing(name: str, times: int = 4) -> Document:
    state = waits("CrashLoopBackOff") | {"restartCount": times, "lastState": {"terminated": {"exitCode": 3}}}
    return named(name, placed(state))


def unprepared() -> list[Document]:
    train = placed(waits("ContainerCreating"))
    return [train, event(train, "FailedPrepareDynamicResources", "no such card")]


def blocked() -> list[Document]:
    web, web_1 = deployment()
    return [web, web_1, event(web_1, "FailedCreate", f"Error creating: {EXCEEDED}"), quota("1", "1")]


def sick() -> list[Document]:
    health = {"resourceID": f"{GPU}/node-a/gpu-0", "health": "Unhealthy"}
    user = pod("p", "node-a")
    user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    allocated = [{"name": "claim:gpu", "resources": [health]}]
    status = {"name": "c", "image": "i", "state": {"running": {}}, "allocatedResourcesStatus": allocated}
    conditions = [{"type": "Ready", "status": "True"}]
    user["status"] = {"phase": "Running", "containerStatuses": [status], "conditions": conditions}
    return [user, claim("c", f"{GPU}/node-a/gpu-0", pods=("p",))]


def stuck() -> list[Document]:
    gone = pod("p", "node-a")
    gone["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/wait"]}
    return [gone]


@pytest.mark.parametrize(
    ("documents", "severity", "rule", "subject", "advice"),
    [
        (unprepared(), Severity.ERROR, "failed-prepare", "pod team/train", "check its driver on node-a"),
        (
            [placed(waits("ImagePullBackOff"))],
            Severity.ERROR,
            "missing-image",
            "pod team/train",
            "correct the image, or load it on the node",
        ),
        (
            [crashing("train")],
            Severity.ERROR,
            "crash-loop",
            "pod team/train",
            "read kubectl logs -n team train -c c --previous",
        ),
        (
            [placed(waits("CreateContainerConfigError", 'secret "s" not found'))],
            Severity.ERROR,
            "failed-start",
            "pod team/train",
            "create what its environment refers to",
        ),
        (
            blocked(),
            Severity.WARNING,
            "quota",
            "deployment team/web",
            "raise pods to 4 in quota small, or delete what uses it in namespace team",
        ),
        (
            [resource_slice("node-b", "nobody.example.com", device("x-0"), device("x-1"), allNodes=True)],
            Severity.WARNING,
            "unselected-devices",
            "pool nobody.example.com/node-b",
            'create a DeviceClass with the selector device.driver == "nobody.example.com", or stop the driver',
        ),
        (
            sick(),
            Severity.WARNING,
            "unhealthy-device",
            f"device {GPU}/node-a/gpu-0",
            "taint the device so that it is not allocated again, and delete the Pod so that it gets another",
        ),
        (
            stuck(),
            Severity.WARNING,
            "stuck-pod",
            "pod team/p",
            "finalizer example.com/wait keeps it: check its owner",
        ),
    ],
)
def test_findings(documents: list[Document], severity: Severity, rule: str, subject: str, advice: str) -> None:
    (one,) = found(*documents)
    assert (one.severity, one.rule, one.subject, one.advice) == (severity, rule, subject, advice)


def test_alike_findings_are_one() -> None:
    findings = found(*(crashing(f"train-{number}", number + 2) for number in range(12)), *unprepared())
    crashes = next(group for group in grouped(findings) if group.first.rule == "crash-loop")
    assert (crashes.first.subject, len(crashes.others)) == ("pod team/train-0", 11)
    shown = list(lines(findings))
    assert "         the same for pod team/train-1, pod team/train-10, pod team/train-11 and 8 more" in shown
    assert shown[0] == "13 errors\n"
    assert len(shown) < 10


def test_different_findings_stay_apart() -> None:
    assert len(grouped(found(crashing("a"), placed(waits("ImagePullBackOff"))))) == 2


def rules_of(*documents: Document) -> dict[str, Finding]:
    return {finding.rule: finding for finding in found(*documents)}


@pytest.mark.behaviour("TT-04")
def test_a_pod_that_starts_for_hours_without_events() -> None:
    train = placed(waits("ContainerCreating"))
    train["status"]["startTime"] = "2026-01-01T20:00:00Z"
    finding = rules_of(train)["slow-start"]
    assert finding.what == "is starting on node-a since 4h"
    assert finding.advice == "check the node agent and the drivers on node-a"


@pytest.mark.behaviour("TT-04")
def test_pods_on_a_node_that_is_gone() -> None:
    user = pod("p", "node-x")
    finding = rules_of(user, claim("c", f"{GPU}/node-x/gpu-0", pods=("p",)))["gone-node"]
    assert finding.subject == "node node-x"
    assert finding.what == "does not exist, and pod team/p is bound to it; 1 of them keeps devices"


@pytest.mark.behaviour("TT-04")
@pytest.mark.parametrize("by", ["slice", "rule"])
@pytest.mark.parametrize("tolerated", [False, True])
def test_a_pod_that_a_device_taint_should_have_evicted(by: str, *, tolerated: bool) -> None:
    taint = {"key": "broken", "effect": "NoExecute", "timeAdded": "2026-01-01T20:00:00Z"}
    user = pod("p", "node-a")
    user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    used = claim("c", f"{GPU}/node-a/gpu-0", pods=("p",))
    if tolerated:
        (result,) = used["status"]["allocation"]["devices"]["results"]
        result["tolerations"] = [{"key": "broken", "operator": "Exists"}]
    if by == "slice":
        more = [resource_slice("node-a", GPU, device("gpu-0", taints=[taint]), nodeName="node-a")]
    else:
        rule = taint_rule("broken", driver=GPU)
        rule["spec"]["taint"] = taint
        more = [rule]
    assert ("unheeded-taint" in rules_of(user, used, *more)) is not tolerated
