"""Offers device files of the host, chosen by patterns: `driver.py '/dev/video*' '/dev/ttyUSB*' -- --node-name …`.

A file that disappears is withdrawn, and one that appears is offered, within the time of one look around.
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

LOOK_SECONDS = 2.0


def device_files(patterns: Iterable[str]) -> dict[str, str]:
    """Paths of character and block devices by the name they get: lower case, only letters, digits and dashes."""
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
        """Look once now, and from then on in the background."""
        self.files = device_files(self.patterns)
        threading.Thread(target=self.look, daemon=True).start()

    def look(self) -> None:
        """Publish again whenever the files change."""
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            now = device_files(self.patterns)
            if now != self.files:
                self.files = now
                self.host.publish()

    def devices(self) -> Iterable[Device]:
        """What is there."""
        for name, path in self.files.items():
            status = os.stat(path)
            kind = "block" if stat.S_ISBLK(status.st_mode) else "character"
            numbers = {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
            yield device(name, attributes={"path": path, "kind": kind, **numbers})

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        """Show the file in the container, at the same path."""
        for chosen in claim.devices:
            path = self.files.get(chosen.name)
            if path is None:
                raise ClaimError(f"device {chosen.name} is no longer there")
            yield chosen.prepared(ContainerEdits(device_nodes=(DeviceNode(path=path, permissions="rw"),)))


def main(arguments: list[str]) -> int:
    """Patterns come before `--`, the SDK's flags after it."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    return run(HostDevices(arguments[:cut] or ["/dev/null"]), arguments[cut + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
