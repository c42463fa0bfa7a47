"""A driver for SR-IOV network cards: virtual functions (VFs) of the physical functions (PFs) that sysfs lists.

A VF and its PF consume shared counters: either the PF is allocated to one claim, or its VFs to several. The parameters
of a claim or class are `{"vlan": 100, "mtu": 9000, "addresses": ["10.0.0.2/24"]}`. The interface is reported in
the status of the claim and in the metadata that containers read. `SRIOV_SYSFS` and `SRIOV_IP` replace /sys and
the program `ip`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray import driver as sdk
from dray.driver import (
    AllocatedDevice,
    Claim,
    ClaimError,
    ContainerEdits,
    DeviceCondition,
    DeviceHealth,
    Health,
    NetworkDeviceData,
    Pool,
    PreparedClaim,
    PreparedDevice,
    counter_set,
    pci_attributes,
)

POLL_SECONDS = 5.0
COMMAND_SECONDS_MAX = 10.0
VLAN_MAX = 4094
MTUS = range(68, 9217)


@dataclass(frozen=True)
class Function:
    """A PF (`number` is None) or one of its VFs."""

    physical: str
    number: int | None
    bus_id: str
    interface: str
    mac: str

    @property
    def name(self) -> str:
        """The name of the device."""
        return self.physical if self.number is None else f"{self.physical}-vf{self.number}"


class SriovDriver(sdk.Driver):
    """Publishes the PFs and VFs of the node."""

    name = "sriov.example.com"
    reports_health = True
    # Reports expire if the thread that reads the links hangs.
    repeats_health = False
    metadata_versions = ("v1beta1", "v1alpha1")

    def __init__(self, sysfs: str = "/sys", ip: str = "ip") -> None:
        self.sysfs, self.ip = Path(sysfs), ip

    def start(self) -> None:
        """Report the state of the links in the background."""
        threading.Thread(target=self.watch_links, daemon=True).start()

    def watch_links(self) -> None:
        """Report every function as healthy while the link of its card is up."""
        pause = threading.Event()
        while True:
            self.host.report_health(self.healths())
            pause.wait(POLL_SECONDS)

    def healths(self) -> Iterable[DeviceHealth]:
        """Return the health of all functions."""
        for function in self.functions().values():
            up = self.read(f"class/net/{function.physical}/operstate") == "up"
            health, message = (Health.HEALTHY, "") if up else (Health.UNHEALTHY, f"link of {function.physical} is down")
            yield DeviceHealth(self.host.node_name, function.name, health, message)

    # --- Devices. ---

    def functions(self) -> Mapping[str, Function]:
        """Return the functions in sysfs by device name."""
        found = {}
        for total in sorted(self.sysfs.glob("class/net/*/device/sriov_totalvfs")):
            device, physical = total.parent, total.parent.parent.name
            found[physical] = self.function(physical, None, device)
            for number in range(int(self.read(f"class/net/{physical}/device/sriov_numvfs") or "0")):
                function = self.function(physical, number, device / f"virtfn{number}")
                found[function.name] = function
        return found

    def function(self, physical: str, number: int | None, device: Path) -> Function:
        """Return a function; a VF that is bound to vfio-pci has no interface."""
        interface = next((path.name for path in sorted(device.glob("net/*"))), "")
        mac = self.read(f"class/net/{interface}/address") if interface else ""
        return Function(physical, number, device.resolve().name, interface, mac)

    def pools(self) -> Mapping[str, Pool]:
        """Return one pool with a counter set for each PF: its VFs and its bandwidth in Mbit/s."""
        counters, devices, functions = [], [], self.functions()
        for function in functions.values():
            siblings = [item for item in functions.values() if item.physical == function.physical]
            speed = max(int(self.read(f"class/net/{function.physical}/speed") or "0"), 0)
            amounts: dict[str, str | int] = {"vfs": max(len(siblings) - 1, 1), "bandwidth": speed}
            if function.number is None:
                counters.append(counter_set(function.physical, amounts))
            else:
                amounts = {"vfs": 1, "bandwidth": speed // max(len(siblings) - 1, 1)}
            kind = "physical" if function.number is None else "virtual"
            attributes = {"kind": kind, "pf": function.physical, **pci_attributes(function.bus_id, str(self.sysfs))}
            devices.append(
                sdk.device(
                    function.name, attributes=attributes, capacity=amounts, consumes={function.physical: amounts}
                )
            )
        return {self.host.node_name: Pool(tuple(devices), tuple(counters))}

    # --- Claims. ---

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        """Configure the functions, report their interfaces, and pass their bus ids to containers."""
        functions = self.functions()
        for item in claim.devices:
            function = functions.get(item.name)
            if function is None:
                raise ClaimError(f"{item.name} does not exist any more")
            settings = parameters_of(item)
            self.configure(function, settings)
            addresses = tuple(settings.get("addresses", ()))
            network = NetworkDeviceData(
                interface_name=function.interface or None, hardware_address=function.mac or None, ips=addresses
            )
            ready = DeviceCondition("Ready", is_true=True, reason="Configured")
            self.host.report_status(claim, item, conditions=[ready], data=settings, network=network)
            variable = f"SRIOV_{item.name.upper().replace('-', '_')}={function.bus_id}"
            attributes = {"vlan": settings.get("vlan", 0), **pci_attributes(function.bus_id, str(self.sysfs))}
            yield item.prepared(ContainerEdits(env=(variable,)), attributes=attributes, network=network)

    def unprepare(self, claim: PreparedClaim) -> None:
        """Take the configuration back."""
        functions = self.functions()
        for item in claim.devices:
            if item.name in functions:
                self.configure(functions[item.name], {"mtu": 1500})

    def configure(self, function: Function, settings: Mapping[str, Any]) -> None:
        """Set VLAN and MTU; no VLAN is 0."""
        if function.number is not None:
            number, vlan = str(function.number), str(settings.get("vlan", 0))
            self.run_ip("link", "set", "dev", function.physical, "vf", number, "vlan", vlan)
        if function.interface and "mtu" in settings:
            self.run_ip("link", "set", "dev", function.interface, "mtu", str(settings["mtu"]))

    def run_ip(self, *arguments: str) -> None:
        """Run the program; its error is the Pod's event."""
        command = [self.ip, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX)  # noqa: S603
        if done.returncode:
            raise ClaimError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def read(self, path: str) -> str:
        """Return the content of a file in sysfs; empty if it cannot be read."""
        try:
            return (self.sysfs / path).read_text(encoding="ascii").strip()
        except OSError:
            return ""


def parameters_of(device: AllocatedDevice) -> dict[str, Any]:
    """Return the settings of a device, those of the claim before those of the class; raises `ClaimError`."""
    settings: dict[str, Any] = {}
    for parameters in device.parameters:
        settings.update(parameters)
    vlan, mtu, addresses = settings.get("vlan", 0), settings.get("mtu", 1500), settings.get("addresses", [])
    if not isinstance(vlan, int) or not 0 <= vlan <= VLAN_MAX:
        raise ClaimError(f"vlan must be a number from 0 to {VLAN_MAX}")
    if not isinstance(mtu, int) or mtu not in MTUS:
        raise ClaimError(f"mtu must be a number from {MTUS[0]} to {MTUS[-1]}")
    if not isinstance(addresses, list) or not all(isinstance(item, str) for item in addresses):
        raise ClaimError("addresses must be a list of texts")
    return settings


if __name__ == "__main__":
    sys.exit(sdk.run(SriovDriver(os.environ.get("SRIOV_SYSFS", "/sys"), os.environ.get("SRIOV_IP", "ip"))))
