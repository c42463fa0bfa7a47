"""Checks of plugin registration."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Final

import grpc

from dray.cli.conformance.driver_client import UNANSWERED, CallError, is_socket, notify
from dray.cli.conformance.findings import AdviceError, CheckFailedError, fail_on
from dray.cli.conformance.harness import Checks, Harness
from dray.cli.conformance.rules import registration as rules

CHECKS: Final[Checks[Harness]] = Checks()


@CHECKS.check("registration-socket")
async def _socket(harness: Harness, _version: str) -> str:
    await harness.find_driver()
    return harness.socket_path


@CHECKS.check("registration-info")
async def _info(harness: Harness, _version: str) -> str:
    started = harness.clock.monotonic()
    info = await harness.fetch_info()
    fail_on(rules.type_problems(info, harness.clock.monotonic() - started, harness.timing.info_seconds))
    return f"{info.name}, {', '.join(info.versions)}"


@CHECKS.check("registration-name")
async def _name(harness: Harness, _version: str) -> None:
    fail_on(rules.name_problems(harness.info))


@CHECKS.check("registration-versions")
async def _versions(harness: Harness, _version: str) -> None:
    fail_on(rules.version_problems(harness.info))


@CHECKS.check("registration-endpoint")
async def _endpoint(harness: Harness, _version: str) -> None:
    fail_on(rules.endpoint_problems(harness.info, is_socket=is_socket(harness.info.endpoint)))


@CHECKS.check("registration-repeated")
async def _repeated(harness: Harness, _version: str) -> None:
    fail_on(rules.changed_problems(harness.info, await harness.fetch_info()))


@CHECKS.check("registration-refused")
async def _refused(harness: Harness, _version: str) -> None:
    complaint: CallError | None = None
    try:
        await notify(harness.socket_path, "rejected by dray conformance")
    except CallError as error:
        if error.code in UNANSWERED:
            raise
        complaint = error
    # The driver may exit and be restarted by its supervisor.
    await harness.find_driver()
    if complaint is not None:
        raise AdviceError(str(complaint))


@CHECKS.check("registration-accepted")
async def _accepted(harness: Harness, _version: str) -> None:
    await harness.confirm_registration()


@CHECKS.check("services-served")
async def _served(harness: Harness, _version: str) -> None:
    for version in harness.info.dra_versions:
        await _answers(harness, version)
    for version in harness.info.health_versions:
        # Served but slow is what another check reports.
        with suppress(TimeoutError):
            async with asyncio.timeout(harness.timing.first_seconds):
                await _starts_stream(harness, version)


async def _starts_stream(harness: Harness, version: str) -> None:
    async with aclosing(harness.client.watch_health(version)) as lists:
        async for _ in lists:
            return


async def _answers(harness: Harness, version: str) -> None:
    for call in (harness.client.prepare, harness.client.unprepare):
        try:
            await call(version, [])
        except CallError as error:
            # Other checks report all other errors.
            if error.code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE):
                raise CheckFailedError(f"{version}: {error}") from error
