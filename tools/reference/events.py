"""Every Event that Dray writes: a table, held against the reasons that stand in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.reference.markdown import page, table

INTRODUCTION = """What `kubectl get events` and `kubectl describe` show. Reasons are Kubernetes' own except those
marked with *. The same event again raises its count; many of one kind about one object are counted together."""
SOURCE = Path(__file__).parents[2] / "src" / "dray"
# Calls that have a reason among their arguments, or make what becomes an Event.
TELLERS = frozenset(
    {"event", "event_for", "node_event", "record", "record_node", "tell", "_tell", "_tell_news", "_tell_of"}
    | {"Tell", "Told", "Rejection", "ResourceError", "Verdict", "StartFailed", "ImageFailure"}
)
# Where those calls are made.
ROOMS = ("controllers", "scheduler", "node", "driver", "cmd")
_REASON = re.compile(r"[A-Z][a-z]+(?:[A-Z][A-Za-z]*)*$")


@dataclass(frozen=True, slots=True)
class Row:
    """One Event; `module` is where its reason stands."""

    reason: str
    type: str
    about: str
    module: str
    when: str
    ours: bool = False


N, W = "Normal", "Warning"
_POD_CONTROL = "controllers/pod_control/loop.py"
_JOB = "controllers/job/scene.py"
_ACCOUNTING = "controllers/job/accounting.py"
_MACHINE = "node/agent/pod/machine.py"
_STARTING = "node/agent/starting/loop.py"
_KEEPERS = "ReplicaSet, DaemonSet, Job"

EVENTS: dict[str, Sequence[Row]] = {
    "The scheduler": (
        Row("Scheduled", N, "Pod", "scheduler/loop.py", "the Pod has a node"),
        Row("FailedScheduling", W, "Pod", "scheduler/loop.py", "no node fits, or something broke"),
        Row("BindingConditionsPending", N, "Pod", "scheduler/plugins/dynamic_resources/binding/loop.py",
            "devices are being made ready, and the Pod is bound afterwards"),
        Row("ExtendedResourceOfferedTwice", W, "Node", "scheduler/plugins/dynamic_resources/offers.py",
            "a device plugin and a driver offer the same resource on one node", ours=True),
        Row("ResourceClaimNotAvailable", N, "Pod", "scheduler/plugins/classic_resources/binding/loop.py",
            "the Pod runs without an optional classic claim", ours=True),
    ),
    "Controllers of claims": (
        Row("FailedResourceClaimCreation", W, "Pod", "controllers/resource_claim/reconciler.py",
            "a claim could not be made from the Pod's template"),
        Row("FailedResourceClaimCreation", W, "Pod", "controllers/classic_claim/reconciler.py",
            "the same for a classic claim"),
        Row("DeviceTaintManagerEviction", N, "Pod", "controllers/device_taint_eviction/plan.py",
            "the Pod is deleted, or will be, since a device of it is tainted; or that was called off"),
    ),
    "Controllers of nodes": (
        Row("RegisteredNode", N, "Node", "controllers/node_lifecycle/reconciler.py", "a Node is new"),
        Row("RemovingNode", N, "Node", "controllers/node_lifecycle/reconciler.py", "a Node is gone"),
        Row("NodeNotReady", N, "Node", "controllers/node_lifecycle/reconciler.py", "the Node is no longer ready"),
        Row("NodeNotReady", W, "Pod", "controllers/node_lifecycle/reconciler.py", "the Pod's Node is no longer ready"),
        Row("TaintManagerEviction", N, "Pod", "controllers/taint_eviction/plan.py",
            "the Pod is deleted, or will be, since its Node is tainted; or that was called off"),
    ),
    "Controllers of workloads": (
        Row("SuccessfulCreate", N, _KEEPERS, _POD_CONTROL, "a Pod was made"),
        Row("SuccessfulDelete", N, _KEEPERS, _POD_CONTROL, "a Pod was deleted"),
        Row("FailedCreate", W, _KEEPERS, _POD_CONTROL, "a Pod could not be made"),
        Row("FailedDelete", W, _KEEPERS, _POD_CONTROL, "a Pod could not be deleted"),
        Row("ScalingReplicaSet", N, "Deployment", "controllers/deployment/reconciler.py",
            "a ReplicaSet gets more or fewer Pods"),
        Row("ReplicaSetCreateError", W, "Deployment", "controllers/deployment/conditions.py",
            "a new ReplicaSet could not be made"),
        Row("FailedDaemonPod", W, "DaemonSet", "controllers/daemon_set/plan.py", "a daemon failed, and is replaced"),
        Row("SucceededDaemonPod", N, "DaemonSet", "controllers/daemon_set/plan.py", "a daemon ended, and is replaced"),
        Row("Suspended", N, "Job", _ACCOUNTING, "the Job is suspended"),
        Row("Resumed", N, "Job", _ACCOUNTING, "the Job goes on"),
        Row("Completed", N, "Job", _ACCOUNTING, "the Job is done"),
        Row("TooManySucceededPods", W, "Job", _ACCOUNTING, "the Job is done, and more Pods succeeded than asked for"),
        Row("UnknownCompletionMode", W, "Job", "controllers/job/reconciler.py",
            "the Job is left alone: a newer API server has a mode that is not known here"),
        Row("BackoffLimitExceeded", W, "Job", _JOB, "too many Pods failed"),
        Row("DeadlineExceeded", W, "Job", _JOB, "the Job took longer than `activeDeadlineSeconds`"),
        Row("PodFailurePolicy", W, "Job", _JOB, "a Pod failed in a way that ends the Job"),
        Row("FailedIndexes", W, "Job", _JOB, "all indexes ended, and some failed"),
        Row("MaxFailedIndexesExceeded", W, "Job", _JOB, "more indexes failed than `maxFailedIndexes`"),
    ),
    "The node agent": (
        Row("Pulled", N, "Pod", _STARTING, "the image is there"),
        Row("Created", N, "Pod", _STARTING, "a container was made"),
        Row("Started", N, "Pod", _MACHINE, "a container was started"),
        Row("Failed", W, "Pod", _STARTING, "a container or its image could not be had"),
        Row("BackOff", W, "Pod", _MACHINE, "a container or an image (Normal) that keeps failing waits"),
        Row("Killing", N, "Pod", _MACHINE, "a container is being stopped"),
        Row("FailedKillPod", W, "Pod", "node/agent/stopping/loop.py", "a container could not be stopped yet"),
        Row("Unhealthy", W, "Pod", "node/agent/probes/loop.py", "a probe failed"),
        Row("FailedPostStartHook", W, "Pod", _MACHINE, "the hook after a start failed"),
        Row("FailedPreStopHook", W, "Pod", "node/agent/stopping/loop.py", "the hook before a stop failed"),
        Row("FailedMount", W, "Pod", "node/agent/building/loop.py", "a volume cannot be had yet"),
        Row("DeadlineExceeded", N, "Pod", _MACHINE, "the Pod was active longer than `activeDeadlineSeconds`"),
        Row("RuntimeLimitation", W, "Pod", _MACHINE, "the runtime cannot do what the Pod asks for", ours=True),
        Row("FailedPrepareDynamicResources", W, "Pod", "node/dra/loop.py", "a driver could not prepare a claim yet"),
        Row("FailedUnprepareDynamicResources", W, "Pod", "node/agent/claims/loop.py", "a driver could not undo it yet"),
        Row("UnexpectedAdmissionError", W, "Pod", "node/interface.py", "devices, CPUs or memory could not be given"),
        Row("TopologyAffinityError", W, "Pod", "node/topology/loop.py", "the topology policy cannot be met"),
        Row("NodeAffinity", W, "Pod", "node/agent/admission.py", "the Pod does not belong on this node"),
        Row("OutOf", W, "Pod", "node/agent/admission.py", "the node has not enough left, as in `OutOfcpu`"),
        Row("UnhealthyDevice", W, "Pod", "node/devices/verdict.py", "a device of the Pod turned unhealthy", ours=True),
        Row("CreateContainerConfigError", W, "Pod", "node/devices/loop.py", "a device plugin does not answer"),
    ),
    "Classic drivers": (
        Row("FailedAllocation", W, "ResourceClaim", "driver/classic/reconciler.py", "no room, or it failed", ours=True),
        Row("FailedDeallocation", W, "ResourceClaim", "driver/classic/reconciler.py", "freeing failed", ours=True),
    ),
}  # fmt: skip
# Reasons that stand in such calls and never become an Event.
NO_EVENTS = {
    "CompletionsReached": "condition of a Job",
    "SuccessPolicy": "condition of a Job",
    "ErrImagePull": "reason of a waiting container; the Event is Failed",
    "ErrImageNeverPull": "reason of a waiting container; the Event is Failed",
    "ProgressDeadlineExceeded": "condition of a Deployment",
    "Ready": "type of a condition",
    "KubeSchedulerConfiguration": "kind",
    "Normal": "type of an Event",
    "Warning": "type of an Event",
    "CreateContainerError": "reason of a waiting container",
}


def events_page() -> str:
    """docs/reference/events.md."""
    parts: list[str] = []
    for who, rows in EVENTS.items():
        cells = [(f"`{row.reason}`{'*' if row.ours else ''}", row.type, row.about, row.when) for row in rows]
        parts += [f"## {who}", table(("reason", "type", "about", "when"), cells)]
    return page("Events", INTRODUCTION, *parts)


def reasons_told() -> set[str]:
    """Every reason that a call of the code names, as a text or by a constant."""
    return {reason for room in ROOMS for path in sorted((SOURCE / room).rglob("*.py")) for reason in _told_in(path)}


def reasons_in(module: str) -> frozenset[str]:
    """Every text of a module that could be a reason."""
    nodes = (node.value for node in ast.walk(_tree(SOURCE / module)) if isinstance(node, ast.Constant))
    return frozenset(text for text in nodes if isinstance(text, str) and _REASON.match(text))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _told_in(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call) and _name(node.func) in TELLERS:
            arguments = [*node.args, *(word.value for word in node.keywords)]
            yield from (text for argument in arguments for text in _texts(argument) if _REASON.match(text))


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield from _constants().get(_name(node), ())


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def _constants() -> dict[str, tuple[str, ...]]:
    """Texts by the name of a module's constant, in capitals; several modules may have the same."""
    found: dict[str, set[str]] = {}
    for room in ROOMS:
        for path in (SOURCE / room).rglob("*.py"):
            for node in _tree(path).body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                    text = node.value.value
                    if isinstance(node.target, ast.Name) and isinstance(text, str):
                        found.setdefault(node.target.id, set()).add(text)
    return {name: tuple(sorted(texts)) for name, texts in found.items() if name.lstrip("_").isupper()}
