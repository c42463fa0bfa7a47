"""Queries of the page that the API cannot answer: the devices of each class, and explanations."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

import orjson

from dray.api.document import Document
from dray.api.errors import InternalError
from dray.client.interface import Client
from dray.sim.cluster_reader import read_documents
from dray.sim.devices import device_rows
from dray.sim.snapshot import PATH_KINDS, Snapshot

DEVICE_KINDS: Final = ("ResourceSlice", "DeviceClass", "ResourceClaim", "DeviceTaintRule")
EXPLAIN_SECONDS_MAX: Final = 60.0
# More at a time would only slow down all of them.
CONCURRENT_EXPLAIN_MAX: Final = 2


class Queries:
    """Runs the queries of one process, with the permissions of the client passed in."""

    def __init__(self) -> None:
        self._explain_slots = asyncio.Semaphore(CONCURRENT_EXPLAIN_MAX)

    async def classes(self, client: Client) -> Document:
        """Return the keys of the matching devices by class."""
        documents = await read_documents(client, DEVICE_KINDS)
        return await asyncio.to_thread(_devices_by_class, documents)

    async def explain(self, client: Client, kind: str, namespace: str, name: str) -> Any:
        """Return the JSON output of `dray explain`, run in a subprocess because it is CPU-bound."""
        documents = await read_documents(client, PATH_KINDS, namespace)
        command = ["-m", "dray", "explain", kind, name, "-n", namespace, "-f", "-", "-o", "json"]
        async with self._explain_slots:
            return await _run(command, orjson.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))


def _devices_by_class(documents: Sequence[Document]) -> Document:
    found: dict[str, list[str]] = {}
    for row in device_rows(Snapshot.of(documents)):
        for name in row.classes:
            found.setdefault(name, []).append(row.key)
    return found


async def _run(command: Sequence[str], stdin: bytes) -> Any:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(EXPLAIN_SECONDS_MAX):
            stdout, stderr = await process.communicate(stdin)
    except TimeoutError as error:
        raise InternalError(f"dray explain took more than {EXPLAIN_SECONDS_MAX:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise InternalError(stderr.decode(errors="replace").strip() or "dray explain failed")
    return orjson.loads(stdout)[0]
