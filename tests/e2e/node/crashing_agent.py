"""`dray node` that dies at a chosen place as by a power cut: the file named first says which.

Places are `before X` and `after X`, X being one of the parts of a Pod's life below; the file is removed by the crash.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dray.cmd.main import main
from dray.node.agent.pod_setup import LocalPodSetup
from dray.node.dra.dra_manager import DraManager
from dray.node.runtimes.process.runtime import ProcessRuntime
from dray.node.topology.topology_manager import TopologyManager

# Whose method is which part of a Pod's life.
PLACES: dict[str, tuple[type[Any], str]] = {
    "admission": (TopologyManager, "admit"),
    "volumes": (LocalPodSetup, "prepare"),
    "prepare": (DraManager, "prepare"),
    "pre-start": (TopologyManager, "pre_start"),
    "start": (ProcessRuntime, "run"),
    "stop": (ProcessRuntime, "stop_container"),
    "unprepare": (DraManager, "release"),
    "release": (TopologyManager, "release"),
    "removal": (ProcessRuntime, "remove_container"),
}


def install(file: Path) -> None:
    def reached(place: str) -> None:
        if file.exists() and file.read_text() == place:
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    for name, (owner, method) in PLACES.items():
        setattr(owner, method, _wrapped(getattr(owner, method), name, reached))


def _wrapped(function: Callable[..., Any], name: str, reached: Callable[[str], None]) -> Callable[..., Any]:
    async def called(*arguments: Any, **keywords: Any) -> Any:
        reached(f"before {name}")
        answer = await function(*arguments, **keywords)
        reached(f"after {name}")
        return answer

    return called


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.exit(main(["node", *sys.argv[2:]]))
