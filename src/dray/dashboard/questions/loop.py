"""Reads what the reader may see, and has it thought about where it keeps nobody waiting."""

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
from dray.sim.snapshot import Snapshot

DEVICE_KINDS: Final = ("ResourceSlice", "DeviceClass", "ResourceClaim", "DeviceTaintRule")
EXPLAIN_KINDS: Final = (*DEVICE_KINDS, "Node", "Pod", "ResourceClaimTemplate")
EXPLAIN_SECONDS_MAX: Final = 60.0
# More at once would only make all of them slow.
EXPLAINERS_MAX: Final = 2


class Questions:
    """One for a whole process."""

    def __init__(self) -> None:
        self._explainers = asyncio.Semaphore(EXPLAINERS_MAX)

    async def classes(self, client: Client) -> Document:
        """Class -> the devices that match it."""
        documents = await read_documents(client, DEVICE_KINDS)
        return await asyncio.to_thread(_classes, documents)

    async def explain(self, client: Client, kind: str, namespace: str, name: str) -> Any:
        """What `dray explain` says, as JSON; in a process of its own, because it takes its time."""
        documents = await read_documents(client, EXPLAIN_KINDS)
        command = ["-m", "dray", "explain", kind, name, "-n", namespace, "-f", "-", "-o", "json"]
        async with self._explainers:
            return await _ask(command, orjson.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))


def _classes(documents: Sequence[Document]) -> Document:
    found: dict[str, list[str]] = {}
    for row in device_rows(Snapshot.of(documents)):
        for name in row.classes:
            found.setdefault(name, []).append(row.key)
    return found


async def _ask(command: Sequence[str], text: bytes) -> Any:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(EXPLAIN_SECONDS_MAX):
            answer, complaint = await process.communicate(text)
    except TimeoutError as error:
        raise InternalError(f"explaining took more than {EXPLAIN_SECONDS_MAX:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise InternalError(complaint.decode(errors="replace").strip() or "explaining failed")
    return orjson.loads(answer)[0]
