"""The `dray` command: runs the process or tool named by its first argument.

Nothing heavy is imported here: each command imports what it needs, so that the short ones start fast.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dray import __version__

EXIT_USAGE: Final = 2
# As shells report them: 128 and the number of SIGINT or SIGPIPE.
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
# Allocations between garbage collections of tools. Reference counting alone frees nearly all garbage here, most of it
# soon: with the default of 700, a collection traverses many objects that are about to be freed. Processes, which others
# wait for, have `garbage.THRESHOLDS`.
GC_THRESHOLDS: Final = (200_000, 20, 50)


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
    "down": Tool("stop a cluster of `dray up` on this machine, and its containers", "dray.cmd.down"),
    "status": Tool("list the clusters of `dray up` on this machine", "dray.cmd.status"),
    "node resources": Tool(
        "list the devices, CPUs, memory and claims of this node's containers", "dray.cli.node_resources"
    ),
    "token": Tool("create, list and delete tokens for machines that join", "dray.cmd.token"),
    "join": Tool("make this machine a node of a cluster", "dray.cmd.join"),
    "explain": Tool("explain why a Pod, claim or workload is pending, and what to do", "dray.cli.explain"),
    "simulate": Tool("show which Pods would be scheduled, moved or pending after a change", "dray.cli.simulate"),
    "rebalance": Tool("plan and carry out moves of Pods that let others fit", "dray.cli.rebalance"),
    "plan": Tool("plan which nodes to add or remove so that Pods fit", "dray.cli.plan"),
    "devices": Tool("list devices with their state and claims", "dray.cli.devices"),
    "claims": Tool("list claims with their requests, devices and Pods", "dray.cli.claims"),
    "top": Tool("show device usage by class, node and namespace", "dray.cli.top"),
    "usage": Tool("print device-hours by namespace and class, also as CSV", "dray.cli.usage"),
    "decisions": Tool("list the scheduler's decisions, with scores and reasons", "dray.cli.decisions"),
    "doctor": Tool("find and fix stuck, orphaned and inconsistent objects", "dray.cli.doctor"),
    "snapshot": Tool("save the objects that the tools read to a file, for -f", "dray.cli.snapshot"),
    "translate": Tool("put the names back into answers about an anonymized snapshot", "dray.cli.translate"),
    "reduce": Tool("print the fewest objects for which explain says the same", "dray.cli.reduce"),
    "record": Tool("record a cluster and all of its changes in a file, for replay", "dray.cli.record"),
    "replay": Tool("run the scheduler again on a recording, and compare the results", "dray.cli.replay"),
    "recover": Tool("find acknowledged writes that a database has lost, and continue without them", "dray.cmd.recover"),
    "init": Tool("create a project for a driver, with tests and manifests: dray init driver NAME", "dray.cmd.init"),
    "dev": Tool("run a driver on a cluster of its own, and restart it on save: dray dev FILE", "dray.cmd.dev.command"),
    "migrate": Tool("plan and check a migration from a device plugin to a driver", "dray.cli.migrate.command"),
    "conformance": Tool("check a driver or device plugin against kubelet's protocol", "dray.cmd.conformance"),
    "cel": Tool("show which devices a CEL selector matches", "dray.cli.cel"),
    "completion": Tool("print a shell completion script for bash, zsh or fish", "dray.cmd.completion"),
}
# Not in the list: for the scripts of `dray completion`.
HIDDEN_TOOLS: Final = {"complete": Tool("print what can follow on a command line", "dray.cli.complete")}
# The order of the list: what people use first.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Try it": ("demo", "up", "down", "status"),
    "Inspect a cluster": ("explain", "simulate", "devices", "claims", "top", "usage", "decisions", "doctor", "ui"),
    "Save and replay": ("snapshot", "reduce", "translate", "record", "replay"),
    "Plan a cluster": ("rebalance", "plan"),
    "Write and check drivers": ("init", "dev", "conformance", "cel", "migrate"),
    "Run a node": ("node", "join", "token", "node resources"),
    "Run components": ("apiserver", "controller-manager", "scheduler", "recover"),
    "Other": ("completion", "version", "help"),
}
_OTHERS: Final = {"version": "print the version", "help": "show the flags of a command: dray help COMMAND"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if arguments else EXIT_USAGE
    # The name of a tool may have two words.
    words = 2 if " ".join(arguments[:2]) in TOOLS else 1
    name, rest = " ".join(arguments[:words]), arguments[words:]
    if name in ("version", "--version"):
        sys.stdout.write(f"dray {__version__}\n")
        return 0
    # The node agent forks for commands with a terminal; gRPC's own handlers of forks would run, and fail, in the child.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    gc.set_threshold(*GC_THRESHOLDS)
    tool = TOOLS.get(name) or HIDDEN_TOOLS.get(name)
    if tool is not None:
        return _run_tool(tool, rest)
    process = PROCESSES.get(name)
    if process is None:
        sys.stderr.write(_unknown(name))
        return EXIT_USAGE
    # Imported on use: tools and usage errors need neither the event loop nor the settings.
    from dray.cmd.process import run_process

    return run_process(name, rest, module=process.module, settings_class=process.settings)


def _run_tool(tool: Tool, arguments: Sequence[str]) -> int:
    # Tools print answers, not what the components of a simulation log. `dray dev` sets up its own logging.
    logging.getLogger("dray").addHandler(logging.NullHandler())
    try:
        return int(importlib.import_module(tool.module).main(arguments))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has enough, such as `head`; the interpreter must not write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def usage() -> str:
    """Return the list of commands."""
    summaries = {name: item.summary for table in (PROCESSES, TOOLS) for name, item in table.items()} | _OTHERS
    lines = ["usage: dray COMMAND [--flag=value ...]"]
    grouped = {name for names in GROUPS.values() for name in names}
    for title, listed in GROUPS.items():
        others = [name for name in summaries if name not in grouped] if title == "Other" else []
        names = [*others, *listed]
        lines += ["", f"{title}:", *(f"  {name:<20} {summaries[name]}" for name in names)]
    lines += ["", "Run dray COMMAND --help for the flags of a command.", ""]
    return "\n".join(lines)


def _unknown(name: str) -> str:
    # Imported only for this error message.
    import difflib

    close = difflib.get_close_matches(name, [*PROCESSES, *TOOLS, *_OTHERS], n=1, cutoff=0.6)
    meant = f'; did you mean "{close[0]}"?' if close else ""
    return f'dray: unknown command "{name}"{meant}\nRun dray --help for the list of commands.\n'


if __name__ == "__main__":
    sys.exit(main())
