"""A device plugin as a process: `plugin_process.py FOLDER CONTROL IDS`.

It says what it does by files in CONTROL: `in-allocate` and `in-pre-start` appear when it is called, and while `hold`
is there the call does not return. A file `bad-ID` makes a device unhealthy.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dray.driver.device_plugin import Allocation, Device, DevicePlugin, Options, run


class Controlled(DevicePlugin):
    resource_name = "vendor.com/foo"

    def __init__(self, control: Path, ids: Sequence[str]) -> None:
        self.control = control
        self.ids = ids

    def devices(self) -> Sequence[Device]:
        bad = self.bad()
        return [Device(name, healthy=name not in bad) for name in self.ids]

    def bad(self) -> frozenset[str]:
        return frozenset(path.name.removeprefix("bad-") for path in self.control.glob("bad-*"))

    def look(self) -> None:
        before = self.bad()
        while True:
            time.sleep(0.02)
            now = self.bad()
            if now != before:
                before = now
                self.changed()

    def allocate(self, ids: Sequence[str]) -> Allocation:
        self.reached("in-allocate")
        return Allocation(envs={"FOO": ",".join(ids)})

    def pre_start(self, ids: Sequence[str]) -> None:
        self.reached("in-pre-start")

    def reached(self, where: str) -> None:
        (self.control / where).touch()
        while (self.control / "hold").exists():
            time.sleep(0.01)


if __name__ == "__main__":
    folder, control, ids = sys.argv[1:]
    plugin = Controlled(Path(control), ids.split(","))
    threading.Thread(target=plugin.look, daemon=True).start()
    run(plugin, Options(folder=folder, poll_seconds=0.1))
