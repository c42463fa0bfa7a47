"""Sources whose answers a test sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dray.api.document import UID, NamespacedName
from dray.api.types.core_v1 import Container, Pod
from dray.node.devices.device_manager import HeldDevice
from dray.node.dra.claims import ClaimError, ClaimInfo, ContainerClaim, Device, container_requests
from dray.node.topology.memory_manager import Block
from tests.unit.node.devices.builders import container, pod


class Devices:
    def __init__(self, held: Mapping[tuple[str, str], Sequence[HeldDevice]]) -> None:
        self.held = held
        self.all: Sequence[HeldDevice] = ()
        self.refreshed = 0
        self.revision = 0

    async def refresh(self) -> None:
        self.refreshed += 1

    def container_devices(self, pod_uid: str, container_name: str) -> Sequence[HeldDevice]:
        return self.held.get((pod_uid, container_name), ())

    def allocatable_devices(self) -> Sequence[HeldDevice]:
        return self.all


class CPUs:
    """By default every container of Pod u1 has two."""

    allocatable = frozenset({3, 1, 2})
    revision = 0

    def __init__(self, held: Mapping[tuple[str, str], Iterable[int]] | None = None) -> None:
        self.held = held

    def exclusive(self, pod_uid: str, container_name: str) -> frozenset[int]:
        if self.held is not None:
            return frozenset(self.held.get((pod_uid, container_name), ()))
        return frozenset({2, 1}) if pod_uid == "u1" else frozenset()


class Memory:
    revision = 0

    def __init__(self, held: Mapping[tuple[str, str], Sequence[Block]] | None = None) -> None:
        self.held = held

    def allocatable(self) -> Sequence[Block]:
        return (Block((0,), "memory", 4096), Block((0, 1), "hugepages-2Mi", 64))

    def blocks(self, pod_uid: str, container_name: str) -> Sequence[Block]:
        if self.held is not None:
            return self.held.get((pod_uid, container_name), ())
        return (Block((0, 1), "memory", 2048),) if pod_uid == "u1" else ()


class Claims:
    """As the node's claims do it: a claim that is not known is an error."""

    def __init__(self, *infos: ClaimInfo) -> None:
        self.infos = {info.key.name: info for info in infos}
        self.revision = 0

    def container_claims(self, item: Pod, one: Container) -> Sequence[ContainerClaim]:
        asked = container_requests(item, one)
        names = dict.fromkeys(name for name, _ in asked)
        if missing := [name for name in names if name not in self.infos]:
            raise ClaimError(f"unable to get claim info for {missing}")
        return [
            ContainerClaim(self.infos[name], tuple(request for other, request in asked if other == name))
            for name in names
        ]


def info(name: str, **drivers: Sequence[Device]) -> ClaimInfo:
    devices = {key: tuple(of) for key, of in drivers.items()}
    return ClaimInfo(UID(f"uid-{name}"), NamespacedName("default", name), devices, class_name=f"class-of-{name}")


def with_claims(
    uid: str, claims: Mapping[str, str], containers: Mapping[str, Sequence[tuple[str, str]]], **more: Any
) -> Pod:
    """A Pod of entries (name to claim) whose containers use (entry, request) pairs."""
    parts = []
    for name, used in containers.items():
        asked = [{"name": entry, **({"request": request} if request else {})} for entry, request in used]
        parts.append(container(name) | {"resources": {"claims": asked}})
    document = pod(uid, parts, **more)
    entries = [{"name": entry, "resourceClaimName": claim} for entry, claim in claims.items()]
    return with_entries(document, entries)


def with_entries(item: Pod, entries: Sequence[Mapping[str, str]]) -> Pod:
    from dray.api.codec import from_document, to_document

    document = to_document(item)
    document["spec"]["resourceClaims"] = list(entries)
    return from_document(Pod, document)
