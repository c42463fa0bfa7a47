"""A device plugin for files in /dev: every match of a pattern is a device, given to one container at a time.

    python host_devices.py --resource example.com/serial --pattern '/dev/ttyUSB*'

Pods then ask for `example.com/serial: 1` in their limits, and find the device at its path and in $SERIAL_DEVICES.
"""

from __future__ import annotations

import argparse
import glob
import os
import stat
from collections.abc import Sequence

from dray.driver.device_plugin import Allocation, Device, DevicePlugin, HostDevice, Options, run


class HostDevices(DevicePlugin):
    """Devices are files; one is healthy while it is a device file."""

    def __init__(self, resource_name: str, pattern: str) -> None:
        self.resource_name = resource_name
        self.pattern = pattern
        # A device that was there once is unhealthy, not unknown, when its file is gone.
        self.seen: set[str] = set()

    def devices(self) -> Sequence[Device]:
        """One device for each file."""
        self.seen.update(glob.glob(self.pattern))
        return [Device(device_id(path), healthy=is_device(path)) for path in sorted(self.seen)]

    def allocate(self, ids: Sequence[str]) -> Allocation:
        """Show the files in the container at the same paths."""
        paths = [path for path in sorted(self.seen) if device_id(path) in ids]
        variable = self.resource_name.rpartition("/")[2].upper().replace("-", "_").replace(".", "_") + "_DEVICES"
        return Allocation(
            envs={variable: ",".join(paths)},
            devices=[HostDevice(container_path=path, host_path=path, permissions="rw") for path in paths],
        )


def device_id(path: str) -> str:
    """The path as an id."""
    return path.removeprefix("/dev/").replace("/", "_")


def is_device(path: str) -> bool:
    """Whether the path is a character or block device."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resource", required=True, help="the extended resource that Pods ask for")
    parser.add_argument("--pattern", required=True, help="which files are devices, such as /dev/ttyUSB*")
    parser.add_argument("--folder", default=Options().folder, help="kubelet's folder of device plugins")
    parser.add_argument("--poll-seconds", type=float, default=5.0, help="how often to look for devices")
    arguments = parser.parse_args()
    options = Options(folder=arguments.folder, poll_seconds=arguments.poll_seconds)
    run(HostDevices(arguments.resource, arguments.pattern), options)


if __name__ == "__main__":
    main()
