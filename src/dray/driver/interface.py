"""The base class of a DRA driver: its author overrides `devices`, `prepare` and `unprepare`.

Guarantees of the SDK: calls do not overlap, also across instances (unless configured otherwise). `prepare` is called
for claims that are not prepared, `unprepare` for claims that are or may be. After a crash the same call is repeated, so
both must accept that some of their work is done. Errors are reported as events of the Pod and retried. Plain methods
run in a thread and may block; coroutines run in the event loop and must not block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from dray.api.types.resource_v1 import Device, NetworkDeviceData
from dray.driver.claims import AllocatedDevice, Claim, PreparedClaim, PreparedDevice
from dray.driver.device_status import DeviceCondition
from dray.driver.devices import Pool
from dray.driver.health import DeviceHealth


class DriverError(Exception):
    """The driver does not do what its base class asks for."""


class Host(Protocol):
    """The SDK for the running driver; thread-safe."""

    @property
    def node_name(self) -> str:
        """The node the driver runs on."""

    def publish(self) -> None:
        """Read the driver's pools again and publish them."""

    def report_health(self, devices: Iterable[DeviceHealth]) -> None:
        """Report the health of these devices to kubelet; others keep theirs."""

    def report_status(
        self,
        claim: Claim | PreparedClaim,
        device: AllocatedDevice,
        *,
        conditions: Iterable[DeviceCondition] = (),
        data: Mapping[str, Any] | None = None,
        network: NetworkDeviceData | None = None,
    ) -> None:
        """Report a device's status in `status.devices` of its claim, in the background; the rest stays as it is.

        Raises `DeviceStatusError` for a status that the API does not allow.
        """

    def update_metadata(self, claim: Claim | PreparedClaim, request: str, devices: Iterable[PreparedDevice]) -> None:
        """Replace the metadata of a prepared request; containers that run already keep the earlier file."""


class Driver:
    """Base of a DRA driver; `name` is a DNS subdomain such as `gpu.example.com`."""

    name: ClassVar[str]
    # Serve health to kubelet; the health of devices that are never reported is unknown.
    reports_health: ClassVar[bool] = False
    # Send the last reports again before they expire, as long as the process runs. If False, they expire unless the
    # driver reports again in time, and an overdue report is passed to `Options.on_error`.
    repeats_health: ClassVar[bool] = True
    # Versions of the device metadata that containers find in files, newest first, e.g. ("v1beta1",); None for no files.
    metadata_versions: ClassVar[Sequence[str] | None] = None
    host: Host

    def start(self) -> None:
        """Called once, with `host` set, before all other methods."""

    def devices(self) -> Iterable[Device]:
        """Return the node's devices, published as one pool named after the node."""
        return ()

    def pools(self) -> Mapping[str, Pool]:
        """Return all pools by name; override it for several pools or shared counters."""
        devices = self.devices()
        if not isinstance(devices, Iterable):
            raise DriverError(f"{type(self).__name__}.devices() returned {devices!r}: return or yield devices")
        return {self.host.node_name: Pool(tuple(devices))}

    def bind(self, claim: Claim) -> Awaitable[None] | None:
        """Make devices with binding conditions usable on their node, before the Pod is bound; override it to use them.

        `claim.devices` are those whose conditions are not true yet. When the method returns, the SDK sets all of their
        binding conditions; on `ClaimError` the first binding failure condition, so that the Pod is scheduled anew.
        """

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice] | Awaitable[Iterable[PreparedDevice]]:
        """Prepare the claim's devices; return what containers that use them get."""
        raise NotImplementedError

    def unprepare(self, claim: PreparedClaim) -> Awaitable[None] | None:
        """Undo `prepare`; the SDK removes the CDI file."""
