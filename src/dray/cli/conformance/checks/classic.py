"""Checks of classic drivers: the controller, which allocates claims, and the node plugin, which prepares them."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from dray.api import classic_claims as classic
from dray.api.classic_claims import reservation_of
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.api.types.meta_v1 import ObjectMeta
from dray.cli.conformance.classic_harness import DELAYED, POD_UID, ClassicHarness
from dray.cli.conformance.driver_client import CallError
from dray.cli.conformance.findings import CheckFailedError, SkipError, fail_on
from dray.cli.conformance.harness import Checks
from dray.cli.conformance.rules import classic as rules
from dray.cli.conformance.rules.devices import missing_problems, unqualified_problems

CONTROLLER: Final[Checks[ClassicHarness]] = Checks()
PLUGIN: Final[Checks[ClassicHarness]] = Checks()

_USER: Final = reservation_of(Pod(metadata=ObjectMeta(name="dray-conformance", uid=POD_UID)))


# --- The controller. ---


@CONTROLLER.check("classic-immediate")
async def _immediate(harness: ClassicHarness, _version: str) -> None:
    async with harness.classic_claim(classic.IMMEDIATE) as claim:
        await harness.wait_for(claim, classic.is_allocated, "did not allocate the claim")


@CONTROLLER.check("classic-allocated")
async def _allocated(harness: ClassicHarness, _version: str) -> None:
    # Checked by `allocated`.
    async with harness.allocated():
        pass


@CONTROLLER.check("classic-delayed")
async def _delayed(harness: ClassicHarness, _version: str) -> None:
    async with harness.classic_claim(DELAYED) as waiting:
        # Once the driver has handled a later claim, it has seen this one.
        async with harness.classic_claim(DELAYED) as later:
            await harness.propose(later)
        current = await harness.read(waiting)
        if current is None or classic.is_allocated(current):
            raise CheckFailedError("the claim was allocated")


@CONTROLLER.check("classic-unsuitable")
async def _unsuitable(harness: ClassicHarness, _version: str) -> str:
    async with harness.classic_claim(DELAYED) as claim:
        found = await harness.propose(claim)
        fail_on(rules.unsuitable_problems(found, harness.target.node_name))
        return "unsuitable" if classic.driver_status(found).unsuitable_nodes else "suitable"


@CONTROLLER.check("classic-selected")
async def _selected(harness: ClassicHarness, _version: str) -> str:
    async with harness.classic_claim(DELAYED) as claim:
        found = await harness.settled(claim)
        if classic.is_allocated(found):
            fail_on(rules.place_problems(found, await harness.node()))
            return "allocated"
        fail_on(rules.refusal_problems(found, harness.target.node_name))
        return "refused"


@CONTROLLER.check("classic-reallocate")
async def _reallocate(harness: ClassicHarness, _version: str) -> None:
    async with harness.allocated() as claim:
        await harness.write_status(claim, _to_reallocate)
        found = await harness.wait_for(
            claim,
            lambda item: classic.status_of(item).phase != classic.REALLOCATE_PHASE,
            "did not deallocate the claim",
        )
        fail_on(rules.pending_problems(found))


def _to_reallocate(claim: ResourceClaim) -> ResourceClaim:
    return classic.with_status(claim, msgspec.structs.replace(classic.status_of(claim), phase=classic.REALLOCATE_PHASE))


@CONTROLLER.check("classic-in-use")
async def _in_use(harness: ClassicHarness, _version: str) -> None:
    async with harness.allocated() as claim:
        await harness.write_status(claim, lambda item: classic.with_users(item, (_USER,)))
        await harness.delete(claim)
        # Once the driver has handled a later claim, it has seen the deletion.
        async with harness.classic_claim(DELAYED) as later:
            await harness.propose(later)
        if await harness.read(claim) is None:
            raise CheckFailedError("the claim was deallocated while it was reserved for a Pod")
        await harness.write_status(claim, lambda item: classic.with_users(item, ()))
        await harness.wait_gone(claim)


@CONTROLLER.check("classic-deleted")
async def _deleted(harness: ClassicHarness, _version: str) -> None:
    async with harness.allocated() as claim:
        await harness.delete(claim)
        await harness.wait_gone(claim)


@CONTROLLER.check("classic-other-driver")
async def _other_driver(harness: ClassicHarness, _version: str) -> None:
    async with (
        harness.other_class() as name,
        harness.classic_claim(classic.IMMEDIATE, name) as claim,
        harness.classic_claim(DELAYED) as own,
    ):
        await harness.propose(own)
        fail_on(rules.untouched_problems(claim, await harness.read(claim)))


@CONTROLLER.check("classic-controller-restarted")
async def _controller_restarted(harness: ClassicHarness, _version: str) -> None:
    async with harness.allocated() as old, harness.classic_claim(DELAYED) as new:
        await harness.restart_controller()
        await harness.delete(old)
        await harness.wait_gone(old)
        await harness.select(new)
        await harness.wait_for(new, classic.is_allocated, "did not allocate the claim")


# --- The node plugin. ---


@PLUGIN.check("classic-socket")
async def _socket(harness: ClassicHarness, _version: str) -> str:
    await harness.find_driver()
    fail_on(rules.info_problems(harness.info))
    await harness.confirm_registration()
    return harness.socket_path


@PLUGIN.check("classic-prepare")
async def _prepare(harness: ClassicHarness, _version: str) -> str:
    async with harness.allocated() as claim:
        names = await harness.client.prepare_classic(_uid(claim))
        fail_on(unqualified_problems(names))
        fail_on(missing_problems(names, harness.cdi.registry().devices, harness.target.cdi_directories))
        return ", ".join(names)


@PLUGIN.check("classic-prepare-repeated")
async def _prepare_repeated(harness: ClassicHarness, _version: str) -> None:
    async with harness.allocated() as claim:
        first = await harness.client.prepare_classic(_uid(claim))
        _same(first, await harness.client.prepare_classic(_uid(claim)))


@PLUGIN.check("classic-prepare-unallocated")
async def _prepare_unallocated(harness: ClassicHarness, _version: str) -> None:
    async with harness.classic_claim(DELAYED) as claim:
        await _refused(harness, _uid(claim))


@PLUGIN.check("classic-prepare-unknown")
async def _prepare_unknown(harness: ClassicHarness, _version: str) -> None:
    await _refused(harness, POD_UID)


@PLUGIN.check("classic-unprepare")
async def _unprepare(harness: ClassicHarness, _version: str) -> None:
    async with harness.allocated() as claim:
        names = await harness.client.prepare_classic(_uid(claim))
        for _ in range(2):
            await harness.client.unprepare_classic(_uid(claim), names)
        await harness.client.prepare_classic(_uid(claim))
        await harness.client.unprepare_classic(_uid(claim), names)


@PLUGIN.check("classic-unprepare-unknown")
async def _unprepare_unknown(harness: ClassicHarness, _version: str) -> None:
    await harness.client.unprepare_classic(POD_UID)


@PLUGIN.check("classic-unprepare-deleted")
async def _unprepare_deleted(harness: ClassicHarness, _version: str) -> None:
    async with harness.allocated() as claim:
        names = await harness.client.prepare_classic(_uid(claim))
        await harness.delete(claim)
        await harness.wait_gone(claim)
        await harness.client.unprepare_classic(_uid(claim), names)


@PLUGIN.check("classic-plugin-restarted")
async def _plugin_restarted(harness: ClassicHarness, _version: str) -> None:
    async with harness.allocated() as claim:
        before = await harness.client.prepare_classic(_uid(claim))
        await harness.restart()
        _same(before, await harness.client.prepare_classic(_uid(claim)))
        await harness.client.unprepare_classic(_uid(claim), before)


def _uid(claim: ResourceClaim) -> str:
    return claim.metadata.uid or ""


def _same(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    if sorted(before) != sorted(after):
        raise CheckFailedError(f"CDI devices were {list(before)} and are {list(after)}")


async def _refused(harness: ClassicHarness, uid: str) -> None:
    if harness.socket is None:
        raise SkipError("no registration socket")
    with suppress(CallError):
        names = await harness.client.prepare_classic(uid)
        raise CheckFailedError(f"the call succeeded with {list(names)}")
