"""Runs the checks in order and yields their findings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from dray.api.errors import APIError
from dray.cli.conformance.checks import claims, classic, devices, plugins, recovery, registration, slices
from dray.cli.conformance.classic_harness import ClassicHarness
from dray.cli.conformance.driver_client import CallError
from dray.cli.conformance.findings import AdviceError, CheckFailedError, Finding, SkipError, Verdict
from dray.cli.conformance.harness import Check, H, Harness
from dray.rpc.dra_services import DRA_SERVICES

DRIVER_CHECKS: Final[Sequence[Check[Harness]]] = (
    *registration.CHECKS.all,
    *slices.CHECKS.all,
    *claims.CHECKS.all,
    *devices.CHECKS.all,
    *recovery.CHECKS.all,
)
PLUGIN_CHECKS: Final[Sequence[Check[Harness]]] = tuple(plugins.CHECKS.all)
# All other checks depend on these; they always run.
FIRST: Final = frozenset({"registration-socket", "plugin-register"})
# The other checks of a classic plugin depend on this one.
CLASSIC_FIRST: Final = "classic-socket"


async def run_driver_checks(harness: Harness, selected: Collection[str]) -> AsyncGenerator[Finding, None]:
    """Check a DRA driver and yield each finding."""
    try:
        for check in DRIVER_CHECKS:
            if check.name not in selected and check.name not in FIRST:
                continue
            for version in _variants(check, harness):
                yield await _finding(check, harness, version)
            if check.name in FIRST and harness.socket is not None:
                await harness.objects.watch_slices(harness.info.name)
    finally:
        await harness.close()


async def run_plugin_checks(harness: Harness, selected: Collection[str]) -> AsyncGenerator[Finding, None]:
    """Check a device plugin and yield each finding."""
    async with _kubelet(harness):
        for check in PLUGIN_CHECKS:
            if check.name in selected or check.name in FIRST:
                yield await _finding(check, harness, "")


async def run_classic_checks(harness: ClassicHarness, selected: Collection[str]) -> AsyncGenerator[Finding, None]:
    """Check the controller and the node plugin of a classic driver and yield each finding."""
    plugin_checks = {check.name for check in classic.PLUGIN.all}
    if plugin_checks & set(selected):
        selected = {*selected, CLASSIC_FIRST}
    try:
        for check in (*classic.PLUGIN.all[:1], *classic.CONTROLLER.all, *classic.PLUGIN.all[1:]):
            if check.name in selected:
                yield await _finding(check, harness, "")
    finally:
        await harness.close()


@asynccontextmanager
async def _kubelet(harness: Harness) -> AsyncIterator[None]:
    await harness.kubelet.start()
    try:
        yield
    finally:
        await harness.kubelet.stop()


def _variants(check: Check[Harness], harness: Harness) -> Iterator[str]:
    yield from DRA_SERVICES if check.each_version else ("",)


async def _finding(check: Check[H], harness: H, version: str) -> Finding:
    started = harness.clock.monotonic()
    verdict, reason = await _verdict(check, harness, version)
    return Finding(check.name, verdict, reason, version.partition(".")[0], harness.clock.monotonic() - started)


async def _verdict(check: Check[H], harness: H, version: str) -> tuple[Verdict, str]:
    if version and version not in harness.versions():
        return Verdict.SKIPPED, f"the driver does not support {version}"
    try:
        return Verdict.PASSED, await check.body(harness, version) or ""
    except SkipError as skip:
        return Verdict.SKIPPED, str(skip)
    except AdviceError as advice:
        return Verdict.ADVICE, str(advice)
    except (CheckFailedError, CallError) as error:
        return Verdict.FAILED, str(error)
    except APIError as error:
        return Verdict.SKIPPED, f"the API server rejected a request: {error}"
