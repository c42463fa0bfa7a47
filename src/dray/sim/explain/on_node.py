"""What a scheduled Pod does or lacks on its node: devices, image, volumes, start, probes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from dray.api.document import NamespacedName
from dray.api.pod_claims import pod_claims
from dray.api.timestamps import age
from dray.api.types.core_v1 import ContainerStatus, Node, Pod
from dray.sim.explain.answers import Fault, Stage, Verdict
from dray.sim.explain.events import WARNING, ObjectEvent, events_of, newest
from dray.sim.explain.similar_names import listed, nearest
from dray.sim.kept_fields import NEVER_STARTED
from dray.sim.snapshot import Snapshot

_IMAGE_REASONS: Final = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
)
_CRASH_REASON: Final = "CrashLoopBackOff"
_CONFIG_REASON: Final = "CreateContainerConfigError"
_START_REASONS: Final = (
    _CONFIG_REASON,
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PostStartHookError",
)
_PREPARE_EVENTS: Final = ("FailedPrepareDynamicResources", "WaitingForDevices")
_VOLUME_EVENTS: Final = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_START_EVENTS: Final = ("FailedCreatePodSandBox", "FailedSync", "Failed")
_PREEMPTED: Final = "Preempted"
# Exit code of a process that was killed: 128 and the signal.
_KILLED: Final = 137
_MESSAGE_MAX: Final = 240


def placed_verdict(snapshot: Snapshot, pod: Pod, now: datetime) -> Verdict:
    """Return what a Pod that has a node, or had one, does or waits for."""
    events = events_of(snapshot, "Pod", pod.metadata.namespace or "", pod.metadata.name or "", pod.metadata.uid or "")
    for check in _CHECKS:
        found = check(snapshot, pod, events, now)
        if found is not None:
            return found
    started = age(pod.status.start_time, now)
    text = f"is starting on {pod.spec.node_name}" + (f" since {started}" if started else "")
    return Verdict(Stage.START, text, _recent_warning(events))


def _recent_warning(events: Sequence[ObjectEvent]) -> str:
    warning = next((event for event in events if event.type == WARNING), None)
    return "" if warning is None else f"its last warning is {warning.reason}: {_short(warning.message)}"


# --- The checks, in this order. ---


def _finished(_snapshot: Snapshot, pod: Pod, events: Sequence[ObjectEvent], _now: datetime) -> Verdict | None:
    phase = pod.status.phase
    if phase == "Succeeded":
        return Verdict(Stage.DONE, "has succeeded")
    if phase != "Failed":
        return None
    if taker := _preemptor(pod, events):
        return Verdict(Stage.DONE, f"was preempted {taker}")
    if pod.status.reason or pod.status.message:
        text = ": ".join(filter(None, (pod.status.reason, _short(pod.status.message or ""))))
        return Verdict(Stage.DONE, f"has failed: {text}", _FAILURES.get(pod.status.reason or "", ""))
    for status in _statuses(pod):
        ended = status.state.terminated
        if ended is not None and ended.exit_code:
            why = f"container {status.name} ended with exit code {ended.exit_code}"
            return Verdict(Stage.DONE, f"has failed: {why}{_reason(ended.reason)}", _logs(pod, status))
    return Verdict(Stage.DONE, "has failed")


_FAILURES: Final = {
    "UnexpectedAdmissionError": "delete it, so that it is created again, and check the device plugin on the node",
    "Evicted": "lower what it uses, or free the resource on the node",
    "NodeAffinity": "delete it, so that it is scheduled again",
}


def _deleted(_snapshot: Snapshot, pod: Pod, events: Sequence[ObjectEvent], now: datetime) -> Verdict | None:
    ends = pod.metadata.deletion_timestamp
    if ends is None:
        return None
    when = f"ends in {age(now, ends)}" if ends > now else f"should have ended {age(ends, now)} ago"
    text = f"is being deleted from {pod.spec.node_name} ({when})"
    if taker := _preemptor(pod, events):
        text += f": it is preempted {taker}"
    if pod.metadata.finalizers:
        return Verdict(Stage.DONE, text, f"finalizer {pod.metadata.finalizers[0]} keeps it: check its owner")
    return Verdict(Stage.DONE, text, "" if ends > now else f"check the node agent on {pod.spec.node_name}")


def _preemptor(pod: Pod, events: Sequence[ObjectEvent]) -> str:
    """Return for whom a Pod was preempted; empty if it was not."""
    event = newest(events, _PREEMPTED)
    if event is not None and event.related:
        return f"for {event.related}, which has a higher priority"
    if event is not None or any(
        item.type == "DisruptionTarget" and item.reason == "PreemptionByScheduler" for item in pod.status.conditions
    ):
        return "for a Pod of higher priority"
    return ""


def _lost_node(snapshot: Snapshot, pod: Pod, _events: Sequence[ObjectEvent], now: datetime) -> Verdict | None:
    if not snapshot.nodes or not snapshot.covers("Node", "Pod"):
        return None
    name = pod.spec.node_name or ""
    node: Node | None = next((item for item in snapshot.nodes if item.metadata.name == name), None)
    if node is None:
        text = f"is bound to {name}, which does not exist"
        return Verdict(Stage.NODE, text, "delete the Pod if the node does not come back")
    ready = next((item for item in node.status.conditions if item.type == "Ready"), None)
    if ready is None or ready.status == "True":
        return None
    since = f" since {age(ready.last_transition_time, now)}" if ready.last_transition_time else ""
    text = f"is on {name}, which is not ready{since}{_reason(ready.reason)}"
    return Verdict(Stage.NODE, text, f"check the node agent on {name}")


def _running(_snapshot: Snapshot, pod: Pod, _events: Sequence[ObjectEvent], now: datetime) -> Verdict | None:
    ready = next((item for item in pod.status.conditions if item.type == "Ready"), None)
    if ready is None or ready.status != "True":
        return None
    since = age(ready.last_transition_time, now)
    return Verdict(Stage.RUNNING, f"is running on {pod.spec.node_name}" + (f" since {since}" if since else ""))


def _unprepared(snapshot: Snapshot, pod: Pod, events: Sequence[ObjectEvent], _now: datetime) -> Verdict | None:
    event = newest(events, *_PREPARE_EVENTS)
    if event is None or _has_started(pod):
        return None
    named = listed(_drivers(snapshot, pod, event.message)) or "its driver"
    what = "devices cannot be prepared" if event.reason == _PREPARE_EVENTS[0] else "devices are not prepared yet"
    text = f"is on {pod.spec.node_name}, but its {what}: {_short(event.message)}"
    return Verdict(Stage.PREPARE, text, f"check {named} on {pod.spec.node_name}")


def _drivers(snapshot: Snapshot, pod: Pod, message: str) -> list[str]:
    """Return the drivers that the message names, by themselves or by a claim; all of the Pod's if it names none."""
    found: dict[str, bool] = {}
    for entry in pod_claims(pod):
        claim = snapshot.claims_by_key.get(NamespacedName(pod.metadata.namespace or "", entry.claim_name or ""))
        for result in (
            () if claim is None or claim.status.allocation is None else claim.status.allocation.devices.results
        ):
            is_named = result.driver in message or (entry.claim_name or "") in message
            found[result.driver] = found.get(result.driver, False) or is_named
    named = [driver for driver, is_named in found.items() if is_named]
    return [f"driver {driver}" for driver in named or found]


