"""What checks work with: the driver as it was found, its calls, claims, and a way to restart it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from dray.cli.conformance.findings import NotMetError, SkipError, hold
from dray.cli.conformance.links import CallError, DriverLink, get_info, notify
from dray.cli.conformance.objects import Objects, TestClaim
from dray.cli.conformance.plugins import KubeletSocket
from dray.cli.conformance.rules.answers import Answers, ClaimRef, Entry, success_problems
from dray.cli.conformance.rules.registration import DRA_PLUGIN, Info
from dray.cli.conformance.rules.slices import count_problems, outdated_problems
from dray.lib.clock import Clock
from dray.node.cdi.cache import CdiCache
from dray.node.plugins.socket_scan import find_sockets
from dray.node.plugins.sockets import SocketFile

LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things may take."""

    # Until the driver's socket or slices appear, also after a restart.
    appear_seconds: float = 60.0
    # Kubelet's own.
    call_seconds: float = 45.0
    info_seconds: float = 1.0
    # Kubernetes' own helper waits 30 s before it repairs a slice.
    repair_seconds: float = 60.0
    # For what a driver must do at once.
    first_seconds: float = 5.0


class Restarter(Protocol):
    """Knows how to restart the driver."""

    async def restart(self) -> None:
        """End the driver, as hard as can be, and start it again; returns when it has been started."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the driver is looked for."""

    # As kubelet's root: plugins_registry and device-plugins are below it.
    root: Path
    cdi_folders: tuple[str, ...]
    node_name: str
    # Empty means whichever comes.
    driver: str = ""

    @property
    def registry(self) -> Path:
        """The folder of registration sockets."""
        return self.root / "plugins_registry"

    @property
    def device_plugins(self) -> Path:
        """The folder of device plugins."""
        return self.root / "device-plugins"


class Kit:
    """The state of a run."""

    def __init__(
        self, place: Place, objects: Objects, clock: Clock, timing: Timing, restarter: Restarter | None
    ) -> None:
        self.place = place
        self.objects = objects
        self.clock = clock
        self.timing = timing
        self.cdi = CdiCache(place.cdi_folders)
        # Specs that were broken before.
        self.broken_before = frozenset(self.cdi.registry().problems)
        self.slowest: tuple[float, str] = (0.0, "")
        self.kubelet = KubeletSocket(place.device_plugins)
        self.socket: SocketFile | None = None
        self.restarts = 0
        self._restarter = restarter
        self._info: Info | None = None
        self._published: bool | None = None
        self._link: DriverLink | None = None

    # --- Registration. ---

    @property
    def info(self) -> Info:
        """What the driver said of itself; the check is skipped when it never did."""
        if self._info is None:
            raise SkipError("the driver did not say who it is")
        return self._info

    @property
    def socket_path(self) -> str:
        """The registration socket."""
        if self.socket is None:
            raise SkipError("there is no registration socket")
        return self.socket.path

    async def find(self, *, after: SocketFile | None = None) -> None:
        """Wait for the driver's registration socket, another one than the given, and ask it who it is."""
        trouble = "no socket appeared"
        deadline = self.clock.monotonic() + self.timing.appear_seconds
        while True:
            for socket in find_sockets(str(self.place.registry)):
                if socket == after:
                    continue
                try:
                    info = await get_info(socket.path)
                except CallError as error:
                    trouble = f"{socket.path}: {error}"
                    continue
                if self._is_wanted(info):
                    self.socket, self._info = socket, info
                    return
                trouble = f'{socket.path} is of "{info.name}", type "{info.type}"'
            if self.clock.monotonic() > deadline:
                raise NotMetError(f"{trouble} within {self.timing.appear_seconds:g} s below {self.place.registry}")
            await asyncio.sleep(LOOK_SECONDS)

    def _is_wanted(self, info: Info) -> bool:
        wanted = self.place.driver or (self._info.name if self._info is not None else "")
        return info.name == wanted if wanted else info.type != "DevicePlugin"

    async def again(self) -> Info:
        """Ask the socket once more."""
        return await get_info(self.socket_path)

    async def accept(self) -> None:
        """Tell the driver that it is registered."""
        await notify(self.socket_path)

    def versions(self) -> Sequence[str]:
        """The services to check."""
        if self._info is None or self._info.type != DRA_PLUGIN:
            return ()
        return self._info.dra_versions

    # --- Devices. ---

    async def published(self) -> bool:
        """Whether the driver publishes devices; waited for once."""
        if self._published is None:
            self._published = await until(self._has_slices, self.timing.appear_seconds, self.clock)
            await self.settle()
        return self._published

    async def settle(self) -> None:
        """Let the driver finish what it is writing, if it does so at all."""
        if self._published:
            await until(self._has_whole_pools, self.timing.first_seconds, self.clock)

    async def _has_slices(self) -> bool:
        return bool(await self.objects.slices())

    async def _has_whole_pools(self) -> bool:
        slices = await self.objects.slices()
        return bool(slices) and not [*count_problems(slices), *outdated_problems(slices)]

    # --- Calls. ---

    @property
    def link(self) -> DriverLink:
        """The connection to the service."""
        if self._link is None:
            path = self.info.endpoint or self.socket_path
            self._link = DriverLink(path, self.clock, self.timing.call_seconds, self._observe)
        return self._link

    async def disconnect(self) -> None:
        """Close the connection; the next call makes another."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def prepared(self, version: str, claim: TestClaim) -> Entry:
        """The answer for a claim that must be prepared."""
        answers = await self.link.prepare(version, [claim.ref])
        hold(success_problems([claim.ref], answers))
        return answers[claim.ref.uid]

    async def unprepared(self, version: str, *refs: ClaimRef) -> None:
        """Claims that must be unprepared."""
        hold(success_problems(refs, await self.link.unprepare(version, refs)))

    @asynccontextmanager
    async def claim(self, version: str) -> AsyncIterator[TestClaim]:
        """A claim of the check's own; whatever became of it is undone as far as the driver lets us."""
        if not await self.published():
            raise SkipError("the driver publishes nothing")
        claim = await self.objects.claim()
        try:
            yield claim
        finally:
            # The check's own outcome counts; the driver may be as broken as it likes here.
            await self._quietly(self.link.unprepare(version, [claim.ref]))
            await self.objects.delete_claim(claim)

    async def _quietly(self, call: Awaitable[Answers]) -> None:
        try:
            await call
        except CallError:
            return

    def _observe(self, method: str, seconds: float) -> None:
        self.slowest = max(self.slowest, (seconds, method))

    # --- Restarts. ---

    async def restart(self) -> None:
        """Restart the driver, and wait until it is found again."""
        if self._restarter is None:
            raise SkipError("no way to restart the driver: give --run or --restart-command")
        before = self.socket
        self.restarts += 1
        await self._restarter.restart()
        await self.disconnect()
        await self.find(after=before)
        await self.accept()

    async def close(self) -> None:
        """Let go."""
        await self.disconnect()
        await self.objects.close()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float, clock: Clock) -> bool:
    """Whether it came to that in time."""
    deadline = clock.monotonic() + seconds
    while not await condition():
        if clock.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True
