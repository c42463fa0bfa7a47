"""Checks of recovery: cancelled calls, restarts of kubelet and of the driver, kills during calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from dray.cli.conformance.checks.slices import monotonic
from dray.cli.conformance.driver_client import CallError
from dray.cli.conformance.findings import CheckFailedError, SkipError, fail_on
from dray.cli.conformance.harness import Checks, Harness
from dray.cli.conformance.rules.registration import changed_problems
from dray.cli.conformance.rules.responses import difference_problems
from dray.runtime.tasks import TaskGroup

CHECKS: Final[Checks[Harness]] = Checks()
# Calls are cancelled after these times.
CANCEL_SECONDS: Final = (0.001, 0.02, 0.3)
# The driver is killed this long after a call began: before it receives the call, at work, and about to respond.
KILL_SECONDS: Final = (0.0, 0.01, 0.05, 0.3)


def _version_of(harness: Harness) -> str:
    versions = harness.versions()
    if not versions:
        raise SkipError("the driver serves no version")
    return versions[0]


@CHECKS.check("call-cancelled")
async def _cancelled(harness: Harness, _version: str) -> None:
    version = _version_of(harness)
    async with harness.claim(version) as claim:
        for seconds in CANCEL_SECONDS:
            with suppress(CallError):
                await harness.client.prepare(version, [claim.ref], deadline_seconds=seconds)
            await _cancel_after(harness.client.prepare(version, [claim.ref], harness.timing.call_seconds), seconds)
            await harness.prepared(version, claim)
            with suppress(CallError):
                await harness.client.unprepare(version, [claim.ref], deadline_seconds=seconds)
            await _cancel_after(harness.client.unprepare(version, [claim.ref], harness.timing.call_seconds), seconds)
            await harness.unprepared(version, claim.ref)


async def _cancel_after(call: Coroutine[Any, Any, Any], seconds: float) -> None:
    with suppress(CallError, TimeoutError):
        async with asyncio.timeout(seconds):
            await call


@CHECKS.check("kubelet-restarted")
async def _kubelet(harness: Harness, _version: str) -> None:
    version = _version_of(harness)
    async with harness.claim(version) as claim:
        before = await harness.prepared(version, claim)
        await harness.disconnect()
        fail_on(changed_problems(harness.info, await harness.fetch_info()))
        await harness.confirm_registration()
        fail_on(difference_problems(before, await harness.prepared(version, claim), "after the restart"))
        await harness.unprepared(version, claim.ref)


@CHECKS.check("restart-registered")
async def _registered(harness: Harness, _version: str) -> str:
    before, started = harness.info, harness.clock.monotonic()
    await harness.restart()
    fail_on(changed_problems(before, harness.info))
    return f"after {harness.clock.monotonic() - started:.1f} s"


@CHECKS.check("restart-prepared")
async def _prepared(harness: Harness, _version: str) -> None:
    version = _version_of(harness)
    async with harness.claim(version) as claim:
        before = await harness.prepared(version, claim)
        await harness.restart()
        fail_on(difference_problems(before, await harness.prepared(version, claim), "after the restart"))
        await harness.unprepared(version, claim.ref)


@CHECKS.check("restart-deleted")
async def _deleted(harness: Harness, _version: str) -> None:
    version = _version_of(harness)
    async with harness.claim(version) as claim:
        await harness.prepared(version, claim)
        await harness.objects.delete_claim(claim)
        await harness.restart()
        await harness.unprepared(version, claim.ref)


@CHECKS.check("kill-prepare")
async def _kill_prepare(harness: Harness, _version: str) -> None:
    version = _version_of(harness)
    for seconds in KILL_SECONDS:
        async with harness.claim(version) as claim:
            await _killed_during(
                harness, harness.client.prepare(version, [claim.ref], harness.timing.call_seconds), seconds
            )
            await harness.prepared(version, claim)
            await harness.unprepared(version, claim.ref)


@CHECKS.check("kill-unprepare")
async def _kill_unprepare(harness: Harness, _version: str) -> None:
    version = _version_of(harness)
    for seconds in KILL_SECONDS:
        async with harness.claim(version) as claim:
            await harness.prepared(version, claim)
            await _killed_during(
                harness, harness.client.unprepare(version, [claim.ref], harness.timing.call_seconds), seconds
            )
            await harness.unprepared(version, claim.ref)


async def _killed_during(harness: Harness, call: Coroutine[Any, Any, Any], seconds: float) -> None:
    async def ignoring_errors() -> None:
        with suppress(CallError):
            await call

    async with TaskGroup("call during a kill") as group:
        await asyncio.wait({group.spawn(ignoring_errors(), "call")}, timeout=seconds)
        await harness.restart()


@CHECKS.check("calls-in-time")
async def _in_time(harness: Harness, _version: str) -> str:
    seconds, method = harness.slowest_call
    if not method:
        raise SkipError("no call was made")
    if seconds >= harness.timing.call_seconds:
        raise CheckFailedError(f"{method} took {seconds:.1f} s")
    return f"slowest call: {method}, {seconds:.2f} s"


CHECKS.check("slices-monotonic")(monotonic)
