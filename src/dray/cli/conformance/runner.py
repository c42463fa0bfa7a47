"""Makes the checks in order, and turns what they come to into findings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from dray.api.errors import APIError
from dray.cli.conformance.checks import claims, devices, plugins, recovery, registration, slices
from dray.cli.conformance.checks.table import Check
from dray.cli.conformance.findings import Finding, NotMetError, SkipError, Verdict
from dray.cli.conformance.kit import Kit
from dray.cli.conformance.links import CallError
from dray.cli.conformance.rules.registration import DRA_SERVICES

DRIVER_CHECKS: Final[Sequence[Check]] = (
    *registration.CHECKS.all,
    *slices.CHECKS.all,
    *claims.CHECKS.all,
    *devices.CHECKS.all,
    *recovery.CHECKS.all,
)
PLUGIN_CHECKS: Final[Sequence[Check]] = tuple(plugins.CHECKS.all)
# Nothing can be said without these; they are made whatever is chosen.
FIRST: Final = frozenset({"registration-socket", "plugin-register"})


async def run_driver_checks(kit: Kit, chosen: Collection[str]) -> AsyncGenerator[Finding, None]:
    """Check a DRA driver; findings come as they are made."""
    following: asyncio.Task[None] | None = None
    try:
        for check in DRIVER_CHECKS:
            if check.name not in chosen and check.name not in FIRST:
                continue
            for version in _variants(check, kit):
                yield await _finding(check, kit, version)
            if check.name in FIRST and kit.socket is not None:
                following = await kit.objects.follow(kit.info.name)
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await kit.close()


async def run_plugin_checks(kit: Kit, chosen: Collection[str]) -> AsyncGenerator[Finding, None]:
    """Check a device plugin."""
    async with _kubelet(kit):
        for check in PLUGIN_CHECKS:
            if check.name in chosen or check.name in FIRST:
                yield await _finding(check, kit, "")


@asynccontextmanager
async def _kubelet(kit: Kit) -> AsyncIterator[None]:
    await kit.kubelet.start()
    try:
        yield
    finally:
        await kit.kubelet.stop()


def _variants(check: Check, kit: Kit) -> Iterator[str]:
    yield from DRA_SERVICES if check.each_version else ("",)


async def _finding(check: Check, kit: Kit, version: str) -> Finding:
    started = kit.clock.monotonic()
    verdict, reason = await _verdict(check, kit, version)
    return Finding(check.name, verdict, reason, version.partition(".")[0], kit.clock.monotonic() - started)


async def _verdict(check: Check, kit: Kit, version: str) -> tuple[Verdict, str]:
    if version and version not in kit.versions():
        return Verdict.SKIPPED, f"the driver does not offer {version}"
    try:
        return Verdict.PASSED, await check.body(kit, version) or ""
    except SkipError as skip:
        return Verdict.SKIPPED, str(skip)
    except (NotMetError, CallError) as error:
        return Verdict.FAILED, str(error)
    except APIError as error:
        return Verdict.SKIPPED, f"the API server refuses: {error}"
