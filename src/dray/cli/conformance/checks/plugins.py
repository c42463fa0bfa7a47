"""Checks of device plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from dray.cli.conformance.findings import CheckFailedError, SkipError, fail_on
from dray.cli.conformance.harness import Checks, Harness
from dray.cli.conformance.kubelet import PluginClient, first_list
from dray.cli.conformance.rules import devices as rules
from dray.cli.conformance.rules import registration

CHECKS: Final[Checks[Harness]] = Checks()
# A stream still open this long after its first list is considered to stay open.
OPEN_SECONDS: Final = 0.5


def _plugin(harness: Harness) -> PluginClient:
    return PluginClient(harness.kubelet.plugin_path)


async def _listed(harness: Harness, plugin: PluginClient) -> list[rules.ListedDevice]:
    found = await first_list(plugin, harness.timing.first_seconds)
    return [rules.ListedDevice(item.id, item.health, tuple(node.id for node in item.topology.nodes)) for item in found]


async def _healthy(harness: Harness, plugin: PluginClient) -> list[str]:
    ids = [device.id for device in await _listed(harness, plugin) if device.health == "Healthy"]
    if not ids:
        raise SkipError("the plugin has no healthy device")
    return ids


@CHECKS.check("plugin-register")
async def _register(harness: Harness, _version: str) -> str:
    call = await harness.kubelet.registered(harness.timing.appear_seconds)
    fail_on(registration.register_problems(call.request))
    return f"{call.request.resource} at {call.request.endpoint}"


@CHECKS.check("plugin-resource")
async def _resource(harness: Harness, _version: str) -> None:
    fail_on(registration.resource_problems(harness.kubelet.last.request))


@CHECKS.check("plugin-endpoint")
async def _endpoint(harness: Harness, _version: str) -> None:
    fail_on(registration.plugin_endpoint_problems(harness.kubelet.last.request, harness.kubelet.last.failure))


@CHECKS.check("plugin-options")
async def _options(harness: Harness, _version: str) -> None:
    async with _plugin(harness) as plugin:
        fail_on(registration.option_problems(harness.kubelet.last.request, await plugin.options()))


@CHECKS.check("plugin-list")
async def _list(harness: Harness, _version: str) -> str:
    async with _plugin(harness) as plugin:
        lists = plugin.lists()
        try:
            async with asyncio.timeout(harness.timing.first_seconds):
                devices = await anext(lists, None)
            if devices is None:
                raise CheckFailedError("the stream ended without a list")
            await _stays_open(lists)
        except TimeoutError as error:
            raise CheckFailedError(f"no list within {harness.timing.first_seconds:g} s") from error
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
    raise CheckFailedError("the stream ended: kubelet treats the plugin as stopped")


@CHECKS.check("plugin-devices")
async def _devices(harness: Harness, _version: str) -> None:
    async with _plugin(harness) as plugin:
        fail_on(rules.listed_problems(await _listed(harness, plugin)))


@CHECKS.check("plugin-list-again")
async def _list_again(harness: Harness, _version: str) -> None:
    for _ in range(2):
        async with _plugin(harness) as plugin:
            await first_list(plugin, harness.timing.first_seconds)


@CHECKS.check("plugin-allocate")
async def _allocate(harness: Harness, _version: str) -> None:
    async with _plugin(harness) as plugin:
        ids = await _healthy(harness, plugin)
        requests: list[Sequence[str]] = [[ids[0]], *([[ids[1]]] if len(ids) > 1 else [])]
        for sent in ([requests[0]], requests):
            responses = await plugin.allocate(*sent)
            if len(responses) != len(sent):
                raise CheckFailedError(f"{len(responses)} responses for {len(sent)} containers")


@CHECKS.check("plugin-allocate-repeated")
async def _allocate_again(harness: Harness, _version: str) -> None:
    async with _plugin(harness) as plugin:
        ids = await _healthy(harness, plugin)
        for _ in range(2):
            await plugin.allocate(ids[:1])


@CHECKS.check("plugin-allocate-contents")
async def _contents(harness: Harness, _version: str) -> None:
    async with _plugin(harness) as plugin:
        containers = [
            rules.Allocated(
                tuple((item.container_path, item.host_path) for item in answer.mounts),
                tuple((item.container_path, item.host_path, item.permissions) for item in answer.devices),
                tuple(item.name for item in answer.cdi_devices),
            )
            for answer in await plugin.allocate(await _healthy(harness, plugin))
        ]
    fail_on(rules.allocated_problems(containers))


@CHECKS.check("plugin-preferred")
async def _preferred(harness: Harness, _version: str) -> None:
    async with _plugin(harness) as plugin:
        if not (await plugin.options())[1]:
            raise SkipError("get_preferred_allocation_available is false")
        ids = await _healthy(harness, plugin)
        for size in sorted({1, len(ids), (len(ids) + 1) // 2}):
            for must in ([], ids[-1:], ids[-size:]):
                fail_on(rules.preferred_problems(await plugin.preferred(ids, must, size), ids, must, size))


@CHECKS.check("plugin-pre-start")
async def _pre_start(harness: Harness, _version: str) -> None:
    async with _plugin(harness) as plugin:
        if not (await plugin.options())[0]:
            raise SkipError("pre_start_required is false")
        ids = await _healthy(harness, plugin)
        await plugin.allocate(ids[:1])
        await plugin.pre_start(ids[:1])


@CHECKS.check("plugin-registers-again")
async def _registers_again(harness: Harness, _version: str) -> str:
    return await _again(harness, clear=False)


@CHECKS.check("plugin-socket-again")
async def _socket_again(harness: Harness, _version: str) -> str:
    return await _again(harness, clear=True)


async def _again(harness: Harness, *, clear: bool) -> str:
    resource, started = harness.kubelet.last.request.resource, harness.clock.monotonic()
    await harness.kubelet.restart(clear=clear)
    call = await harness.kubelet.registered(harness.timing.appear_seconds)
    if call.request.resource != resource:
        raise CheckFailedError(f"it registered {call.request.resource}, previously {resource}")
    fail_on(registration.plugin_endpoint_problems(call.request, call.failure))
    async with _plugin(harness) as plugin:
        await first_list(plugin, harness.timing.first_seconds)
    return f"after {harness.clock.monotonic() - started:.1f} s"
