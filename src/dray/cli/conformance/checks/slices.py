"""Checks of the driver's ResourceSlices."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.cli.conformance.findings import CheckFailedError, SkipError, fail_on
from dray.cli.conformance.harness import Checks, Harness, wait_until
from dray.cli.conformance.rules import slices as rules

CHECKS: Final[Checks[Harness]] = Checks()


async def _slices(harness: Harness) -> list[Document]:
    if not await harness.published():
        raise SkipError("the driver publishes nothing")
    return await harness.objects.slices()


@CHECKS.check("slices-published")
async def _published(harness: Harness, _version: str) -> str:
    if not await harness.published():
        raise CheckFailedError(
            f"no ResourceSlice with driver {harness.info.name} within {harness.timing.appear_seconds:g} s"
        )
    slices = await harness.objects.slices()
    devices = sum(len(item["spec"].get("devices") or ()) for item in slices)
    return f"{devices} devices in {len(slices)} slices"


@CHECKS.check("slices-valid")
async def _valid(harness: Harness, _version: str) -> None:
    fail_on(rules.invalid_problems(await _slices(harness)))


@CHECKS.check("slices-node")
async def _node(harness: Harness, _version: str) -> None:
    fail_on(rules.node_problems(await _slices(harness), harness.target.node_name))


@CHECKS.check("slices-complete")
async def _complete(harness: Harness, _version: str) -> None:
    fail_on(rules.count_problems(await _slices(harness)))


@CHECKS.check("slices-current")
async def _current(harness: Harness, _version: str) -> None:
    fail_on(rules.outdated_problems(await _slices(harness)))


@CHECKS.check("slices-unique")
async def _unique(harness: Harness, _version: str) -> None:
    fail_on(rules.name_problems(await _slices(harness)))


@CHECKS.check("slices-repaired")
async def _repaired(harness: Harness, _version: str) -> str:
    slices = await _slices(harness)
    gone = slices[0]["metadata"]["uid"]
    started = harness.clock.monotonic()
    await harness.objects.delete_slice(slices[0]["metadata"]["name"])

    async def is_republished() -> bool:
        now = await harness.objects.slices()
        return len(now) >= len(slices) and all(item["metadata"]["uid"] != gone for item in now)

    if not await wait_until(is_republished, harness.timing.repair_seconds, harness.clock):
        raise CheckFailedError(
            f"{len(await harness.objects.slices())} of {len(slices)} slices after {harness.timing.repair_seconds:g} s"
        )
    await harness.wait_for_complete_pools()
    return f"after {harness.clock.monotonic() - started:.1f} s"


async def monotonic(harness: Harness, _version: str) -> str:
    """Check all recorded writes; runs last."""
    await wait_until(harness.objects.has_recorded_all, harness.timing.first_seconds, harness.clock)
    if not harness.objects.history:
        raise SkipError("the driver publishes nothing")
    fail_on(rules.decrease_problems(harness.objects.history))
    return f"{len(harness.objects.history)} writes recorded"
