"""The claims of a Pod from prepare to release, with a driver that answers as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import UID, Document, GroupResource
from dray.api.errors import NotFoundError
from dray.lib.clock import VirtualClock
from dray.node.dra.claim_info_cache import ClaimRef
from dray.node.dra.claims import Device
from dray.node.dra.dra_manager import DraManager
from dray.node.dra.health.cache import DeviceKey
from dray.node.resource_manager import ResourceError
from dray.runtime.metrics import Metrics
from tests.unit.node.dra.test_claims import pod

DRIVER = "gpu.example.com"


class Server:
    """Serves claims by name."""

    def __init__(self, *names: str) -> None:
        self.claims = {name: _claim(name) for name in names}

    async def get(self, resource: Any, name: str, namespace: str) -> Document:
        if name not in self.claims:
            raise NotFoundError(GroupResource("resource.k8s.io", "resourceclaims"), name)
        return self.claims[name]


class Driver:
    """Prepares each claim with one device."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[UID, tuple[Device, ...]]:
        self.calls.append(("prepare", *(claim.key.name for claim in claims)))
        return {claim.uid: (Device("node-1", "gpu-0", cdi_device_ids=(f"{DRIVER}/gpu=0",)),) for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> tuple[UID, ...]:
        self.calls.append(("unprepare", *(claim.key.name for claim in claims)))
        return tuple(claim.uid for claim in claims)


class Manager(DraManager):
    """Uses one driver, which need not register."""

    def __init__(self, folder: Path, server: Server) -> None:
        clock = VirtualClock(lambda: asyncio.get_running_loop().create_future())
        super().__init__(server, "node-1", str(folder), clock, Metrics())  # type: ignore[arg-type]
        self.driver = Driver()

    def _client(self, driver: str) -> Any:
        return self.driver


def _claim(name: str) -> Document:
    result = {"request": "r", "driver": DRIVER, "pool": "node-1", "device": "gpu-0"}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}],
        },
    }


def entry(name: str, **fields: Any) -> Document:
    return {"name": name, "resourceClaimName": name, **fields}


def using(*names: str) -> list[Document]:
    return [{"name": "main", "resources": {"claims": [{"name": name} for name in names]}}]


@pytest.mark.behaviour("SP-111", "SP-117")
async def test_a_container_gets_the_devices_of_its_claims_until_they_are_released(tmp_path: Path) -> None:
    manager = Manager(tmp_path, Server("a"))
    user = pod(entry("a"), containers=using("a"))
    with pytest.raises(ResourceError, match="unable to get claim info"):
        manager.container_options(user, "main")
    await manager.prepare(user)
    options = manager.container_options(user, "main")
    assert options.cdi_devices == (f"{DRIVER}/gpu=0",)
    assert "uid-a" in options.annotations[manager.annotation]
    await manager.release(user)
    assert manager.driver.calls == [("prepare", "a"), ("unprepare", "a")]
    assert manager.note(user) == {}
    assert not manager.has_claim(user, "a")


async def test_an_optional_claim_that_does_not_exist_is_left_out(tmp_path: Path) -> None:
    manager = Manager(tmp_path, Server("a"))
    user = pod(entry("a", optional=True), entry("none", optional=True), containers=using("a", "none"))
    await manager.prepare(user)
    options = manager.container_options(user, "main")
    assert options.cdi_devices == (f"{DRIVER}/gpu=0",)
    assert options.envs == {"DRAY_CLAIM_A": "allocated", "DRAY_CLAIM_NONE": "none"}
    with pytest.raises(ResourceError, match="not found"):
        await manager.prepare(pod(entry("none")))


async def test_users_of_a_device_are_told_of_its_health(tmp_path: Path) -> None:
    manager = Manager(tmp_path, Server("a"))
    told: list[Sequence[str]] = []
    manager.on_change(told.append)
    await manager.prepare(pod(entry("a")))
    manager._health_changed([DeviceKey(DRIVER, "node-1", "gpu-9")])
    assert told == []
    manager._health_changed([DeviceKey(DRIVER, "node-1", "gpu-0")])
    assert told == [["pod-uid"]]
