"""One program for both sides of a driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from dray.driver.classic.interface import ClassicController
from dray.driver.classic.loop import run
from dray.driver.classic.node.interface import NodePlugin
from dray.driver.classic.node.loop import run_node


def main(
    controller: ClassicController,
    plugin: NodePlugin,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    local: ClassicController | None = None,
) -> int:
    """Run as the first argument says, `controller` or `node`, with the flags after it; returns the exit code.

    `local` runs beside the plugin and allocates what is the node's own.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    match given[:1]:
        case ["controller"]:
            return run(controller, argv=given[1:], environ=environ)
        case ["node"]:
            return run_node(plugin, given[1:], environ, local)
    sys.stderr.write("the first argument must be controller or node\n")
    return 2