def _unmounted(_snapshot: Snapshot, pod: Pod, events: Sequence[ObjectEvent], _now: datetime) -> Verdict | None:
    event = newest(events, *_VOLUME_EVENTS)
    if event is None or _has_started(pod):
        return None
    text = f"is on {pod.spec.node_name}, but a volume is missing: {_short(event.message)}"
    return Verdict(Stage.VOLUME, text, "create what the volume refers to, or correct the Pod's volumes")


def _waiting_container(snapshot: Snapshot, pod: Pod, _events: Sequence[ObjectEvent], _now: datetime) -> Verdict | None:
    for status in _statuses(pod):
        waiting = status.state.waiting
        if waiting is None:
            continue
        reason, message = waiting.reason or "", _short(waiting.message or "")
        where = f"container {status.name} on {pod.spec.node_name}"
        if reason in _IMAGE_REASONS:
            image = _image(pod, status)
            similar = nearest(image, _images(snapshot, pod.spec.node_name or ""))
            text = f"has no image {image} for {where}: {_short(waiting.message or '') or reason}"
            if similar:
                hint = f'use image "{similar}", which is on the node'
            else:
                hint = "correct the image, or load it on the node"
            return Verdict(Stage.IMAGE, text, hint)
        ended = status.last_state.terminated
        if reason == _CRASH_REASON and ended is not None and ended.reason in NEVER_STARTED:
            # There is no log of what never ran.
            text = f"cannot start {where}: {_short(ended.message or ended.reason)}"
            return Verdict(Stage.START, text, "correct its command", fault=Fault.FAILED_START)
        if reason == _CRASH_REASON:
            text = f"is in a crash loop: {where} {_ending(status)}"
            return Verdict(Stage.START, text, _logs(pod, status), fault=Fault.CRASH_LOOP)
        if reason in _START_REASONS:
            text = f"cannot start {where}: {message or reason}"
            action = "create what its environment refers to" if reason == _CONFIG_REASON else "correct the container"
            return Verdict(Stage.START, text, action, fault=Fault.FAILED_START)
    return None


