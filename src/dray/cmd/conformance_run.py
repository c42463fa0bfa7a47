"""The wiring of `dray conformance`: an API server, the driver's process and the checks."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import yaml

from dray.api.document import Document
from dray.cli.conformance.findings import Finding, Verdict
from dray.cli.conformance.kit import Kit, Place, Restarter, Timing
from dray.cli.conformance.objects import Objects
from dray.cli.conformance.requirements import UsageError
from dray.cli.conformance.restarts import AskingRestarter, CommandRestarter, DriverProcess
from dray.cli.conformance.runner import run_driver_checks, run_plugin_checks
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client, Resource
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.lib.clock import Clock
from dray.node.cdi.cache import DEFAULT_DIRECTORIES
from dray.runtime.clock import SystemClock


async def run(arguments: argparse.Namespace, chosen: Collection[str]) -> tuple[list[Finding], str]:
    """Check what is chosen; the findings, and whose they are."""
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
