"""Checks of CDI specs and of device health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import grpc

from dray.cli.conformance.driver_client import CallError
from dray.cli.conformance.findings import CheckFailedError, SkipError, fail_on
from dray.cli.conformance.harness import Checks, Harness
from dray.cli.conformance.rules import devices as rules
from dray.rpc.dra_services import HEALTH_SERVICES

CHECKS: Final[Checks[Harness]] = Checks()


@asynccontextmanager
async def _cdi_ids(harness: Harness) -> AsyncIterator[Sequence[str]]:
    """Prepare a claim and yield its CDI device ids."""
    versions = harness.versions()
    if not versions:
        raise SkipError("the driver serves no version")
    async with harness.claim(versions[0]) as claim:
        entry = await harness.prepared(versions[0], claim)
        ids = [name for device in entry.devices for name in device.cdi_ids]
        if not ids:
            raise SkipError("the response has no CDI devices")
        yield ids


@CHECKS.check("cdi-qualified")
async def _qualified(harness: Harness, _version: str) -> None:
    async with _cdi_ids(harness) as ids:
        fail_on(rules.unqualified_problems(ids))


@CHECKS.check("cdi-present")
async def _present(harness: Harness, _version: str) -> None:
    async with _cdi_ids(harness) as ids:
        fail_on(rules.missing_problems(ids, harness.cdi.registry().devices, harness.target.cdi_directories))


@CHECKS.check("cdi-valid")
async def _valid(harness: Harness, _version: str) -> None:
    async with _cdi_ids(harness):
        fail_on(rules.spec_problems(harness.cdi.registry().unreadable, harness.preexisting_problems))


@CHECKS.check("cdi-unique")
async def _unique(harness: Harness, _version: str) -> None:
    async with _cdi_ids(harness):
        fail_on(rules.conflict_problems(harness.cdi.registry().conflicts, harness.preexisting_problems))


async def _first_list(harness: Harness) -> Sequence[Any]:
    """Return the first list of the newest health service that the driver lists, or else serves."""
    for version in harness.info.health_versions or HEALTH_SERVICES:
        try:
            return await _first_list_of(harness, version)
        except CallError as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED or harness.info.health_versions:
                raise
    raise SkipError("the driver does not report health")


async def _first_list_of(harness: Harness, version: str) -> Sequence[Any]:
    try:
        async with (
            asyncio.timeout(harness.timing.first_seconds),
            aclosing(harness.client.watch_health(version)) as lists,
        ):
            async for devices in lists:
                return devices
    except TimeoutError as error:
        raise CheckFailedError(f"no list within {harness.timing.first_seconds:g} s") from error
    raise CheckFailedError("the stream ended without a list")


@CHECKS.check("health-first")
async def _first(harness: Harness, _version: str) -> str:
    return f"{len(await _first_list(harness))} devices"


@CHECKS.check("health-devices")
async def _devices(harness: Harness, _version: str) -> None:
    listed = [
        rules.Reported(
            item.device.pool_name,
            item.device.device_name,
            item.health,
            item.last_updated_time,
            item.health_check_timeout_seconds,
        )
        for item in await _first_list(harness)
    ]
    published = {
        (item["spec"]["pool"]["name"], device["name"])
        for item in await harness.objects.slices()
        for device in item["spec"].get("devices") or ()
    }
    fail_on(rules.health_problems(listed, published, harness.clock.now().timestamp()))


@CHECKS.check("health-again")
async def _again(harness: Harness, _version: str) -> None:
    await _first_list(harness)
    await harness.disconnect()
    await _first_list(harness)
