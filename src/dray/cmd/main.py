"""The `dray` command: runs the process or tool named by its first argument.

Nothing heavy is imported here: each command imports what it needs, so that the short ones start fast.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from dray import __version__

EXIT_USAGE: Final = 2
# Allocations between garbage collections: the default of 700 costs a busy server a tenth of its time, because
# reference counting alone frees nearly all garbage here.
GC_THRESHOLDS: Final = (50_000, 20, 50)


class Process(NamedTuple):
    """A long-running command: the module with `run(settings, stop)`, and its settings class."""

    summary: str
    module: str
    settings: str


PROCESSES: Final = {
    "up": Process("run the whole control plane in one process", "dray.cmd.up", "UpSettings"),
    "demo": Process("start a cluster of four nodes and demonstrate device allocation", "dray.cmd.demo", "DemoSettings"),
    "apiserver": Process("run the API server", "dray.cmd.apiserver", "APIServerSettings"),
    "controller-manager": Process(
        "run the controllers against any API server", "dray.cmd.controller_manager", "ControllerManagerSettings"
    ),
    "scheduler": Process("run the scheduler against any API server", "dray.cmd.scheduler", "SchedulerSettings"),
    "ui": Process(
        "serve the dashboard of any cluster, with the permissions of your kubeconfig", "dray.cmd.ui", "UISettings"
    ),
    "node": Process("run the node agent, which runs the Pods bound to this machine", "dray.cmd.node", "NodeSettings"),
}


class Tool(NamedTuple):
    """A command that prints its result and exits: the module with `main(argv) -> int`."""

    summary: str
    module: str


TOOLS: Final = {
    "node resources": Tool("print what the containers of this node hold", "dray.cli.node_resources"),
    "image": Tool("import, list and remove images of this node", "dray.cmd.image"),
    "explain": Tool("explain why a Pod or claim is pending, or why it got its devices", "dray.cli.explain"),
    "simulate": Tool("show which Pods would be scheduled, moved or pending after a change", "dray.cli.simulate"),
    "devices": Tool("list devices with their state and claims", "dray.cli.devices"),
    "claims": Tool("list claims with their requests, devices and Pods", "dray.cli.claims"),
    "top": Tool("show device usage by class, node and namespace", "dray.cli.top"),
    "doctor": Tool("find and fix stuck, orphaned and inconsistent objects", "dray.cli.doctor"),
    "recover": Tool("find acknowledged writes that a database has lost, and go on without them", "dray.cmd.recover"),
    "migrate": Tool("plan and check a migration from a device plugin to a driver", "dray.cli.migrate.command"),
    "conformance": Tool("check a driver or device plugin against kubelet's protocol", "dray.cmd.conformance"),
    "cel": Tool("show which devices a CEL selector matches", "dray.cli.cel"),
    "completion": Tool("print a shell completion script for bash, zsh or fish", "dray.cmd.completion"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if arguments else EXIT_USAGE
    # The name of a tool may have two words.
    words = 2 if " ".join(arguments[:2]) in TOOLS else 1
    name, rest = " ".join(arguments[:words]), arguments[words:]
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
    # Imported on use: tools and usage errors need neither the event loop nor the settings.
    from dray.cmd.process import run_process

    return run_process(name, rest, module=process.module, settings_class=process.settings)


def usage() -> str:
    """Return the list of commands."""
    lines = ["usage: dray COMMAND [--flag=value ...]", "", "commands:"]
    for commands in (PROCESSES, TOOLS):
        lines += [f"  {name:<20} {command.summary}" for name, command in commands.items()]
    lines += [f"  {'version':<20} print the version", "", "Run dray COMMAND --help for the flags of a command.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
