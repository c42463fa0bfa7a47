"""A webhook on loopback with a certificate of its own authority, for tests."""

from __future__ import annotations

import asyncio
import base64
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from dray.api.document import Document
from dray.apiserver.authentication import certificates

# Returns the `response` of a review, or bytes to answer with.
Handler = Callable[[Document], "Document | bytes | Awaitable[Document | bytes]"]
HOUR = timedelta(hours=1)


@dataclass(slots=True)
class Webhook:
    """A running webhook: where it is, and the reviews that it got."""

    port: int
    ca_bundle: str
    requests: list[Document] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/review"

    @property
    def client_config(self) -> Document:
        return {"url": self.url, "caBundle": self.ca_bundle}


def allow(_request: Document) -> Document:
    """Allow everything."""
    return {"allowed": True}


def patching(*operations: Document) -> Handler:
    """Return a handler that allows everything with a patch."""
    patch = base64.b64encode(orjson.dumps(list(operations))).decode()
    return lambda _request: {"allowed": True, "patchType": "JSONPatch", "patch": patch}


@asynccontextmanager
async def serving(
    handler: Handler = allow,
    *,
    names: tuple[str, ...] = ("127.0.0.1", "hook.default.svc"),
    age: timedelta = HOUR,
) -> AsyncIterator[Webhook]:
    """Serve a webhook; `age` is that of its certificate, which is valid for a year."""
    now = datetime.fromtimestamp(time.time(), UTC)
    authority = certificates.new_authority(certificates.new_private_key(), now - HOUR)
    pair = certificates.new_server(authority, names, now - age)
    webhook = Webhook(0, base64.b64encode(authority.certificate).decode())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        webhook.connections += 1
        try:
            while await _exchange(webhook, handler, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=_context(Path(folder), pair))
    async with server:
        webhook.port = server.sockets[0].getsockname()[1]
        yield webhook


def _context(folder: Path, pair: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "certificate").write_bytes(pair.certificate)
    (folder / "key").write_bytes(pair.key)
    context.load_cert_chain(folder / "certificate", folder / "key")
    return context


async def _exchange(
    webhook: Webhook, handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:] if line)}
    review = orjson.loads(await reader.readexactly(int(headers["content-length"])))
    webhook.requests.append(review)
    webhook.targets.append(lines[0])
    made = handler(review["request"])
    answer = await made if isinstance(made, Awaitable) else made
    if isinstance(answer, dict):
        response = {"uid": review["request"]["uid"], **answer}
        body = orjson.dumps({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response})
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    writer.write(answer)
    await writer.drain()
    return True
