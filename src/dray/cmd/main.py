"""The `dray` command: picks a process or tool by its first word and runs it.

Nothing heavy is imported here: each command brings what it needs, so that the short ones answer at once.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from dray import __version__

EXIT_USAGE: Final = 2
# Allocations between collections: the default of 700 costs a busy server a tenth of its time, as nearly all
# garbage here goes by reference counts alone; importing makes much that stays.
GC_THRESHOLDS: Final = (50_000, 20, 50)


class Process(NamedTuple):
    """A long-running command: the module with `run(settings, stop)`, and its settings class."""

    summary: str
    module: str
    settings: str


PROCESSES: Final = {
    "up": Process("everything in one process", "dray.cmd.up", "UpSettings"),
    "demo": Process("a cluster of four nodes that shows itself working", "dray.cmd.demo", "DemoSettings"),
    "apiserver": Process("the API server alone", "dray.cmd.apiserver", "APIServerSettings"),
    "controller-manager": Process(
        "the controllers, against any API server", "dray.cmd.controller_manager", "ControllerManagerSettings"
    ),
    "scheduler": Process("the scheduler, against any API server", "dray.cmd.scheduler", "SchedulerSettings"),
    "ui": Process("the dashboard of any cluster, with the rights of your kubeconfig", "dray.cmd.ui", "UISettings"),
    "node": Process("the node agent: runs the Pods bound to this machine", "dray.cmd.node", "NodeSettings"),
}


class Tool(NamedTuple):
    """A command that answers and ends: the module with `main(argv) -> int`."""

    summary: str
    module: str


TOOLS: Final = {
    "image": Tool("import, list and remove images of this node", "dray.cmd.image"),
    "explain": Tool("why a Pod or claim is pending, or why it got these devices", "dray.cli.explain"),
    "simulate": Tool("what would be placed, moved or pending after a change", "dray.cli.simulate"),
    "devices": Tool("every device: free, held by whom, tainted, blocked", "dray.cli.devices"),
    "claims": Tool("every claim: what it asks for, what it has, who uses it", "dray.cli.claims"),
    "top": Tool("how full classes and nodes are, and what each namespace has", "dray.cli.top"),
    "doctor": Tool("what is stuck, left over or contradictory, and the fix", "dray.cli.doctor"),
    "migrate": Tool("from a device plugin to a driver: the plan, and whether it is done", "dray.cli.migrate.command"),
    "conformance": Tool("hold a driver or device plugin to kubelet's protocol", "dray.cmd.conformance"),
    "cel": Tool("which devices a CEL selector matches, and why not the others", "dray.cli.cel"),
    "completion": Tool("what bash, zsh or fish need to complete commands and flags", "dray.cmd.completion"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if arguments else EXIT_USAGE
    name, rest = arguments[0], arguments[1:]
    if name in ("version", "--version"):
        sys.stdout.write(f"dray {__version__}\n")
        return 0
    gc.set_threshold(*GC_THRESHOLDS)
    if name in TOOLS:
        return int(importlib.import_module(TOOLS[name].module).main(rest))
    process = PROCESSES.get(name)
    if process is None:
        sys.stderr.write(f'dray: unknown command "{name}"\n\n{usage()}')
        return EXIT_USAGE
    # The event loop and the reading of settings: more to import than a tool or a wrong word needs.
    from dray.cmd.process import run_process

    return run_process(name, rest, module=process.module, settings_class=process.settings)


def usage() -> str:
    """What there is."""
    lines = ["usage: dray COMMAND [--flag=value ...]", "", "commands:"]
    for commands in (PROCESSES, TOOLS):
        lines += [f"  {name:<20} {command.summary}" for name, command in commands.items()]
    lines += [f"  {'version':<20} print the version", "", "dray COMMAND --help lists a command's settings.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
