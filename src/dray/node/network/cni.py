"""Pods on networks of CNI plugins, by the first configuration list of a folder."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dray.node.network import commands
from dray.node.network.cni_plan import Invocation, invocations, result_addresses
from dray.node.runtimes.runtime import RuntimeFailure, Sandbox
from dray.node.untrusted_files import write_private
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)
_PLUGIN_SECONDS_MAX: Final = 60.0
_OUTPUT_BYTES_MAX: Final = 1024 * 1024


class CniNetwork:
    """Implements `PodNetwork`. A Pod is removed with the configuration that it was added with, which is kept."""

    def __init__(self, folder: Path, configurations: Path, binaries: Sequence[str]) -> None:
        self._folder = folder
        self._configurations = configurations
        self._binaries = tuple(binaries)

    async def add(self, sandbox: Sandbox) -> tuple[str, ...]:
        """Run ADD of every plugin of the list; return the addresses of the last result."""
        if sandbox.host_network:
            return ()
        path = self._namespace_path(sandbox.uid)
        known = self._record(sandbox.uid)
        if known is not None and known.get("result") is not None and commands.holds_namespace(path):
            return result_addresses(known["result"])
        if known is not None:
            # A half-made one, or that of a machine before its restart.
            await self.remove(sandbox.uid)
        configuration = self._configuration()
        await commands.make_namespace(path)
        record: dict[str, Any] = {"configuration": configuration, "pod": [sandbox.namespace, sandbox.name]}
        record["ports"] = [
            {"hostPort": item.port, "containerPort": item.container_port, "protocol": item.protocol.lower()}
            | ({"hostIP": item.host_ip} if item.host_ip else {})
            for item in sandbox.host_ports
        ]
        self._save(sandbox.uid, record)
        result: Mapping[str, Any] | None = None
        for invocation in invocations("ADD", sandbox.uid, str(path), record):
            result = await self._run(invocation, result)
        record["result"] = result or {}
        self._save(sandbox.uid, record)
        addresses = result_addresses(record["result"])
        if not addresses:
            raise RuntimeFailure("the CNI plugins gave the Pod no address")
        return addresses

    def namespace(self, sandbox: Sandbox) -> str:
        """Return the path of the Pod's namespace."""
        return "" if sandbox.host_network else str(self._namespace_path(sandbox.uid))

    def namespace_of(self, pod_uid: str) -> str:
        """Return the path of the namespace that a Pod has."""
        path = self._namespace_path(pod_uid)
        return str(path) if commands.holds_namespace(path) else ""

    async def check(self, pod_uid: str) -> None:
        """Run CHECK of every plugin; raises `RuntimeFailure` with what is wrong."""
        record = self._record(pod_uid)
        if record is None or record.get("result") is None:
            raise RuntimeFailure(f"Pod {pod_uid} has no network")
        for invocation in invocations("CHECK", pod_uid, str(self._namespace_path(pod_uid)), record):
            await self._run(invocation, record["result"])

    async def remove(self, pod_uid: str) -> None:
        """Run DEL of every plugin in reverse order, and remove the namespace."""
        path = self._namespace_path(pod_uid)
        record = self._record(pod_uid)
        if record is not None:
            for invocation in invocations("DEL", pod_uid, str(path), record):
                await self._run(invocation, record.get("result"))
        await asyncio.to_thread(commands.remove_namespace, path)
        self._record_path(pod_uid).unlink(missing_ok=True)

    async def keep_only(self, pod_uids: Collection[str]) -> None:
        """Remove what other Pods have."""
        found = {path.name for path in (self._folder / "namespaces").glob("*")}
        found |= {path.stem for path in (self._folder / "cni").glob("*.json")}
        for uid in sorted(found.difference(pod_uids)):
            try:
                await self.remove(uid)
            except (RuntimeFailure, OSError) as error:
                _log.warning("the network of a removed Pod is left", extra=fields(pod=uid, error=str(error)))

    def _configuration(self) -> Mapping[str, Any]:
        files = sorted(self._configurations.glob("*.conflist"))
        if not files:
            raise RuntimeFailure(f"no networks found in {self._configurations}")
        try:
            found = json.loads(files[0].read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RuntimeFailure(f"{files[0]}: {error}") from error
        if not isinstance(found, dict) or not found.get("name") or not found.get("plugins"):
            raise RuntimeFailure(f"{files[0]} has no name or no plugins")
        return found

    async def _run(self, invocation: Invocation, previous: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        binary = next(
            (
                path
                for path in (Path(folder) / invocation.plugin for folder in self._binaries)
                if os.access(path, os.X_OK)
            ),
            None,
        )
        if binary is None:
            raise RuntimeFailure(f'failed to find plugin "{invocation.plugin}" in path [{" ".join(self._binaries)}]')
        environment = {
            **invocation.environment,
            "CNI_PATH": ":".join(self._binaries),
            "PATH": os.environ.get("PATH", ""),
        }
        content = json.dumps(invocation.configuration(previous)).encode()
        code, output, errors = await commands.run_program([str(binary)], content, environment, _PLUGIN_SECONDS_MAX)
        try:
            answer = json.loads(output[:_OUTPUT_BYTES_MAX]) if output.strip() else None
        except ValueError:
            answer = None
        if code != 0:
            message = (answer or {}).get("msg") or errors or "no reason given"
            details = (answer or {}).get("details") or ""
            verb = {"ADD": "add", "DEL": "delete", "CHECK": "check"}[invocation.environment["CNI_COMMAND"]]
            text = f"{message}{f': {details}' if details else ''}"
            raise RuntimeFailure(f'plugin type="{invocation.plugin}" failed ({verb}): {text}')
        return answer if isinstance(answer, dict) else previous

    def _namespace_path(self, uid: str) -> Path:
        return self._folder / "namespaces" / uid

    def _record_path(self, uid: str) -> Path:
        return self._folder / "cni" / f"{uid}.json"

    def _record(self, uid: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._record_path(uid).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _save(self, uid: str, record: Mapping[str, Any]) -> None:
        path = self._record_path(uid)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, json.dumps(record).encode())
