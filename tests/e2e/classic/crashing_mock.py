"""The mock's plugin, which dies once after it has prepared a claim and before it answers."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dray.driver.classic import run_node
from dray.driver.prepared.preparer import Preparer
from tests.e2e.classic.machines import EXAMPLES


def main(marker: Path, arguments: list[str]) -> int:
    spec = importlib.util.spec_from_file_location("mock", EXAMPLES / "mock/driver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prepare = Preparer.prepare

    async def dying(self: Preparer[Any], refs: Any) -> Any:
        outcomes = await prepare(self, refs)
        _die_once(marker)
        return outcomes

    Preparer.prepare = dying  # type: ignore[method-assign] # patched on purpose
    return run_node(module.MockPlugin(), arguments)


def _die_once(marker: Path) -> None:
    if not marker.exists():
        marker.write_text("killed")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
