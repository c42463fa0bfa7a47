"""A driver for device files of the host that match patterns: `driver.py '/dev/video*' '/dev/ttyUSB*' -- --node-name …`.

Files that are added or removed are published or withdrawn within the poll interval.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
import threading
from collections.abc import Iterable, Mapping

from dray.driver import Claim, ClaimError, ContainerEdits, Device, DeviceNode, Driver, PreparedDevice, device, run

POLL_SECONDS = 2.0


def device_files(patterns: Iterable[str]) -> dict[str, str]:
    """Return paths of character and block devices by device name: lower case, with letters, digits and dashes."""
    found = {}
    for path in sorted({path for pattern in patterns for path in glob.glob(pattern)}):
        mode = os.stat(path).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            found[re.sub(r"[^a-z0-9]+", "-", path.removeprefix("/dev/").lower()).strip("-")] = path
    return found


class HostDevices(Driver):
    """Each file is a device."""

    name = "host.example.com"

    def __init__(self, patterns: list[str]) -> None:
        self.patterns = patterns
        self.files: Mapping[str, str] = {}

    def start(self) -> None:
        """Scan once, then continue in the background."""
        self.files = device_files(self.patterns)
        threading.Thread(target=self.watch_files, daemon=True).start()

    def watch_files(self) -> None:
        """Publish devices whenever the files change."""
        pause = threading.Event()
        while not pause.wait(POLL_SECONDS):
            now = device_files(self.patterns)
            if now != self.files:
                self.files = now
                self.host.publish()

    def devices(self) -> Iterable[Device]:
        """Return a device for each file."""
        for name, path in self.files.items():
            status = os.stat(path)
            kind = "block" if stat.S_ISBLK(status.st_mode) else "character"
            numbers = {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
            yield device(name, attributes={"path": path, "kind": kind, **numbers})

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        """Add the file to the container at the same path."""
        for chosen in claim.devices:
            path = self.files.get(chosen.name)
            if path is None:
                raise ClaimError(f"device {chosen.name} does not exist any more")
            yield chosen.prepared(ContainerEdits(device_nodes=(DeviceNode(path=path, permissions="rw"),)))


def main(arguments: list[str]) -> int:
    """Run with patterns before `--` and flags of the SDK after it."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    return run(HostDevices(arguments[:cut] or ["/dev/null"]), arguments[cut + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