def _ending(status: ContainerStatus) -> str:
    ended = status.last_state.terminated
    if ended is None:
        return f"ended {status.restart_count} times"
    if ended.reason == "OOMKilled" or ended.exit_code == _KILLED:
        return f"was killed {status.restart_count} times{_reason(ended.reason)}: it may need more memory"
    return f"ended {status.restart_count} times, last with exit code {ended.exit_code}"


def _unready(_snapshot: Snapshot, pod: Pod, events: Sequence[ObjectEvent], _now: datetime) -> Verdict | None:
    running = [item for item in _statuses(pod) if item.state.running is not None]
    unready = [item for item in running if not item.ready]
    if not unready:
        return None
    probe = newest(events, "Unhealthy")
    where = f"container {unready[0].name} on {pod.spec.node_name}"
    if probe is not None:
        text = f"is running but not ready: {where}: {_short(probe.message).rstrip(': ')}"
        return Verdict(Stage.PROBE, text, "correct the probe, or what it checks")
    if any(item.readiness_probe is not None for item in pod.spec.containers if item.name == unready[0].name):
        return Verdict(Stage.PROBE, f"is running and waits for the first readiness probe of {where}")
    return None


def _not_started(_snapshot: Snapshot, pod: Pod, events: Sequence[ObjectEvent], _now: datetime) -> Verdict | None:
    event = newest(events, *_START_EVENTS)
    if event is None or _has_started(pod):
        return None
    return Verdict(Stage.START, f"is on {pod.spec.node_name}, but does not start: {_short(event.message)}")


_CHECKS: Final[tuple[Callable[[Snapshot, Pod, Sequence[ObjectEvent], datetime], Verdict | None], ...]] = (
    _finished,
    _deleted,
    _lost_node,
    _running,
    _waiting_container,
    _unprepared,
    _unmounted,
    _unready,
    _not_started,
)


# --- Texts. ---


def _statuses(pod: Pod) -> Iterator[ContainerStatus]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def _has_started(pod: Pod) -> bool:
    """Return whether a container runs or ran: then the Pod had all that it needs to start."""
    return any(item.state.running is not None or item.state.terminated is not None for item in _statuses(pod))


def _image(pod: Pod, status: ContainerStatus) -> str:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return next((item.image or "" for item in containers if item.name == status.name), status.image)


def _images(snapshot: Snapshot, node: str) -> Iterator[str]:
    for item in snapshot.nodes:
        if item.metadata.name == node:
            for image in item.status.images:
                yield from image.names


def _logs(pod: Pod, status: ContainerStatus) -> str:
    previous = " --previous" if status.restart_count else ""
    return f"read kubectl logs -n {pod.metadata.namespace} {pod.metadata.name} -c {status.name}{previous}"


def _reason(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_MAX else f"{line[: _MESSAGE_MAX - 1]}…"
