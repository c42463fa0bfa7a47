"""Wiring of `dray conformance`: the API server, the driver's process and the checks."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import yaml

from dray.api.document import Document
from dray.cli.conformance.classic_harness import ClassicHarness, ClassicParts
from dray.cli.conformance.cluster_objects import ClusterObjects
from dray.cli.conformance.findings import Finding, Verdict
from dray.cli.conformance.harness import Harness, Restarter, Target, Timing
from dray.cli.conformance.requirements import UsageError
from dray.cli.conformance.restarters import CommandRestarter, DriverProcess, PromptRestarter
from dray.cli.conformance.runner import run_classic_checks, run_driver_checks, run_plugin_checks
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client, Resource
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.lib.clock import Clock
from dray.node.cdi.cache import DEFAULT_DIRECTORIES
from dray.runtime.system import SystemClock


async def run(arguments: argparse.Namespace, selected: Collection[str]) -> tuple[list[Finding], str]:
    """Run the selected checks; return the findings and the name of the driver."""
    clock, target = SystemClock(), _target(arguments)
    claim, others = _read_claim(arguments.claim)
    async with AsyncExitStack() as stack:
        client, kubeconfig = await stack.enter_async_context(_cluster(arguments, clock))
        objects = ClusterObjects(client, clock, target.node_name, arguments.namespace, claim)
        if not arguments.device_plugin:
            await objects.start(await _resources(client, others))
        process = await _start(stack, arguments.run, target, kubeconfig)
        controller = await _start(stack, arguments.run_controller, target, kubeconfig)
        timing = Timing(arguments.timeout, arguments.call_timeout, repair_seconds=arguments.repair_timeout)
        restarter = process or _restarter(arguments)
        _report_progress(f"waiting for the driver in {target.root}; its API server: KUBECONFIG={kubeconfig}")
        if arguments.classic:
            parts = ClassicParts(client, arguments.namespace, claim, controller)
            classic = ClassicHarness(target, objects, clock, timing, restarter, parts)
            return await _collect(run_classic_checks(classic, selected), classic.driver_name)
        harness = Harness(target, objects, clock, timing, restarter)
        if arguments.device_plugin:
            return await _collect(run_plugin_checks(harness, selected), _resource_name(harness))
        return await _collect(run_driver_checks(harness, selected), _registered_name(harness))


async def _start(stack: AsyncExitStack, command: str, target: Target, kubeconfig: str) -> DriverProcess | None:
    if not command:
        return None
    process = DriverProcess(_command(command, target, kubeconfig), _environment(target, kubeconfig))
    await stack.enter_async_context(process)
    return process


def _target(arguments: argparse.Namespace) -> Target:
    root = Path(arguments.directory).resolve()
    for name in ("plugins_registry", "plugins", "device-plugins"):
        (root / name).mkdir(parents=True, exist_ok=True)
    folders = tuple(str(Path(item).resolve()) for item in arguments.cdi_dir) or DEFAULT_DIRECTORIES
    return Target(root, folders, arguments.node_name, arguments.driver)


async def _collect(
    results: AsyncGenerator[Finding, None], name: Callable[[], Awaitable[str]]
) -> tuple[list[Finding], str]:
    """Run the checks; `name` returns the driver's name once the first of them has passed."""
    findings: list[Finding] = []
    subject = ""
    async with aclosing(results):
        async for finding in results:
            findings.append(finding)
            if finding.verdict is Verdict.FAILED:
                _report_progress(f"failed: {finding.title}: {finding.reason}")
            elif finding.verdict is Verdict.PASSED and not subject:
                subject = await name()
                _report_progress(f"found {subject}")
    return findings, subject or "the driver"


def _resource_name(harness: Harness) -> Callable[[], Awaitable[str]]:
    async def name() -> str:
        return harness.kubelet.last.request.resource

    return name


def _registered_name(harness: Harness) -> Callable[[], Awaitable[str]]:
    async def name() -> str:
        return harness.info.name

    return name


def _report_progress(text: str) -> None:
    """Write to stderr; stdout is reserved for the report."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# --- The API server. ---


@asynccontextmanager
async def _cluster(arguments: argparse.Namespace, clock: Clock) -> AsyncIterator[tuple[Client, str]]:
    """Yield a client, and a kubeconfig for the driver: of an existing cluster, or of a temporary API server."""
    if arguments.kubeconfig:
        client = http_client(load_access(os.environ, path=arguments.kubeconfig), clock)
        try:
            await client.get_path("/version")
            yield client, arguments.kubeconfig
        finally:
            await client.close()
        return
    with tempfile.TemporaryDirectory(prefix="dray-") as folder:
        async with apiserver.running(APIServerSettings(data_dir=folder, port=0, store="memory")) as running:
            kubeconfig = _copy_kubeconfig(running.kubeconfig, arguments.kubeconfig_out)
            client = http_client(load_access({}, path=str(running.kubeconfig)), clock)
            try:
                yield client, str(kubeconfig)
            finally:
                await client.close()


def _copy_kubeconfig(kubeconfig: Path, copy: str) -> Path:
    """Copy the kubeconfig if requested, readable by the owner only; return the path to use."""
    if not copy:
        return kubeconfig
    path = Path(copy).resolve()
    path.touch(mode=0o600)
    path.write_bytes(kubeconfig.read_bytes())
    return path


def _read_claim(path: str) -> tuple[Document | None, list[Document]]:
    """Return the claim of a file, and its classes."""
    if not path:
        return None, []
    try:
        documents = [item for item in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if item]
    except yaml.YAMLError as error:
        raise UsageError(f"--claim: {path}: {error}") from error
    claims = [item for item in documents if item.get("kind") == "ResourceClaim"]
    if len(claims) != 1:
        raise UsageError(f"--claim: {path} has {len(claims)} ResourceClaims, but must have exactly one")
    return claims[0], [item for item in documents if item.get("kind") in ("DeviceClass", "ResourceClass")]


async def _resources(client: Client, documents: Sequence[Document]) -> list[tuple[Resource[Document], Document]]:
    served = {(item.group, item.version, item.kind): item for item in await client.resources()} if documents else {}
    found = []
    for document in documents:
        group, _, version = document.get("apiVersion", "").rpartition("/")
        item = served.get((group, version, document["kind"]))
        if item is None:
            raise UsageError(f"--claim: the server does not serve {document['kind']} in {document.get('apiVersion')}")
        found.append((item.resource(), document))
    return found


# --- The driver. ---


def _command(text: str, target: Target, kubeconfig: str) -> list[str]:
    values = {
        "root": target.root,
        "cdi": target.cdi_directories[-1],
        "kubeconfig": kubeconfig,
        "node": target.node_name,
    }
    return [word.format(**values) for word in shlex.split(text)]


def _environment(target: Target, kubeconfig: str) -> dict[str, str]:
    return {
        **os.environ,
        "KUBECONFIG": kubeconfig,
        "NODE_NAME": target.node_name,
        "DRAY_ROOT_DIR": str(target.root),
        "DRAY_CDI_DIR": target.cdi_directories[-1],
    }


def _restarter(arguments: argparse.Namespace) -> Restarter | None:
    if arguments.restart_command:
        return CommandRestarter(arguments.restart_command)
    return PromptRestarter() if sys.stdin.isatty() and sys.stderr.isatty() else None
