"""Device plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from dray.cli.conformance.checks.table import Checks
from dray.cli.conformance.findings import NotMetError, SkipError, hold
from dray.cli.conformance.kit import Kit
from dray.cli.conformance.plugins import PluginLink, first_list
from dray.cli.conformance.rules import devices as rules
from dray.cli.conformance.rules import registration

CHECKS: Final = Checks()
# A stream that is open this long after its first list stays open.
OPEN_SECONDS: Final = 0.5


def _link(kit: Kit) -> PluginLink:
    return PluginLink(kit.kubelet.plugin_path)


async def _listed(kit: Kit, link: PluginLink) -> list[rules.ListedDevice]:
    found = await first_list(link, kit.timing.first_seconds)
    return [rules.ListedDevice(item.id, item.health, tuple(node.id for node in item.topology.nodes)) for item in found]


async def _healthy(kit: Kit, link: PluginLink) -> list[str]:
    ids = [device.id for device in await _listed(kit, link) if device.health == "Healthy"]
    if not ids:
        raise SkipError("the plugin has no healthy device")
    return ids


@CHECKS.check("plugin-register")
async def _register(kit: Kit, _version: str) -> str:
    call = await kit.kubelet.registered(kit.timing.appear_seconds)
    hold(registration.register_problems(call.request))
    return f"{call.request.resource} at {call.request.endpoint}"


@CHECKS.check("plugin-resource")
async def _resource(kit: Kit, _version: str) -> None:
    hold(registration.resource_problems(kit.kubelet.last.request))


@CHECKS.check("plugin-endpoint")
async def _endpoint(kit: Kit, _version: str) -> None:
    hold(registration.plugin_endpoint_problems(kit.kubelet.last.request, kit.kubelet.last.failure))


@CHECKS.check("plugin-options")
async def _options(kit: Kit, _version: str) -> None:
    async with _link(kit) as link:
        hold(registration.option_problems(kit.kubelet.last.request, await link.options()))


@CHECKS.check("plugin-list")
async def _list(kit: Kit, _version: str) -> str:
    async with _link(kit) as link:
        lists = link.lists()
        try:
            async with asyncio.timeout(kit.timing.first_seconds):
                devices = await anext(lists, None)
            if devices is None:
                raise NotMetError("the stream ended without a list")
            await _stays_open(lists)
        except TimeoutError as error:
            raise NotMetError(f"nothing came within {kit.timing.first_seconds:g} s") from error
        finally:
            await lists.aclose()
    return f"{len(devices)} devices"


async def _stays_open(lists: Any) -> None:
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            while await anext(lists, None) is not None:
                pass
    except TimeoutError:
        return
    raise NotMetError("the stream ended: to kubelet the plugin is gone")


@CHECKS.check("plugin-devices")
async def _devices(kit: Kit, _version: str) -> None:
    async with _link(kit) as link:
        hold(rules.listed_problems(await _listed(kit, link)))


@CHECKS.check("plugin-list-again")
async def _list_again(kit: Kit, _version: str) -> None:
    for _ in range(2):
        async with _link(kit) as link:
            await first_list(link, kit.timing.first_seconds)


@CHECKS.check("plugin-allocate")
async def _allocate(kit: Kit, _version: str) -> None:
    async with _link(kit) as link:
        ids = await _healthy(kit, link)
        requests: list[Sequence[str]] = [[ids[0]], *([[ids[1]]] if len(ids) > 1 else [])]
        for asked in ([requests[0]], requests):
            answers = await link.allocate(*asked)
            if len(answers) != len(asked):
                raise NotMetError(f"{len(answers)} answers for {len(asked)} containers")


@CHECKS.check("plugin-allocate-repeated")
async def _allocate_again(kit: Kit, _version: str) -> None:
    async with _link(kit) as link:
        ids = await _healthy(kit, link)
        for _ in range(2):
            await link.allocate(ids[:1])


@CHECKS.check("plugin-allocate-contents")
async def _contents(kit: Kit, _version: str) -> None:
    async with _link(kit) as link:
        containers = [
            rules.Allocated(
                tuple((item.container_path, item.host_path) for item in answer.mounts),
                tuple((item.container_path, item.host_path, item.permissions) for item in answer.devices),
                tuple(item.name for item in answer.cdi_devices),
            )
            for answer in await link.allocate(await _healthy(kit, link))
        ]
    hold(rules.allocated_problems(containers))


@CHECKS.check("plugin-preferred")
async def _preferred(kit: Kit, _version: str) -> None:
    async with _link(kit) as link:
        if not (await link.options())[1]:
            raise SkipError("get_preferred_allocation_available is false")
        ids = await _healthy(kit, link)
        for size in sorted({1, len(ids), (len(ids) + 1) // 2}):
            for must in ([], ids[-1:], ids[-size:]):
                hold(rules.preferred_problems(await link.preferred(ids, must, size), ids, must, size))


@CHECKS.check("plugin-pre-start")
async def _pre_start(kit: Kit, _version: str) -> None:
    async with _link(kit) as link:
        if not (await link.options())[0]:
            raise SkipError("pre_start_required is false")
        ids = await _healthy(kit, link)
        await link.allocate(ids[:1])
        await link.pre_start(ids[:1])


@CHECKS.check("plugin-registers-again")
async def _registers_again(kit: Kit, _version: str) -> str:
    return await _again(kit, clear=False)


@CHECKS.check("plugin-socket-again")
async def _socket_again(kit: Kit, _version: str) -> str:
    return await _again(kit, clear=True)


async def _again(kit: Kit, *, clear: bool) -> str:
    resource, started = kit.kubelet.last.request.resource, kit.clock.monotonic()
    await kit.kubelet.restart(clear=clear)
    call = await kit.kubelet.registered(kit.timing.appear_seconds)
    if call.request.resource != resource:
        raise NotMetError(f"it registered as {call.request.resource}, before as {resource}")
    hold(registration.plugin_endpoint_problems(call.request, call.failure))
    async with _link(kit) as link:
        await first_list(link, kit.timing.first_seconds)
    return f"after {kit.clock.monotonic() - started:.1f} s"
