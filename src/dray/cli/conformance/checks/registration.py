"""Who the driver says it is."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from dray.cli.conformance.checks.table import Checks
from dray.cli.conformance.findings import NotMetError, hold
from dray.cli.conformance.kit import Kit
from dray.cli.conformance.links import CallError, is_socket, notify
from dray.cli.conformance.rules import registration as rules

CHECKS: Final = Checks()


@CHECKS.check("registration-socket")
async def _socket(kit: Kit, _version: str) -> str:
    await kit.find()
    return kit.socket_path


@CHECKS.check("registration-info")
async def _info(kit: Kit, _version: str) -> str:
    started = kit.clock.monotonic()
    info = await kit.again()
    hold(rules.type_problems(info, kit.clock.monotonic() - started, kit.timing.info_seconds))
    return f"{info.name}, {', '.join(info.versions)}"


@CHECKS.check("registration-name")
async def _name(kit: Kit, _version: str) -> None:
    hold(rules.name_problems(kit.info))


@CHECKS.check("registration-versions")
async def _versions(kit: Kit, _version: str) -> None:
    hold(rules.version_problems(kit.info))


@CHECKS.check("registration-endpoint")
async def _endpoint(kit: Kit, _version: str) -> None:
    hold(rules.endpoint_problems(kit.info, is_socket=is_socket(kit.info.endpoint)))


@CHECKS.check("registration-repeated")
async def _repeated(kit: Kit, _version: str) -> None:
    hold(rules.changed_problems(kit.info, await kit.again()))


@CHECKS.check("registration-refused")
async def _refused(kit: Kit, _version: str) -> None:
    await notify(kit.socket_path, "refused, to see what becomes of it")
    # It may end and be started again by whoever runs it.
    await kit.find()


@CHECKS.check("registration-accepted")
async def _accepted(kit: Kit, _version: str) -> None:
    await kit.accept()


@CHECKS.check("services-served")
async def _served(kit: Kit, _version: str) -> None:
    for version in kit.info.dra_versions:
        await _answers(kit, version)
    if rules.HEALTH in kit.info.versions:
        try:
            async with asyncio.timeout(kit.timing.first_seconds):
                async for _ in kit.link.watch_health():
                    return
        except TimeoutError:
            # It is served, and slow; another check is about that.
            return


async def _answers(kit: Kit, version: str) -> None:
    for call in (kit.link.prepare, kit.link.unprepare):
        try:
            await call(version, [])
        except CallError as error:
            # Any other failure is for another check.
            if error.code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE):
                raise NotMetError(f"{version}: {error}") from error
