"""Checks of NodePrepareResources and NodeUnprepareResources, with valid and invalid claims."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Final

from dray.cli.conformance.driver_client import UNANSWERED, CallError
from dray.cli.conformance.findings import AdviceError, CheckFailedError, SkipError, fail_on
from dray.cli.conformance.harness import Checks, Harness
from dray.cli.conformance.rules.responses import (
    ClaimRef,
    Responses,
    device_problems,
    difference_problems,
    entry_problems,
    refusal_problems,
    success_problems,
)

CHECKS: Final[Checks[Harness]] = Checks()
CONCURRENT_CALLS: Final = 4


def unknown(name: str = "dray-conformance-unknown") -> ClaimRef:
    """Return a reference to a claim that does not exist."""
    return ClaimRef("default", name, str(uuid.uuid4()))


async def prepare_invalid(harness: Harness, version: str, refs: Sequence[ClaimRef]) -> Responses:
    """Prepare claims of which some are invalid; to refuse the whole call is a way that kubelet understands as well."""
    try:
        return await harness.client.prepare(version, refs)
    except CallError as error:
        if error.code in UNANSWERED:
            raise
        raise AdviceError(f"the call failed for all its claims: {error}") from error


@CHECKS.check("prepare-answered", each_version=True)
async def _translate_errors(harness: Harness, version: str) -> str:
    async with harness.claim(version) as claim:
        entry = await harness.prepared(version, claim)
        return f"{', '.join(map(str, entry.devices)) or 'no devices'}"


@CHECKS.check("prepare-devices", each_version=True)
async def _devices(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        fail_on(device_problems(harness.info.name, claim.allocation, await harness.prepared(version, claim)))


@CHECKS.check("prepare-repeated", each_version=True)
async def _repeated(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        first = await harness.prepared(version, claim)
        fail_on(difference_problems(first, await harness.prepared(version, claim), "the second time"))


@CHECKS.check("prepare-duplicate", each_version=True)
async def _duplicate(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        fail_on(success_problems([claim.ref], await harness.client.prepare(version, [claim.ref, claim.ref])))


@CHECKS.check("prepare-concurrent", each_version=True)
async def _concurrent(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        answers = await asyncio.gather(*(harness.prepared(version, claim) for _ in range(CONCURRENT_CALLS)))
        for other in answers[1:]:
            fail_on(difference_problems(answers[0], other, "in another call"))


@CHECKS.check("prepare-empty", each_version=True)
async def _empty(harness: Harness, version: str) -> None:
    fail_on(entry_problems([], await harness.client.prepare(version, [])))
    fail_on(entry_problems([], await harness.client.unprepare(version, [])))


@CHECKS.check("prepare-missing", each_version=True)
async def _missing(harness: Harness, version: str) -> None:
    ref = unknown()
    fail_on(refusal_problems([ref], await prepare_invalid(harness, version, [ref])))


@CHECKS.check("prepare-replaced", each_version=True)
async def _replaced(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        ref = ClaimRef(claim.ref.namespace, claim.ref.name, str(uuid.uuid4()))
        fail_on(refusal_problems([ref], await prepare_invalid(harness, version, [ref])))


@CHECKS.check("prepare-unallocated", each_version=True)
async def _unallocated(harness: Harness, version: str) -> None:
    claim = await harness.objects.claim(allocated=False)
    try:
        fail_on(refusal_problems([claim.ref], await prepare_invalid(harness, version, [claim.ref])))
    finally:
        await harness.objects.delete_claim(claim)


@CHECKS.check("prepare-mixed", each_version=True)
async def _mixed(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        # Invalid claims are first and last: stopping at either would lose the valid one or its response.
        first, last = unknown("dray-conformance-first"), unknown("dray-conformance-last")
        answers = await prepare_invalid(harness, version, [first, claim.ref, last])
        fail_on(entry_problems([first, claim.ref, last], answers))
        fail_on(success_problems([claim.ref], {claim.ref.uid: answers[claim.ref.uid]}))
        for ref in (first, last):
            fail_on(refusal_problems([ref], {ref.uid: answers[ref.uid]}))


@CHECKS.check("unprepare-answered", each_version=True)
async def _unprepare(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        await harness.prepared(version, claim)
        await harness.unprepared(version, claim.ref)


@CHECKS.check("unprepare-repeated", each_version=True)
async def _unprepare_again(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        await harness.prepared(version, claim)
        await harness.unprepared(version, claim.ref)
        await harness.unprepared(version, claim.ref)


@CHECKS.check("unprepare-unknown", each_version=True)
async def _unprepare_unknown(harness: Harness, version: str) -> None:
    await harness.unprepared(version, unknown(), unknown("dray-conformance-other"))


@CHECKS.check("unprepare-deleted", each_version=True)
async def _unprepare_deleted(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        await harness.prepared(version, claim)
        await harness.objects.delete_claim(claim)
        await harness.unprepared(version, claim.ref)


@CHECKS.check("prepare-again", each_version=True)
async def _again(harness: Harness, version: str) -> None:
    async with harness.claim(version) as claim:
        await harness.prepared(version, claim)
        await harness.unprepared(version, claim.ref)
        fail_on(device_problems(harness.info.name, claim.allocation, await harness.prepared(version, claim)))


@CHECKS.check("versions-agree")
async def _agree(harness: Harness, _version: str) -> None:
    versions = harness.versions()
    if not versions:
        raise SkipError("the driver serves no version")
    if len(versions) == 1:
        raise SkipError(f"only {versions[0]} is served")
    first, second = versions[:2]
    async with harness.claim(first) as claim:
        entry = await harness.prepared(first, claim)
        other = await harness.prepared(second, claim)
        # v1beta1 has no share ids.
        pairs = [
            sorted((device.pool, device.name, device.cdi_ids) for device in item.devices) for item in (entry, other)
        ]
        if pairs[0] != pairs[1]:
            raise CheckFailedError(f"{first} answers {pairs[0]}, {second} answers {pairs[1]}")
        await harness.unprepared(second, claim.ref)
        await harness.unprepared(first, claim.ref)
