"""The base class of a DRA driver: its author overrides `devices`, `prepare` and `unprepare`.

Guarantees of the SDK: calls do not overlap, also across instances (unless configured otherwise). `prepare` is called
for claims that are not prepared, `unprepare` for claims that are or may be. After a crash the same call is repeated, so
both must accept that some of their work is done. Errors are reported as events of the Pod and retried. Plain methods
run in a thread and may block; coroutines run in the event loop and must not block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import ClassVar, Protocol

from dray.api.types.resource_v1 import Device
from dray.driver.claims import Claim, PreparedClaim, PreparedDevice
from dray.driver.devices import Pool
from dray.driver.health import DeviceHealth


class Host(Protocol):
    """The SDK for the running driver; thread-safe."""

    @property
    def node_name(self) -> str:
        """The node the driver runs on."""

    def publish(self) -> None:
        """Read the driver's pools again and publish them."""

    def report_health(self, devices: Iterable[DeviceHealth]) -> None:
        """Report the health of these devices to kubelet; others keep theirs."""


class Driver:
    """Base of a DRA driver; `name` is a DNS subdomain such as `gpu.example.com`."""

    name: ClassVar[str]
    # Serve health to kubelet; the health of devices that are never reported is unknown.
    reports_health: ClassVar[bool] = False
    host: Host

    def start(self) -> None:
        """Called once, with `host` set, before all other methods."""

    def devices(self) -> Iterable[Device]:
        """Return the node's devices, published as one pool named after the node."""
        return ()

    def pools(self) -> Mapping[str, Pool]:
        """Return all pools by name; override it for several pools or shared counters."""
        return {self.host.node_name: Pool(tuple(self.devices()))}

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice] | Awaitable[Iterable[PreparedDevice]]:
        """Prepare the claim's devices; return what containers that use them get."""
        raise NotImplementedError

    def unprepare(self, claim: PreparedClaim) -> Awaitable[None] | None:
        """Undo `prepare`; the SDK removes the CDI file."""
