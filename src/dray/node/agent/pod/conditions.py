"""The Pod conditions that kubelet sets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.types.core_v1 import Pod

READY_TO_START: Final = "PodReadyToStartContainers"
INITIALIZED: Final = "Initialized"
READY: Final = "Ready"
CONTAINERS_READY: Final = "ContainersReady"
SCHEDULED: Final = "PodScheduled"
OWN: Final = (READY_TO_START, INITIALIZED, READY, CONTAINERS_READY)


@dataclass(frozen=True, slots=True)
class ConditionInputs:
    """The inputs of the conditions; lists are of container names."""

    phase: str
    sandbox_ready: bool
    incomplete: Sequence[str] = ()
    unready: Sequence[str] = ()
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Verdict:
    status: bool
    reason: str = ""
    message: str = ""


def conditions(pod: Pod, facts: ConditionInputs, known: Mapping[str, Document], now: str) -> list[Document]:
    """Return the Pod conditions; `known` are the last reported ones, from which transition times are kept."""
    containers = _containers_ready(facts)
    verdicts = {
        READY_TO_START: _Verdict(facts.sandbox_ready),
        INITIALIZED: _initialized(facts),
        READY: _ready(pod, containers),
        CONTAINERS_READY: containers,
    }
    mine = [_document(pod, name, verdict, known.get(name), now) for name, verdict in verdicts.items()]
    return [*mine, _scheduled(pod, known.get(SCHEDULED), now)]


def _initialized(facts: ConditionInputs) -> _Verdict:
    if facts.phase == "Succeeded":
        return _Verdict(status=True, reason="PodCompleted")
    if facts.incomplete:
        message = f"containers with incomplete status: [{' '.join(facts.incomplete)}]"
        return _Verdict(status=False, reason="ContainersNotInitialized", message=message)
    return _Verdict(status=True)


def _containers_ready(facts: ConditionInputs) -> _Verdict:
    if facts.phase == "Succeeded":
        return _Verdict(status=False, reason="PodCompleted")
    if facts.phase == "Failed":
        return _Verdict(status=False, reason="PodFailed")
    texts = []
    if facts.unknown:
        texts.append(f"containers with unknown status: [{' '.join(facts.unknown)}]")
    if facts.unready:
        texts.append(f"containers with unready status: [{' '.join(facts.unready)}]")
    if texts:
        return _Verdict(status=False, reason="ContainersNotReady", message=", ".join(texts))
    return _Verdict(status=True)


def _ready(pod: Pod, containers: _Verdict) -> _Verdict:
    if not containers.status:
        return containers
    known = {condition.type: condition.status for condition in pod.status.conditions}
    texts = []
    for gate in pod.spec.readiness_gates:
        name = gate.condition_type
        if name not in known:
            texts.append(f'corresponding condition of pod readiness gate "{name}" does not exist.')
        elif known[name] != "True":
            texts.append(f'the status of pod readiness gate "{name}" is not "True", but {known[name]}')
    if texts:
        return _Verdict(status=False, reason="ReadinessGatesNotReady", message=", ".join(texts))
    return _Verdict(status=True)


def _document(pod: Pod, name: str, verdict: _Verdict, known: Document | None, now: str) -> Document:
    status = "True" if verdict.status else "False"
    document: Document = {"type": name, "status": status, "lastTransitionTime": now}
    if known is not None and known.get("status") == status:
        document["lastTransitionTime"] = known.get("lastTransitionTime") or now
    for field, text in (("reason", verdict.reason), ("message", verdict.message)):
        # Conditions are merged by type: an outdated text must be removed explicitly.
        if text or (known is not None and field in known):
            document[field] = text or None
    return document | _generation(pod)


def _scheduled(pod: Pod, known: Document | None, now: str) -> Document:
    since = known.get("lastTransitionTime") if known is not None and known.get("status") == "True" else None
    return {"type": SCHEDULED, "status": "True", "lastTransitionTime": since or now, **_generation(pod)}


def _generation(pod: Pod) -> Document:
    generation = pod.metadata.generation
    return {"observedGeneration": generation} if generation else {}
