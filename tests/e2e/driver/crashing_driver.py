"""A driver process that can be made to die at any step; its "hardware" is a folder with a file for each claim."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dray.driver import Claim, ContainerEdits, Device, Driver, PreparedClaim, PreparedDevice, device, run
from dray.driver.prepared.preparer import Preparer
from tests.e2e.driver.crashes import Crashes


class CrashingDriver(Driver):
    name = "test.example.com"

    def __init__(self, hardware: Path, crashes: Crashes) -> None:
        self.hardware, self.crashes = hardware, crashes

    def devices(self) -> Iterable[Device]:
        return [device("x")]

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        self.crashes.reached("begin prepare")
        (self.hardware / claim.uid).touch()
        with (self.hardware.parent / "prepared.log").open("a") as log:
            log.write(f"{claim.uid}\n")
        self.crashes.reached("end prepare")
        return [item.prepared(ContainerEdits(env=("A=1",))) for item in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        self.crashes.reached("begin unprepare")
        (self.hardware / claim.uid).unlink(missing_ok=True)
        self.crashes.reached("end unprepare")


def main(folder: Path, arguments: list[str]) -> int:
    crashes = Crashes(folder / "crash")
    crashes.install()
    for name in ("prepare", "unprepare"):
        _crash_before_answering(name, crashes)
    (folder / "hardware").mkdir(exist_ok=True)
    return run(CrashingDriver(folder / "hardware", crashes), arguments)


def _crash_before_answering(name: str, crashes: Crashes) -> None:
    work = getattr(Preparer, name)

    async def wrapped(self: Preparer[Any], refs: object) -> object:
        outcomes = await work(self, refs)
        crashes.reached(f"answer {name}")
        return outcomes

    setattr(Preparer, name, wrapped)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
