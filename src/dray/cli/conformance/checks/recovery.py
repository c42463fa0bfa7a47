"""Calls given up, restarts of kubelet and of the driver, kills at bad moments."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from dray.cli.conformance.checks.slices import monotonic
from dray.cli.conformance.checks.table import Checks
from dray.cli.conformance.findings import NotMetError, SkipError, hold
from dray.cli.conformance.kit import Kit
from dray.cli.conformance.links import CallError
from dray.cli.conformance.rules.answers import difference_problems
from dray.cli.conformance.rules.registration import changed_problems

CHECKS: Final = Checks()
# Given up this long after the call began.
GIVE_UP_SECONDS: Final = (0.001, 0.02, 0.3)
# Killed this long after: before the driver has heard of it, at work, and about to answer; or when it has answered.
KILL_SECONDS: Final = (0.0, 0.01, 0.05, 0.3)


def _version_of(kit: Kit) -> str:
    versions = kit.versions()
    if not versions:
        raise SkipError("the driver serves no version")
    return versions[0]


@CHECKS.check("call-cancelled")
async def _cancelled(kit: Kit, _version: str) -> None:
    version = _version_of(kit)
    async with kit.claim(version) as claim:
        for seconds in GIVE_UP_SECONDS:
            with suppress(CallError):
                await kit.link.prepare(version, [claim.ref], deadline_seconds=seconds)
            await _abandon(kit.link.prepare(version, [claim.ref], kit.timing.call_seconds), seconds)
            await kit.prepared(version, claim)
            with suppress(CallError):
                await kit.link.unprepare(version, [claim.ref], deadline_seconds=seconds)
            await _abandon(kit.link.unprepare(version, [claim.ref], kit.timing.call_seconds), seconds)
            await kit.unprepared(version, claim.ref)


async def _abandon(call: Coroutine[Any, Any, Any], seconds: float) -> None:
    task = asyncio.create_task(call)
    await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@CHECKS.check("kubelet-restarted")
async def _kubelet(kit: Kit, _version: str) -> None:
    version = _version_of(kit)
    async with kit.claim(version) as claim:
        before = await kit.prepared(version, claim)
        await kit.disconnect()
        hold(changed_problems(kit.info, await kit.again()))
        await kit.accept()
        hold(difference_problems(before, await kit.prepared(version, claim), "after the restart"))
        await kit.unprepared(version, claim.ref)


@CHECKS.check("restart-registered")
async def _registered(kit: Kit, _version: str) -> str:
    before, started = kit.info, kit.clock.monotonic()
    await kit.restart()
    hold(changed_problems(before, kit.info))
    return f"after {kit.clock.monotonic() - started:.1f} s"


@CHECKS.check("restart-prepared")
async def _prepared(kit: Kit, _version: str) -> None:
    version = _version_of(kit)
    async with kit.claim(version) as claim:
        before = await kit.prepared(version, claim)
        await kit.restart()
        hold(difference_problems(before, await kit.prepared(version, claim), "after the restart"))
        await kit.unprepared(version, claim.ref)


@CHECKS.check("restart-deleted")
async def _deleted(kit: Kit, _version: str) -> None:
    version = _version_of(kit)
    async with kit.claim(version) as claim:
        await kit.prepared(version, claim)
        await kit.objects.delete_claim(claim)
        await kit.restart()
        await kit.unprepared(version, claim.ref)


@CHECKS.check("kill-prepare")
async def _kill_prepare(kit: Kit, _version: str) -> None:
    version = _version_of(kit)
    for seconds in KILL_SECONDS:
        async with kit.claim(version) as claim:
            await _killed_during(kit, kit.link.prepare(version, [claim.ref], kit.timing.call_seconds), seconds)
            await kit.prepared(version, claim)
            await kit.unprepared(version, claim.ref)


@CHECKS.check("kill-unprepare")
async def _kill_unprepare(kit: Kit, _version: str) -> None:
    version = _version_of(kit)
    for seconds in KILL_SECONDS:
        async with kit.claim(version) as claim:
            await kit.prepared(version, claim)
            await _killed_during(kit, kit.link.unprepare(version, [claim.ref], kit.timing.call_seconds), seconds)
            await kit.unprepared(version, claim.ref)


async def _killed_during(kit: Kit, call: Coroutine[Any, Any, Any], seconds: float) -> None:
    task = asyncio.create_task(call)
    try:
        await asyncio.wait({task}, timeout=seconds)
        await kit.restart()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@CHECKS.check("calls-in-time")
async def _in_time(kit: Kit, _version: str) -> str:
    seconds, method = kit.slowest
    if not method:
        raise SkipError("no call was made")
    if seconds >= kit.timing.call_seconds:
        raise NotMetError(f"{method} took {seconds:.1f} s")
    return f"the slowest was {method} with {seconds:.2f} s"


CHECKS.check("slices-monotonic")(monotonic)
