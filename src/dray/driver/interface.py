"""What a driver's author writes: a subclass of `Driver` with `devices`, `prepare` and `unprepare`.

The SDK promises the author: calls come one at a time (unless told otherwise, and also across instances of the
driver); `prepare` is called for a claim that is not prepared, `unprepare` for one that is or may be; after a
crash in the middle the same call comes again, so both must cope with finding some of their work done. Whatever
they raise is told to the Pod and tried again later. Plain methods run in a thread of their own and may block;
coroutines run in the event loop and must not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import ClassVar, Protocol

from dray.api.types.resource_v1 import Device
from dray.driver.claims import Claim, PreparedClaim, PreparedDevice
from dray.driver.devices import Pool
from dray.driver.health import DeviceHealth


class Host(Protocol):
    """What the running SDK does for the driver; may be called from any thread."""

    @property
    def node_name(self) -> str:
        """The node the driver runs on."""

    def publish(self) -> None:
        """Ask the driver for its pools again and publish them."""

    def report_health(self, devices: Iterable[DeviceHealth]) -> None:
        """Tell the node agent of these devices' health; others keep theirs."""


class Driver:
    """Base of a DRA driver; `name` is a DNS subdomain such as `gpu.example.com`."""

    name: ClassVar[str]
    # Serve health to the node agent; devices that are never reported count as unknown.
    reports_health: ClassVar[bool] = False
    host: Host

    def start(self) -> None:
        """Called once, with `host` set, before anything else."""

    def devices(self) -> Iterable[Device]:
        """The node's devices, as one pool named after the node."""
        return ()

    def pools(self) -> Mapping[str, Pool]:
        """All pools by name; override it for several pools, or for counters that devices share."""
        return {self.host.node_name: Pool(tuple(self.devices()))}

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice] | Awaitable[Iterable[PreparedDevice]]:
        """Make the claim's devices ready, and say what containers that use them get."""
        raise NotImplementedError

    def unprepare(self, claim: PreparedClaim) -> Awaitable[None] | None:
        """Undo `prepare`; the CDI file is already unused and goes by itself."""
