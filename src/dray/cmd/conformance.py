"""`dray conformance DIR`: acts as a kubelet to a driver in any language, and says where it breaks the protocol."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from dray.api.errors import APIError
from dray.cli.conformance.findings import Finding, conforms
from dray.cli.conformance.report import to_json, to_junit, to_text
from dray.cli.conformance.requirements import REQUIREMENTS, Section, UsageError
from dray.client.kubeconfig import KubeconfigError
from dray.runtime import logs

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2


def main(argv: Sequence[str]) -> int:
    """0 when the driver conforms, 1 when it does not, 2 when that cannot be told."""
    arguments = _parse(argv)
    if arguments.list:
        sys.stdout.write("".join(f"{item.name:<26} {item.text}\n" for item in REQUIREMENTS.values()))
        return 0
    # Read by gRPC when it is imported: it would tell of every connection that ends, and of programs being started.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    logs.configure(verbosity=0)
    try:
        chosen = _chosen(arguments)
        from dray.cmd import conformance_run

        findings, subject = asyncio.run(conformance_run.run(arguments, chosen))
    except (UsageError, KubeconfigError, APIError, OSError) as error:
        sys.stderr.write(f"dray conformance: {error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_USAGE
    sys.stdout.write(_rendered(arguments.output, findings, subject, sys.stdout))
    return 0 if conforms(findings) else EXIT_BROKEN


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dray conformance",
        description="Check a DRA driver, or with --device-plugin a device plugin, against kubelet's protocol. The kit "
        "is the kubelet: it finds the driver's sockets below DIR, allocates claims from the devices that the driver "
        "publishes, and calls it. Start the driver with DIR as kubelet's root folder, or have it started by --run.",
        epilog="exit codes: 0 it conforms, 1 it does not, 2 it cannot be told. NO_COLOR is respected.",
    )
    add = parser.add_argument
    add(
        "directory", nargs="?", default="", metavar="DIR", help="takes the place of /var/lib/kubelet; made when missing"
    )
    add("--device-plugin", action="store_true", help="check a device plugin, at DIR/device-plugins/kubelet.sock")
    add("--driver", default="", metavar="NAME", help="which driver to wait for; by default the first that comes")
    add(
        "--run",
        default="",
        metavar="COMMAND",
        help="start the driver so, and kill and restart it for the checks that "
        "need it; {root} {cdi} {kubeconfig} {node} are replaced, KUBECONFIG and NODE_NAME are set",
    )
    add(
        "--restart-command",
        default="",
        metavar="COMMAND",
        help="kills and restarts the driver, as a shell would run it; "
        "without it and --run you are asked, when at a terminal",
    )
    add(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="use this cluster; by default the kit runs an API server of its own",
    )
    add(
        "--kubeconfig-out",
        default="",
        metavar="FILE",
        help="write access to the kit's own API server there, for the driver",
    )
    add(
        "--node-name",
        default="conformance",
        help="the Node the driver runs on; made when missing (default %(default)s)",
    )
    add("--namespace", default="default", help="where claims are made (default %(default)s)")
    add(
        "--claim",
        default="",
        metavar="FILE",
        help="a ResourceClaim to use, for drivers that need parameters, and DeviceClasses",
    )
    add(
        "--cdi-dir",
        action="append",
        default=[],
        metavar="DIR",
        help="CDI directory; may be repeated (default /etc/cdi and /var/run/cdi)",
    )
    add("--timeout", type=float, default=60.0, metavar="SECONDS", help="for the driver to appear (default %(default)g)")
    add(
        "--call-timeout",
        type=float,
        default=45.0,
        metavar="SECONDS",
        help="for a call, as kubelet's (default %(default)g)",
    )
    add(
        "--repair-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for a deleted slice to come back (default %(default)g)",
    )
    add("--only", default="", metavar="NAMES", help="check these requirements or sections only, separated by commas")
    add("--skip", default="", metavar="NAMES", help="leave these out")
    add("--list", action="store_true", help="print all requirements and end")
    add("-o", "--output", choices=("text", "json", "junit"), default="text", help="how to print the findings")
    arguments = parser.parse_args(argv)
    if not arguments.directory and not arguments.list:
        parser.error("DIR is needed")
    # The driver may be started in another folder.
    arguments.kubeconfig = str(Path(arguments.kubeconfig).resolve()) if arguments.kubeconfig else ""
    return arguments


def _chosen(arguments: argparse.Namespace) -> frozenset[str]:
    """The requirements to check."""
    own = {
        name
        for name, item in REQUIREMENTS.items()
        if (item.section is Section.DEVICE_PLUGIN) == arguments.device_plugin
    }
    chosen = _named(arguments.only) & own if arguments.only else own
    return frozenset(chosen - _named(arguments.skip))


def _named(text: str) -> set[str]:
    found: set[str] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        names = {name for name, item in REQUIREMENTS.items() if word in (name, str(item.section))}
        if not names:
            raise UsageError(f'there is no requirement or section "{word}"; --list shows all')
        found |= names
    return found


def _rendered(form: str, findings: Sequence[Finding], subject: str, stream: TextIO) -> str:
    if form == "json":
        return to_json(findings, subject)
    if form == "junit":
        return to_junit(findings, subject)
    return to_text(findings, subject, colours=stream.isatty() and not os.environ.get("NO_COLOR"))
