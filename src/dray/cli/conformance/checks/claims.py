"""Prepare and unprepare, in the right and the wrong order."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from dray.cli.conformance.checks.table import Checks
from dray.cli.conformance.findings import NotMetError, SkipError, hold
from dray.cli.conformance.kit import Kit
from dray.cli.conformance.rules.answers import (
    ClaimRef,
    device_problems,
    difference_problems,
    entry_problems,
    refusal_problems,
    success_problems,
)

CHECKS: Final = Checks()
CONCURRENT_CALLS: Final = 4


def unknown(name: str = "dray-conformance-unknown") -> ClaimRef:
    """A claim that nobody has heard of."""
    return ClaimRef("default", name, str(uuid.uuid4()))


@CHECKS.check("prepare-answered", each_version=True)
async def _answered(kit: Kit, version: str) -> str:
    async with kit.claim(version) as claim:
        entry = await kit.prepared(version, claim)
        return f"{', '.join(map(str, entry.devices)) or 'no devices'}"


@CHECKS.check("prepare-devices", each_version=True)
async def _devices(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        hold(device_problems(kit.info.name, claim.allocation, await kit.prepared(version, claim)))


@CHECKS.check("prepare-repeated", each_version=True)
async def _repeated(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        first = await kit.prepared(version, claim)
        hold(difference_problems(first, await kit.prepared(version, claim), "the second time"))


@CHECKS.check("prepare-duplicate", each_version=True)
async def _duplicate(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        hold(success_problems([claim.ref], await kit.link.prepare(version, [claim.ref, claim.ref])))


@CHECKS.check("prepare-concurrent", each_version=True)
async def _concurrent(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        answers = await asyncio.gather(*(kit.prepared(version, claim) for _ in range(CONCURRENT_CALLS)))
        for other in answers[1:]:
            hold(difference_problems(answers[0], other, "in another call"))


@CHECKS.check("prepare-empty", each_version=True)
async def _empty(kit: Kit, version: str) -> None:
    hold(entry_problems([], await kit.link.prepare(version, [])))
    hold(entry_problems([], await kit.link.unprepare(version, [])))


@CHECKS.check("prepare-missing", each_version=True)
async def _missing(kit: Kit, version: str) -> None:
    ref = unknown()
    hold(refusal_problems([ref], await kit.link.prepare(version, [ref])))


@CHECKS.check("prepare-replaced", each_version=True)
async def _replaced(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        ref = ClaimRef(claim.ref.namespace, claim.ref.name, str(uuid.uuid4()))
        hold(refusal_problems([ref], await kit.link.prepare(version, [ref])))


@CHECKS.check("prepare-unallocated", each_version=True)
async def _unallocated(kit: Kit, version: str) -> None:
    claim = await kit.objects.claim(allocated=False)
    try:
        hold(refusal_problems([claim.ref], await kit.link.prepare(version, [claim.ref])))
    finally:
        await kit.objects.delete_claim(claim)


@CHECKS.check("prepare-mixed", each_version=True)
async def _mixed(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        # The bad ones come first and last: stopping at either loses the good one or its answer.
        first, last = unknown("dray-conformance-first"), unknown("dray-conformance-last")
        answers = await kit.link.prepare(version, [first, claim.ref, last])
        hold(entry_problems([first, claim.ref, last], answers))
        hold(success_problems([claim.ref], {claim.ref.uid: answers[claim.ref.uid]}))
        for ref in (first, last):
            hold(refusal_problems([ref], {ref.uid: answers[ref.uid]}))


@CHECKS.check("unprepare-answered", each_version=True)
async def _unprepare(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        await kit.prepared(version, claim)
        await kit.unprepared(version, claim.ref)


@CHECKS.check("unprepare-repeated", each_version=True)
async def _unprepare_again(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        await kit.prepared(version, claim)
        await kit.unprepared(version, claim.ref)
        await kit.unprepared(version, claim.ref)


@CHECKS.check("unprepare-unknown", each_version=True)
async def _unprepare_unknown(kit: Kit, version: str) -> None:
    await kit.unprepared(version, unknown(), unknown("dray-conformance-other"))


@CHECKS.check("unprepare-deleted", each_version=True)
async def _unprepare_deleted(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        await kit.prepared(version, claim)
        await kit.objects.delete_claim(claim)
        await kit.unprepared(version, claim.ref)


@CHECKS.check("prepare-again", each_version=True)
async def _again(kit: Kit, version: str) -> None:
    async with kit.claim(version) as claim:
        await kit.prepared(version, claim)
        await kit.unprepared(version, claim.ref)
        hold(device_problems(kit.info.name, claim.allocation, await kit.prepared(version, claim)))


@CHECKS.check("versions-agree")
async def _agree(kit: Kit, _version: str) -> None:
    versions = kit.versions()
    if len(versions) < 2:  # noqa: PLR2004 - two are needed to agree
        raise SkipError(f"only {versions[0]} is served" if versions else "the driver serves no version")
    first, second = versions[:2]
    async with kit.claim(first) as claim:
        entry = await kit.prepared(first, claim)
        other = await kit.prepared(second, claim)
        # The older version has no place for shares.
        pairs = [
            sorted((device.pool, device.name, device.cdi_ids) for device in item.devices) for item in (entry, other)
        ]
        if pairs[0] != pairs[1]:
            raise NotMetError(f"{first} answers {pairs[0]}, {second} answers {pairs[1]}")
        await kit.unprepared(second, claim.ref)
        await kit.unprepared(first, claim.ref)
