"""The test harness: the driver under test, calls to it, claims, restarts, and how checks are declared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from dray.cli.conformance.cluster_objects import CheckClaim, ClusterObjects
from dray.cli.conformance.driver_client import CallError, DriverClient, get_info, notify
from dray.cli.conformance.findings import CheckFailedError, SkipError, fail_on
from dray.cli.conformance.kubelet import KubeletSocket
from dray.cli.conformance.rules.registration import Info
from dray.cli.conformance.rules.responses import ClaimRef, ClaimResponse, success_problems
from dray.cli.conformance.rules.slices import count_problems, outdated_problems
from dray.lib.clock import Clock
from dray.node.cdi.cache import CdiCache
from dray.node.plugins.socket_scan import find_sockets
from dray.node.plugins.sockets import SocketFile
from dray.rpc.dra_services import DEVICE_PLUGIN, DRA_PLUGIN

POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts."""

    # For the driver's socket or slices to appear, also after a restart.
    appear_seconds: float = 60.0
    # Kubelet's timeouts.
    call_seconds: float = 45.0
    info_seconds: float = 1.0
    # The Go helper library waits 30 s before it recreates a slice.
    repair_seconds: float = 60.0
    # For what a driver must do immediately.
    first_seconds: float = 5.0


class Restarter(Protocol):
    """Restarts the driver."""

    async def restart(self) -> None:
        """Kill the driver and start it again; return when it has been started."""


@dataclass(frozen=True, slots=True)
class Target:
    """The driver under test, and the directories and the node that it uses."""

    # The kubelet's root directory, which contains plugins_registry and device-plugins.
    root: Path
    cdi_directories: tuple[str, ...]
    node_name: str
    # Empty: the first driver that registers.
    driver: str = ""

    @property
    def registry(self) -> Path:
        """Return the directory of registration sockets."""
        return self.root / "plugins_registry"

    @property
    def device_plugins(self) -> Path:
        """Return the directory of device plugin sockets."""
        return self.root / "device-plugins"


