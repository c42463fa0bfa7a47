"""A device plugin for files in /dev: every match of a pattern is a device for one container at a time.

    python host_devices.py --resource example.com/serial --pattern '/dev/ttyUSB*'

Pods request `example.com/serial: 1` in their limits. Containers get the device file and its path in $SERIAL_DEVICES.
"""

from __future__ import annotations

import argparse
import glob
import os
import stat
from collections.abc import Sequence

from dray.driver.device_plugin import Allocation, Device, DevicePlugin, HostDevice, Options, run


class HostDevices(DevicePlugin):
    """Offers device files; a device is healthy while its file is a device file."""

    def __init__(self, resource_name: str, pattern: str) -> None:
        self.resource_name = resource_name
        self.pattern = pattern
        # A known device whose file is gone is reported as unhealthy, not removed.
        self.seen: set[str] = set()

    def devices(self) -> Sequence[Device]:
        """Return a device for each file."""
        self.seen.update(glob.glob(self.pattern))
        return [Device(device_id(path), healthy=is_device(path)) for path in sorted(self.seen)]

    def allocate(self, ids: Sequence[str]) -> Allocation:
        """Add the files to the container at the same paths."""
        paths = [path for path in sorted(self.seen) if device_id(path) in ids]
        variable = self.resource_name.rpartition("/")[2].upper().replace("-", "_").replace(".", "_") + "_DEVICES"
        return Allocation(
            envs={variable: ",".join(paths)},
            devices=[HostDevice(container_path=path, host_path=path, permissions="rw") for path in paths],
        )


def device_id(path: str) -> str:
    """Return the device id for a path."""
    return path.removeprefix("/dev/").replace("/", "_")


def is_device(path: str) -> bool:
    """Report whether the path is a character or block device."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resource", required=True, help="extended resource that Pods request")
    parser.add_argument("--pattern", required=True, help="pattern of device files, for example /dev/ttyUSB*")
    parser.add_argument("--folder", default=Options().folder, help="device plugin directory of kubelet")
    parser.add_argument("--poll-seconds", type=float, default=5.0, help="interval between scans for devices")
    arguments = parser.parse_args()
    options = Options(folder=arguments.folder, poll_seconds=arguments.poll_seconds)
    run(HostDevices(arguments.resource, arguments.pattern), options)


if __name__ == "__main__":
    main()
