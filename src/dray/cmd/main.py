"""The `dray` command: picks a process by its first word, reads its settings and runs it."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dray import __version__
from dray.runtime import logs
from dray.runtime.settings import HelpRequested, SettingsError, flag_value, load
from dray.runtime.signals import stop_on_signals

EXIT_USAGE: Final = 2
EXIT_FAILURE: Final = 1
# Allocations between collections: the default of 700 costs a busy server a tenth of its time, as nearly all
# garbage here goes by reference counts alone.
GC_THRESHOLDS: Final = (50_000, 20, 50)


@dataclass(frozen=True, slots=True)
class Process:
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


@dataclass(frozen=True, slots=True)
class Tool:
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
    if name in TOOLS:
        return int(importlib.import_module(TOOLS[name].module).main(rest))
    process = PROCESSES.get(name)
    if process is None:
        sys.stderr.write(f'dray: unknown command "{name}"\n\n{usage()}')
        return EXIT_USAGE
    return run_process(process, name, rest)


def usage() -> str:
    """What there is."""
    lines = ["usage: dray COMMAND [--flag=value ...]", "", "commands:"]
    for commands in (PROCESSES, TOOLS):
        lines += [f"  {name:<20} {command.summary}" for name, command in commands.items()]
    lines += [f"  {'version':<20} print the version", "", "dray COMMAND --help lists a command's settings.", ""]
    return "\n".join(lines)


def run_process(process: Process, name: str, argv: Sequence[str]) -> int:
    """Read the settings and run until stopped."""
    spec: Any = getattr(importlib.import_module("dray.cmd.settings"), process.settings)
    try:
        settings = read_settings(spec, argv)
    except HelpRequested as request:
        sys.stdout.write(f"usage: dray {name} [--flag=value ...]\n\n{request.text}\n")
        return 0
    except SettingsError as error:
        sys.stderr.write(f"dray {name}: {error}\n")
        return EXIT_USAGE
    logs.configure(format_name=settings.logging_format, verbosity=settings.verbosity)
    # gRPC's handlers around fork only complain when a program is started: nothing of ours forks without exec.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    module = importlib.import_module(process.module)
    return run_until_stopped(name, module.run, settings)


def read_settings(spec: Any, argv: Sequence[str]) -> Any:
    """Flags, environment and file, in that order of precedence."""
    path = flag_value(spec, argv, os.environ, "config")
    text = ""
    if path:
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise SettingsError(f"--config: cannot read {path}: {error.strerror}") from error
    return load(spec, argv, os.environ, text, file_name=path)


def run_until_stopped(name: str, run: Any, settings: Any) -> int:
    """Run a process's coroutine on a fast event loop until a signal stops it."""
    import uvloop

    async def body() -> None:
        stop = asyncio.Event()
        stop_on_signals(stop)
        await run(settings, stop)

    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(body())
    except Exception as error:  # the outermost edge: say what happened in one line
        sys.stderr.write(f"dray {name}: {error}\n")
        if os.environ.get("DRAY_TRACEBACK"):
            raise
        return EXIT_FAILURE
    return 0


if __name__ == "__main__":
    sys.exit(main())
