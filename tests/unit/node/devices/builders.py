"""Pods that ask for devices, and an agent's Pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dray.api.codec import from_document
from dray.api.types.core_v1 import Container, Pod

FOO = "vendor.com/foo"
BAR = "vendor.com/bar"


def container(name: str = "main", limits: Mapping[str, int | str] | None = None, **fields: Any) -> dict[str, Any]:
    amounts = {key: str(amount) for key, amount in (limits or {}).items()}
    return {"name": name, "image": "x", "resources": {"limits": amounts, "requests": amounts}, **fields}


def sidecar(name: str, limits: Mapping[str, int | str] | None = None) -> dict[str, Any]:
    return container(name, limits, restartPolicy="Always")


def pod(
    uid: str = "u1",
    containers: Sequence[dict[str, Any]] = (),
    init: Sequence[dict[str, Any]] = (),
    *,
    name: str = "",
    namespace: str = "default",
    status: dict[str, Any] | None = None,
) -> Pod:
    return from_document(
        Pod,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name or f"pod-{uid}", "namespace": namespace, "uid": uid},
            "spec": {"containers": list(containers) or [container()], "initContainers": list(init)},
            "status": status or {},
        },
    )


def asking(uid: str, amount: int = 1, resource: str = FOO) -> Pod:
    return pod(uid, [container("main", {resource: amount})])


def part(item: Pod, name: str) -> Container:
    return next(one for one in (*item.spec.init_containers, *item.spec.containers) if one.name == name)


class Pods:
    """The agent's Pods as a test sets them."""

    def __init__(self, *pods: Pod) -> None:
        self.items = {item.metadata.uid or "": item for item in pods}
        # UIDs of Pods that hold nothing, whatever their status says.
        self.inactive: set[str] = set()
        # UIDs of deleted Pods whose containers may still run.
        self.gone: set[str] = set()

    def add(self, item: Pod) -> Pod:
        self.items[item.metadata.uid or ""] = item
        return item

    def remove(self, uid: str) -> None:
        self.items.pop(uid, None)

    def active(self) -> tuple[Pod, ...]:
        return tuple(
            item
            for uid, item in self.items.items()
            if uid not in self.inactive and item.status.phase not in ("Succeeded", "Failed")
        )

    def all(self) -> tuple[Pod, ...]:
        return tuple(self.items.values())

    def orphans(self) -> frozenset[str]:
        return frozenset(self.gone)

    def get(self, uid: str) -> Pod | None:
        return self.items.get(uid)
