"""`dray conformance DIR`: acts as kubelet and checks a driver, in any language, against kubelet's protocol."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from dray.api.errors import APIError
from dray.cli.command import Parser
from dray.cli.conformance.findings import Finding, conforms
from dray.cli.conformance.report import to_json, to_junit, to_text
from dray.cli.conformance.requirements import CLASSIC_SECTIONS, REQUIREMENTS, Section, UsageError
from dray.client.kubeconfig import KubeconfigError
from dray.runtime import logs

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
_DESCRIPTION: Final = (
    "Check a DRA driver, or with --device-plugin a device plugin, against kubelet's protocol; with --classic the "
    "controller and the node plugin of a classic driver against theirs. The command acts as "
    "kubelet: it finds the driver's sockets in DIR, allocates claims from the devices that the driver publishes, and "
    "calls the driver. Start the driver with DIR as kubelet's root directory, or let --run start it."
)


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 if the driver conforms, 1 if it does not, 2 if the checks cannot run."""
    arguments = _parse(argv)
    if arguments.list:
        sys.stdout.write("".join(f"{item.name:<26} {item.text}\n" for item in REQUIREMENTS.values()))
        return 0
    # Read by gRPC on import; by default it logs every closed connection and every started program.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    logs.configure(verbosity=0)
    try:
        selected = _selected(arguments)
        from dray.cmd import conformance_run

        findings, subject = asyncio.run(conformance_run.run(arguments, selected))
    except (UsageError, KubeconfigError, APIError, OSError) as error:
        sys.stderr.write(f"dray conformance: {error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_USAGE
    sys.stdout.write(_render(arguments.output, findings, subject, sys.stdout))
    return 0 if conforms(findings) else EXIT_FAILED


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="dray conformance",
        description=_DESCRIPTION,
        epilog="exit codes: 0: the driver conforms, 1: it does not, 2: the checks cannot run. NO_COLOR is respected.",
    )
    parser.add_argument(
        "directory", nargs="?", default="", metavar="DIR", help="used as /var/lib/kubelet; created if missing"
    )
    _add_driver_flags(parser)
    _add_cluster_flags(parser)
    _add_timeouts(parser)
    add = parser.add_argument
    add("--only", default="", metavar="NAMES", help="check only these requirements or sections, separated by commas")
    add("--skip", default="", metavar="NAMES", help="skip these requirements or sections")
    add("--list", action="store_true", help="print all requirements and exit")
    add("-o", "--output", choices=("text", "json", "junit"), default="text", help="output format")
    arguments = parser.parse_args(argv)
    if not arguments.directory and not arguments.list:
        parser.error("DIR is required")
    if arguments.classic and arguments.device_plugin:
        parser.error("--classic and --device-plugin exclude each other")
    if arguments.classic and not arguments.claim and not arguments.list:
        parser.error("--classic needs --claim: only the driver's own parameters can be allocated")
    if arguments.run_controller and not arguments.classic:
        parser.error("--run-controller needs --classic")
    # The driver may be started in another directory.
    arguments.kubeconfig = str(Path(arguments.kubeconfig).resolve()) if arguments.kubeconfig else ""
    return arguments


def _add_driver_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device-plugin", action="store_true", help="check a device plugin, at DIR/device-plugins/kubelet.sock")
    add(
        "--classic",
        action="store_true",
        help="check a driver for claims of cdi.k8s.io; needs --claim with a ResourceClaim and its ResourceClass",
    )
    add("--driver", default="", metavar="NAME", help="the driver to wait for; default: the first that registers")
    add(
        "--run",
        default="",
        metavar="COMMAND",
        help="start the driver with this command, and kill and restart it for the checks that need it; {root} {cdi} "
        "{kubeconfig} {node} are replaced, KUBECONFIG and NODE_NAME are set",
    )
    add(
        "--run-controller",
        default="",
        metavar="COMMAND",
        help="with --classic: start the driver's controller with this command, and restart it, as --run for the plugin",
    )
    add(
        "--restart-command",
        default="",
        metavar="COMMAND",
        help="shell command that kills and restarts the driver; without it and --run you are prompted if on a terminal",
    )


def _add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kubeconfig", default="", metavar="FILE", help="use this cluster; default: start a temporary API server")
    add(
        "--kubeconfig-out",
        default="",
        metavar="FILE",
        help="write a kubeconfig of the temporary API server, for the driver",
    )
    add("--node-name", default="conformance", help="the driver's Node; created if missing (default %(default)s)")
    add("--namespace", default="default", help="the namespace of claims (default %(default)s)")
    add(
        "--claim",
        default="",
        metavar="FILE",
        help="a ResourceClaim to use, for drivers that need parameters, and its DeviceClasses or ResourceClass",
    )
    add(
        "--cdi-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="CDI directory; can be repeated (default /etc/cdi and /var/run/cdi)",
    )


def _add_timeouts(parser: argparse.ArgumentParser) -> None:
    for flag, seconds, what in (
        ("--timeout", 60.0, "for the driver to appear"),
        ("--call-timeout", 45.0, "for a call; the default is kubelet's"),
        ("--repair-timeout", 60.0, "for a deleted slice to be published again"),
    ):
        parser.add_argument(
            flag, type=float, default=seconds, metavar="SECONDS", help=f"timeout {what} (default %(default)g)"
        )


def _selected(arguments: argparse.Namespace) -> frozenset[str]:
    """Return the names of the requirements to check."""
    applicable = {name for name, item in REQUIREMENTS.items() if item.section in _sections(arguments)}
    selected = _parse_names(arguments.only) & applicable if arguments.only else applicable
    return frozenset(selected - _parse_names(arguments.skip))


def _sections(arguments: argparse.Namespace) -> frozenset[Section]:
    if arguments.device_plugin:
        return frozenset({Section.DEVICE_PLUGIN})
    return CLASSIC_SECTIONS if arguments.classic else frozenset(Section) - CLASSIC_SECTIONS - {Section.DEVICE_PLUGIN}


def _parse_names(text: str) -> set[str]:
    found: set[str] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        names = {name for name, item in REQUIREMENTS.items() if word in (name, str(item.section))}
        if not names:
            raise UsageError(f'unknown requirement or section "{word}"; --list prints all')
        found |= names
    return found


def _render(output_format: str, findings: Sequence[Finding], subject: str, stream: TextIO) -> str:
    if output_format == "json":
        return to_json(findings, subject)
    if output_format == "junit":
        return to_junit(findings, subject)
    return to_text(findings, subject, colours=stream.isatty() and not os.environ.get("NO_COLOR"))
