"""What the driver publishes."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.cli.conformance.checks.table import Checks
from dray.cli.conformance.findings import NotMetError, SkipError, hold
from dray.cli.conformance.kit import Kit, until
from dray.cli.conformance.rules import slices as rules

CHECKS: Final = Checks()


async def _slices(kit: Kit) -> list[Document]:
    if not await kit.published():
        raise SkipError("the driver publishes nothing")
    return await kit.objects.slices()


@CHECKS.check("slices-published")
async def _published(kit: Kit, _version: str) -> str:
    if not await kit.published():
        raise NotMetError(f"no ResourceSlice with driver {kit.info.name} within {kit.timing.appear_seconds:g} s")
    slices = await kit.objects.slices()
    devices = sum(len(item["spec"].get("devices") or ()) for item in slices)
    return f"{devices} devices in {len(slices)} slices"


@CHECKS.check("slices-valid")
async def _valid(kit: Kit, _version: str) -> None:
    hold(rules.invalid_problems(await _slices(kit)))


@CHECKS.check("slices-node")
async def _node(kit: Kit, _version: str) -> None:
    hold(rules.node_problems(await _slices(kit), kit.place.node_name))


@CHECKS.check("slices-complete")
async def _complete(kit: Kit, _version: str) -> None:
    hold(rules.count_problems(await _slices(kit)))


@CHECKS.check("slices-current")
async def _current(kit: Kit, _version: str) -> None:
    hold(rules.outdated_problems(await _slices(kit)))


@CHECKS.check("slices-unique")
async def _unique(kit: Kit, _version: str) -> None:
    hold(rules.name_problems(await _slices(kit)))


@CHECKS.check("slices-repaired")
async def _repaired(kit: Kit, _version: str) -> str:
    slices = await _slices(kit)
    gone = slices[0]["metadata"]["uid"]
    started = kit.clock.monotonic()
    await kit.objects.delete_slice(slices[0]["metadata"]["name"])

    async def back() -> bool:
        now = await kit.objects.slices()
        return len(now) >= len(slices) and all(item["metadata"]["uid"] != gone for item in now)

    if not await until(back, kit.timing.repair_seconds, kit.clock):
        raise NotMetError(
            f"{len(await kit.objects.slices())} of {len(slices)} slices after {kit.timing.repair_seconds:g} s"
        )
    await kit.settle()
    return f"after {kit.clock.monotonic() - started:.1f} s"


async def monotonic(kit: Kit, _version: str) -> str:
    """Judged last, over everything that was seen."""
    await until(kit.objects.followed, kit.timing.first_seconds, kit.clock)
    if not kit.objects.history:
        raise SkipError("the driver publishes nothing")
    hold(rules.decrease_problems(kit.objects.history))
    return f"{len(kit.objects.history)} writes seen"