class Harness:
    """The state of a conformance run."""

    def __init__(
        self, target: Target, objects: ClusterObjects, clock: Clock, timing: Timing, restarter: Restarter | None
    ) -> None:
        self.target = target
        self.objects = objects
        self.clock = clock
        self.timing = timing
        self.cdi = CdiCache(target.cdi_directories)
        # Invalid CDI specs that existed before the run.
        self.preexisting_problems = self.cdi.registry().paths_with_problems
        self.slowest_call: tuple[float, str] = (0.0, "")
        self.kubelet = KubeletSocket(target.device_plugins)
        self.socket: SocketFile | None = None
        self.restarts = 0
        self._restarter = restarter
        self._info: Info | None = None
        self._published: bool | None = None
        self._client: DriverClient | None = None

    # --- Registration. ---

    @property
    def info(self) -> Info:
        """Return the driver's GetInfo response; raises `SkipError` if there is none."""
        if self._info is None:
            raise SkipError("the driver did not respond to GetInfo")
        return self._info

    @property
    def socket_path(self) -> str:
        """Return the path of the registration socket; raises `SkipError` if there is none."""
        if self.socket is None:
            raise SkipError("no registration socket")
        return self.socket.path

    async def find_driver(self, *, after: SocketFile | None = None) -> None:
        """Wait for the driver's registration socket, other than `after`, and call GetInfo."""
        problem = "no socket appeared"
        deadline = self.clock.monotonic() + self.timing.appear_seconds
        while True:
            for socket in find_sockets(str(self.target.registry)):
                if socket == after:
                    continue
                try:
                    info = await get_info(socket.path)
                except CallError as error:
                    problem = f"{socket.path}: {error}"
                    continue
                if self._is_target(info):
                    self.socket, self._info = socket, info
                    return
                problem = f'{socket.path} belongs to "{info.name}", type "{info.type}"'
            if self.clock.monotonic() > deadline:
                raise CheckFailedError(f"{problem} within {self.timing.appear_seconds:g} s in {self.target.registry}")
            await asyncio.sleep(POLL_SECONDS)

    def _is_target(self, info: Info) -> bool:
        wanted = self.target.driver or (self._info.name if self._info is not None else "")
        return info.name == wanted if wanted else info.type != DEVICE_PLUGIN

    async def fetch_info(self) -> Info:
        """Call GetInfo again."""
        return await get_info(self.socket_path)

    async def confirm_registration(self) -> None:
        """Notify the driver that it is registered."""
        await notify(self.socket_path)

    def versions(self) -> Sequence[str]:
        """Return the DRA service versions to check."""
        if self._info is None or self._info.type != DRA_PLUGIN:
            return ()
        return self._info.dra_versions

    # --- Devices. ---

    async def published(self) -> bool:
        """Return whether the driver publishes devices; the first call waits for slices."""
        if self._published is None:
            self._published = await wait_until(self._has_slices, self.timing.appear_seconds, self.clock)
            await self.wait_for_complete_pools()
        return self._published

    async def wait_for_complete_pools(self) -> None:
        """Wait a while until all published pools are complete."""
        if self._published:
            await wait_until(self._has_complete_pools, self.timing.first_seconds, self.clock)

    async def _has_slices(self) -> bool:
        return bool(await self.objects.slices())

    async def _has_complete_pools(self) -> bool:
        slices = await self.objects.slices()
        return bool(slices) and not [*count_problems(slices), *outdated_problems(slices)]

    # --- Calls. ---

    @property
    def client(self) -> DriverClient:
        """Return the connection to the DRA service."""
        if self._client is None:
            path = self.info.endpoint or self.socket_path
            self._client = DriverClient(path, self.clock, self.timing.call_seconds, self._observe)
        return self._client

    async def disconnect(self) -> None:
        """Close the connection; the next call opens a new one."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def prepared(self, version: str, claim: CheckClaim) -> ClaimResponse:
        """Prepare a claim, which must succeed, and return its response."""
        responses = await self.client.prepare(version, [claim.ref])
        fail_on(success_problems([claim.ref], responses))
        return responses[claim.ref.uid]

    async def unprepared(self, version: str, *refs: ClaimRef) -> None:
        """Unprepare claims, which must succeed."""
        fail_on(success_problems(refs, await self.client.unprepare(version, refs)))

    @asynccontextmanager
    async def claim(self, version: str) -> AsyncIterator[CheckClaim]:
        """Yield a new claim; it is unprepared and deleted afterwards."""
        if not await self.published():
            raise SkipError("the driver publishes no devices")
        claim = await self.objects.claim()
        try:
            yield claim
        finally:
            # Only the check's own result counts; errors of the cleanup are ignored.
            with suppress(CallError):
                await self.client.unprepare(version, [claim.ref])
            await self.objects.delete_claim(claim)

    def _observe(self, method: str, seconds: float) -> None:
        self.slowest_call = max(self.slowest_call, (seconds, method))

    # --- Restarts. ---

    async def restart(self) -> None:
        """Restart the driver and wait until it has registered."""
        if self._restarter is None:
            raise SkipError("the driver cannot be restarted: use --run or --restart-command")
        before = self.socket
        self.restarts += 1
        await self._restarter.restart()
        await self.disconnect()
        await self.find_driver(after=before)
        await self.confirm_registration()

    async def close(self) -> None:
        """Close the connection and delete the objects of the run."""
        await self.disconnect()
        await self.objects.close()


async def wait_until(condition: Callable[[], Awaitable[bool]], seconds: float, clock: Clock) -> bool:
    """Wait until the condition is true; return whether that happened in time."""
    deadline = clock.monotonic() + seconds
    while not await condition():
        if clock.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


H = TypeVar("H", bound=Harness)


@dataclass(frozen=True, slots=True)
class Check(Generic[H]):
    """The check of a requirement."""

    name: str
    # A coroutine that returns a remark, or raises `CheckFailedError` or `SkipError`. The second argument is the version
    # of the service; empty for checks that do not depend on it.
    body: Callable[[H, str], Awaitable[str | None]]
    # Runs for each version of the service.
    each_version: bool = False


class Checks(Generic[H]):
    """The checks of a section, in the order of declaration."""

    def __init__(self) -> None:
        self.all: list[Check[H]] = []

    def check(
        self, name: str, *, each_version: bool = False
    ) -> Callable[[Callable[[H, str], Awaitable[str | None]]], Callable[[H, str], Awaitable[str | None]]]:
        """Declare the check of a requirement."""

        def declare(body: Callable[[H, str], Awaitable[str | None]]) -> Callable[[H, str], Awaitable[str | None]]:
            self.all.append(Check(name, body, each_version))
            return body

        return declare
