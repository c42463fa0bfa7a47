"""A Pod's summary as in `kubectl get pods`, and its QoS class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.pod_claims import TERMINAL_PHASES
from dray.api.quantity import Quantity

_QOS_RESOURCES: Final = ("cpu", "memory")


@dataclass(slots=True)
class PodSummary:
    """The summary of a Pod; times are text, which sorts in time order."""

    ready: int = 0
    total: int = 0
    reason: str = ""
    restarts: int = 0
    last_restart: str = ""


def summarize(pod: Document) -> PodSummary:
    """Return the summary of a Pod's status."""
    spec, status, metadata = pod.get("spec") or {}, pod.get("status") or {}, pod.get("metadata") or {}
    sidecars = {item.get("name") for item in spec.get("initContainers") or () if item.get("restartPolicy") == "Always"}
    summary = PodSummary(total=len(spec.get("containers") or ()) + len(sidecars))
    summary.reason = status.get("reason") or _phase(status)
    restarted_sidecars = PodSummary()
    initializing = _init_containers(spec, status, sidecars, summary, restarted_sidecars)
    if not initializing or _condition(status, "Initialized"):
        summary.restarts, summary.last_restart = restarted_sidecars.restarts, restarted_sidecars.last_restart
        _containers(status, summary)
    if metadata.get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            summary.reason = "Unknown"
        elif status.get("phase") not in TERMINAL_PHASES:
            summary.reason = "Terminating"
    return summary


def _phase(status: Document) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            return "SchedulingGated"
    phase: str = status.get("phase") or ""
    return phase


def _condition(status: Document, kind: str) -> bool:
    return any(item.get("type") == kind and item.get("status") == "True" for item in status.get("conditions") or ())


def _count_restarts(container: Document, summary: PodSummary) -> None:
    summary.restarts += container.get("restartCount") or 0
    ended = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
    summary.last_restart = max(summary.last_restart, ended)


def _init_containers(
    spec: Document, status: Document, sidecars: set[str | None], summary: PodSummary, restarted_sidecars: PodSummary
) -> bool:
    """Summarize init containers up to the first that blocks the pod; return whether one does."""
    for i, container in enumerate(status.get("initContainerStatuses") or ()):
        _count_restarts(container, summary)
        is_sidecar = container.get("name") in sidecars
        if is_sidecar:
            _count_restarts(container, restarted_sidecars)
        state = container.get("state") or {}
        ended = state.get("terminated")
        if ended is not None and not ended.get("exitCode"):
            continue
        if is_sidecar and container.get("started"):
            summary.ready += bool(container.get("ready"))
            continue
        waiting = (state.get("waiting") or {}).get("reason") or ""
        if ended is not None:
            summary.reason = f"Init:{ended.get('reason') or _exit_text(ended)}"
        elif waiting and waiting != "PodInitializing":
            summary.reason = f"Init:{waiting}"
        else:
            summary.reason = f"Init:{i}/{len(spec.get('initContainers') or ())}"
        return True
    return False


def _exit_text(ended: Document) -> str:
    if ended.get("signal"):
        return f"Signal:{ended['signal']}"
    return f"ExitCode:{ended.get('exitCode') or 0}"


def _containers(status: Document, summary: PodSummary) -> None:
    """Summarize containers; the first one with a reason wins, so they are visited in reverse."""
    running = False
    for container in reversed(status.get("containerStatuses") or ()):
        _count_restarts(container, summary)
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), (state.get("waiting") or {}).get("reason")
        if waiting:
            summary.reason = waiting
        elif ended is not None:
            summary.reason = ended.get("reason") or _exit_text(ended)
        elif container.get("ready") and state.get("running") is not None:
            running = True
            summary.ready += 1
    if summary.reason == "Completed" and running:
        summary.reason = "Running" if _condition(status, "Ready") else "NotReady"


def quality_of_service(spec: Document) -> str:
    """Return the QoS class: Guaranteed when all limits equal requests, BestEffort without any, else Burstable."""
    whole = spec.get("resources") or {}
    if whole.get("requests") or whole.get("limits"):
        holders: Iterable[Document] = (spec,)
    else:
        holders = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    requested = limited = False
    guaranteed = True
    for holder in holders:
        resources = holder.get("resources") or {}
        requests, limits = _positive(resources.get("requests")), _positive(resources.get("limits"))
        requested, limited = requested or bool(requests), limited or bool(limits)
        # Every container must set both limits, and its requests must equal them.
        guaranteed = guaranteed and len(limits) == len(_QOS_RESOURCES) and requests == limits
    if not requested and not limited:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _positive(resources: Document | None) -> dict[str, Quantity]:
    if not resources:
        return {}
    found: dict[str, Quantity] = {}
    for name in _QOS_RESOURCES:
        if name in resources:
            quantity = Quantity.parse(resources[name])
            if quantity.nanos > 0:
                found[name] = quantity
    return found
