"""`dray conformance DIR`: acts as a kubelet to a driver in any language, and says where it breaks the protocol."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, TextIO

import yaml

from dray.api.document import Document
from dray.api.errors import APIError
from dray.cli.conformance.findings import Finding, Verdict, conforms
from dray.cli.conformance.kit import Kit, Place, Restarter, Timing
from dray.cli.conformance.objects import Objects
from dray.cli.conformance.report import to_json, to_junit, to_text
from dray.cli.conformance.requirements import REQUIREMENTS, Section
from dray.cli.conformance.restarts import AskingRestarter, CommandRestarter, DriverProcess, RestartError
from dray.cli.conformance.runner import run_driver_checks, run_plugin_checks
from dray.client.files import load_access
from dray.client.http import http_client
from dray.client.interface import Client, Resource
from dray.client.kubeconfig import KubeconfigError
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.lib.clock import Clock
from dray.node.cdi.files import DEFAULT_DIRECTORIES
from dray.rpc.sockets import SocketError
from dray.runtime import logs
from dray.runtime.clock import SystemClock

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2


class UsageError(Exception):
    """The kit cannot begin; the text says what to give it."""


def main(argv: Sequence[str]) -> int:
    """0 when the driver conforms, 1 when it does not, 2 when that cannot be told."""
    arguments = _parse(argv)
    if arguments.list:
        sys.stdout.write("".join(f"{item.name:<26} {item.text}\n" for item in REQUIREMENTS.values()))
        return 0
    # Read by gRPC when it is first used: it would tell of every connection that ends, and of programs being started.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    logs.configure(verbosity=0)
    try:
        chosen = _chosen(arguments)
        findings, subject = asyncio.run(_run(arguments, chosen))
    except (UsageError, RestartError, KubeconfigError, SocketError, APIError, OSError) as error:
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
        help=f"CDI directory; may be repeated (default {', '.join(DEFAULT_DIRECTORIES)})",
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


async def _run(arguments: argparse.Namespace, chosen: Collection[str]) -> tuple[list[Finding], str]:
    clock, place = SystemClock(), _place(arguments)
    claim, others = _read_claim(arguments.claim)
    async with AsyncExitStack() as stack:
        client, kubeconfig = await stack.enter_async_context(_cluster(arguments, clock))
        objects = Objects(client, clock, place.node_name, arguments.namespace, claim)
        if not arguments.device_plugin:
            await objects.start(await _resources(client, others))
        process = None
        if arguments.run:
            process = DriverProcess(_command(arguments.run, place, kubeconfig), _environment(place, kubeconfig))
            await stack.enter_async_context(process)
        timing = Timing(arguments.timeout, arguments.call_timeout, repair_seconds=arguments.repair_timeout)
        kit = Kit(place, objects, clock, timing, process or _restarter(arguments))
        return await _collect(arguments, kit, kubeconfig, chosen)


def _place(arguments: argparse.Namespace) -> Place:
    root = Path(arguments.directory).resolve()
    for name in ("plugins_registry", "plugins", "device-plugins"):
        (root / name).mkdir(parents=True, exist_ok=True)
    folders = tuple(str(Path(item).resolve()) for item in arguments.cdi_dir) or DEFAULT_DIRECTORIES
    return Place(root, folders, arguments.node_name, arguments.driver)


async def _collect(
    arguments: argparse.Namespace, kit: Kit, kubeconfig: str, chosen: Collection[str]
) -> tuple[list[Finding], str]:
    checks = run_plugin_checks if arguments.device_plugin else run_driver_checks
    _say(f"waiting for the driver below {kit.place.root}; its API server: KUBECONFIG={kubeconfig}")
    findings: list[Finding] = []
    subject = "the driver"
    async with aclosing(checks(kit, chosen)) as made:
        async for finding in made:
            findings.append(finding)
            if finding.verdict is Verdict.FAILED:
                _say(f"failed: {finding.title}: {finding.reason}")
            if finding.name in ("registration-socket", "plugin-register") and finding.verdict is Verdict.PASSED:
                subject = kit.kubelet.last.request.resource if arguments.device_plugin else kit.info.name
                _say(f"found {subject}")
    return findings, subject


def _say(text: str) -> None:
    """Progress is for people; the answer alone is on the output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# --- The API server. ---


@asynccontextmanager
async def _cluster(arguments: argparse.Namespace, clock: Clock) -> AsyncIterator[tuple[Client, str]]:
    """A client and the kubeconfig for the driver: of an existing cluster, or of a server of our own."""
    if arguments.kubeconfig:
        client = http_client(load_access(os.environ, path=arguments.kubeconfig), clock)
        try:
            await client.get_path("/version")
            yield client, arguments.kubeconfig
        finally:
            await client.close()
        return
    with tempfile.TemporaryDirectory(prefix="dray-") as folder:
        running = await apiserver.start(APIServerSettings(data_dir=folder, port=0, store="memory"))
        try:
            kubeconfig = _written(running.kubeconfig, arguments.kubeconfig_out)
            client = http_client(load_access({}, path=str(running.kubeconfig)), clock)
            try:
                yield client, str(kubeconfig)
            finally:
                await client.close()
        finally:
            await running.stop()


def _written(kubeconfig: Path, copy: str) -> Path:
    """Where the driver's access is; it is an administrator's, so nobody else may read it."""
    if not copy:
        return kubeconfig
    path = Path(copy).resolve()
    path.touch(mode=0o600)
    path.write_bytes(kubeconfig.read_bytes())
    return path


def _read_claim(path: str) -> tuple[Document | None, list[Document]]:
    """The claim of a file, and what else is in it."""
    if not path:
        return None, []
    try:
        documents = [item for item in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if item]
    except yaml.YAMLError as error:
        raise UsageError(f"--claim: {path}: {error}") from error
    claims = [item for item in documents if item.get("kind") == "ResourceClaim"]
    if len(claims) != 1:
        raise UsageError(f"--claim: {path} has {len(claims)} ResourceClaims, and must have one")
    return claims[0], [item for item in documents if item.get("kind") == "DeviceClass"]


async def _resources(client: Client, documents: Sequence[Document]) -> list[tuple[Resource[Document], Document]]:
    served = {(item.group, item.version, item.kind): item for item in await client.resources()} if documents else {}
    found = []
    for document in documents:
        group, _, version = document.get("apiVersion", "").rpartition("/")
        item = served.get((group, version, document["kind"]))
        if item is None:
            raise UsageError(f"--claim: the server has no {document['kind']} in {document.get('apiVersion')}")
        found.append((item.resource(), document))
    return found


# --- The driver. ---


def _command(text: str, place: Place, kubeconfig: str) -> list[str]:
    places = {"root": place.root, "cdi": place.cdi_folders[-1], "kubeconfig": kubeconfig, "node": place.node_name}
    return [word.format(**places) for word in shlex.split(text)]


def _environment(place: Place, kubeconfig: str) -> dict[str, str]:
    return {
        **os.environ,
        "KUBECONFIG": kubeconfig,
        "NODE_NAME": place.node_name,
        "DRAY_ROOT_DIR": str(place.root),
        "DRAY_CDI_DIR": place.cdi_folders[-1],
    }


def _restarter(arguments: argparse.Namespace) -> Restarter | None:
    if arguments.restart_command:
        return CommandRestarter(arguments.restart_command)
    return AskingRestarter() if sys.stdin.isatty() and sys.stderr.isatty() else None
