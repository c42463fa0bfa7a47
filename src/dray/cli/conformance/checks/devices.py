"""CDI specs and health of DRA drivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import grpc

from dray.cli.conformance.checks.table import Checks
from dray.cli.conformance.findings import NotMetError, SkipError, hold
from dray.cli.conformance.kit import Kit
from dray.cli.conformance.links import CallError
from dray.cli.conformance.rules import devices as rules
from dray.cli.conformance.rules.registration import HEALTH

CHECKS: Final = Checks()


@asynccontextmanager
async def _cdi_ids(kit: Kit) -> AsyncIterator[Sequence[str]]:
    """The CDI devices of a claim while it is prepared."""
    versions = kit.versions()
    if not versions:
        raise SkipError("the driver serves no version")
    async with kit.claim(versions[0]) as claim:
        entry = await kit.prepared(versions[0], claim)
        ids = [name for device in entry.devices for name in device.cdi_ids]
        if not ids:
            raise SkipError("the driver answered without CDI devices")
        yield ids


@CHECKS.check("cdi-qualified")
async def _qualified(kit: Kit, _version: str) -> None:
    async with _cdi_ids(kit) as ids:
        hold(rules.unqualified_problems(ids))


@CHECKS.check("cdi-present")
async def _present(kit: Kit, _version: str) -> None:
    async with _cdi_ids(kit) as ids:
        hold(rules.missing_problems(ids, kit.cdi.registry().devices, kit.place.cdi_folders))


@CHECKS.check("cdi-valid")
async def _valid(kit: Kit, _version: str) -> None:
    async with _cdi_ids(kit):
        hold(rules.spec_problems(kit.cdi.registry().problems, kit.broken_before))


@CHECKS.check("cdi-unique")
async def _unique(kit: Kit, _version: str) -> None:
    async with _cdi_ids(kit):
        hold(rules.conflict_problems(kit.cdi.registry().problems, kit.broken_before))


async def _first_list(kit: Kit) -> Sequence[Any]:
    try:
        async with asyncio.timeout(kit.timing.first_seconds), aclosing(kit.link.watch_health()) as lists:
            async for devices in lists:
                return devices
    except TimeoutError as error:
        raise NotMetError(f"nothing came within {kit.timing.first_seconds:g} s") from error
    except CallError as error:
        if error.code is grpc.StatusCode.UNIMPLEMENTED and HEALTH not in kit.info.versions:
            raise SkipError("the driver does not report health") from error
        raise
    raise NotMetError("the stream ended without a list")


@CHECKS.check("health-first")
async def _first(kit: Kit, _version: str) -> str:
    return f"{len(await _first_list(kit))} devices"


@CHECKS.check("health-devices")
async def _devices(kit: Kit, _version: str) -> None:
    listed = [
        rules.Reported(
            item.device.pool_name,
            item.device.device_name,
            item.health,
            item.last_updated_time,
            item.health_check_timeout_seconds,
        )
        for item in await _first_list(kit)
    ]
    published = {
        (item["spec"]["pool"]["name"], device["name"])
        for item in await kit.objects.slices()
        for device in item["spec"].get("devices") or ()
    }
    hold(rules.health_problems(listed, published, kit.clock.now().timestamp()))


@CHECKS.check("health-again")
async def _again(kit: Kit, _version: str) -> None:
    await _first_list(kit)
    await kit.disconnect()
    await _first_list(kit)
