"""Pods and runs of containers in a few words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from dray.api.types.core_v1 import Container, Pod, Volume
from dray.node.agent.pod.events import Action, Admitted, ContainerExited, ContainerStarted, Event, PodAdded, Prepared
from dray.node.agent.pod.machine import PodMachine
from dray.node.runtimes.runtime import ContainerRecord, Exit

START = datetime(2026, 1, 1, tzinfo=UTC)
UID = "uid-1"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def container(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "image", **fields}


def pod(*containers: dict[str, Any], metadata: dict[str, Any] | None = None, **spec: Any) -> Pod:
    status = spec.pop("status", {})
    document = {
        "metadata": {"name": "p", "namespace": "ns", "uid": UID, "generation": 1, **(metadata or {})},
        "spec": {"containers": list(containers) or [container()], "nodeName": "n1", **spec},
        "status": status,
    }
    return msgspec.convert(document, Pod)


def a_container(**fields: Any) -> Container:
    return msgspec.convert(container(**fields), Container)


def a_volume(**fields: Any) -> Volume:
    return msgspec.convert({"name": "v", **fields}, Volume)


def record(name: str = "a", attempt: int = 0, started: float = 0.0, **ended: Any) -> ContainerRecord:
    exit_ = None
    if ended:
        exit_ = Exit(ended.pop("code"), at(ended.pop("finished", started)), **ended)
    return ContainerRecord(f"{name}-{attempt}", UID, "ns", "p", name, attempt, "image", "image-id", at(started), exit_)


class Life:
    """A machine that is driven by hand; keeps everything it asked for."""

    def __init__(self, subject: Pod, *records: ContainerRecord) -> None:
        self.machine = PodMachine(subject, records, now=START)
        self.now = 0.0
        self.done: list[Action] = []

    def tell(self, event: Event, now: float | None = None) -> list[Action]:
        self.now = self.now if now is None else now
        actions = list(self.machine.handle(event, at(self.now)))
        self.done += actions
        return actions

    def running(self) -> list[Action]:
        """Through admission and preparation."""
        self.tell(PodAdded())
        self.tell(Admitted())
        return self.tell(Prepared())

    def started(self, name: str = "a", attempt: int = 0, now: float | None = None) -> list[Action]:
        self.now = self.now if now is None else now
        return self.tell(ContainerStarted(record(name, attempt, self.now)))

    def exited(self, name: str = "a", attempt: int = 0, code: int = 0, now: float | None = None) -> list[Action]:
        self.now = self.now if now is None else now
        return self.tell(ContainerExited(record(name, attempt, self.now, code=code, finished=self.now)))


def names(actions: list[Action], kind: type[Any]) -> list[str]:
    """The containers that actions of a kind are about."""
    return [action.container for action in actions if isinstance(action, kind)]


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]
