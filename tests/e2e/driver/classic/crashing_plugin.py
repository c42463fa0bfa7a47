"""A plugin process that can be made to die at any step; its "hardware" is a folder with a file for each claim."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dray.driver.classic import Claim, ContainerEdits, NodePlugin, run_node
from dray.driver.prepared.preparer import Preparer
from tests.e2e.driver.crashes import Crashes


class CrashingPlugin(NodePlugin):
    name = "gpu.example.com"

    def __init__(self, folder: Path, crashes: Crashes) -> None:
        self.hardware, self.crashes = folder / "hardware", crashes
        self.hardware.mkdir(exist_ok=True)

    def prepare(self, claim: Claim) -> ContainerEdits:
        self.crashes.reached("begin prepare")
        (self.hardware / claim.uid).touch()
        self.crashes.reached("end prepare")
        return ContainerEdits(env=(f"CARD={claim.attributes['card']}",))

    def unprepare(self, claim: Claim) -> None:
        self.crashes.reached("begin unprepare")
        (self.hardware / claim.uid).unlink(missing_ok=True)
        self.crashes.reached("end unprepare")


def main(folder: Path, arguments: list[str]) -> int:
    crashes = Crashes(folder / "crash")
    for name in ("prepare", "unprepare"):
        _crash_before_answering(name, crashes)
    return run_node(CrashingPlugin(folder, crashes), arguments)


def _crash_before_answering(name: str, crashes: Crashes) -> None:
    work = getattr(Preparer, name)

    async def wrapped(self: Preparer[Any], refs: object) -> object:
        outcomes = await work(self, refs)
        crashes.reached(f"answer {name}")
        return outcomes

    setattr(Preparer, name, wrapped)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
