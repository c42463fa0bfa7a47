"""Servers that follow a script byte by byte, and a small proxy; none of them uses the code they are to test."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from dray.apiserver.authentication.certificates import KeyPair

WAIT_SECONDS = 120.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


@dataclass
class Certificates:
    """An authority, another that is not trusted, and what the first certified."""

    folder: Path
    authority: bytes
    other: bytes
    server_pair: KeyPair
    client_pair: KeyPair

    def server(self, *, asks: bool = False) -> ssl.SSLContext:
        """A server's side; one that asks wants a certificate too."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.authority.decode())
        self._load(context, "server", self.server_pair)
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        return context

    def client(self, *, trusts: bytes | None = None, shows: bool = False) -> ssl.SSLContext:
        """A client's side; with nothing to trust it does not check."""
        context = ssl.create_default_context(cadata=(trusts or self.authority).decode())
        if trusts == b"":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if shows:
            self._load(context, "client", self.client_pair)
        return context

    @property
    def fingerprint(self) -> bytes:
        """The server's."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.server_pair.certificate.decode())).digest()

    def _load(self, context: ssl.SSLContext, name: str, pair: KeyPair) -> None:
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the other side of a connection will see or do."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - sockets and other libraries set no event of ours
            await asyncio.sleep(0.001)


async def read_request(reader: Reader) -> tuple[bytes, bytes]:
    """The head of a request without its end, and its body."""
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head, await reader.readexactly(int(lengths[0])) if lengths else b""


@dataclass
class Script:
    """What a scripted server saw."""

    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ended: asyncio.Queue[int] = field(default_factory=asyncio.Queue)

    async def read(self, reader: Reader) -> bytes:
        """Take a request; returns its head."""
        head, body = await read_request(reader)
        self.requests.append(head)
        self.bodies.append(body)
        return head


Act = Callable[[Script, Reader, Writer], Awaitable[None]]


@asynccontextmanager
async def scripted(act: Act, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Script]:
    """A server whose connections each do the act; when one ends its number is in `ended`."""
    script, writers = Script(), set[Writer]()

    async def serve(reader: Reader, writer: Writer) -> None:
        script.connections += 1
        number = script.connections
        writers.add(writer)
        try:
            with suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
                await act(script, reader, writer)
        finally:
            writer.close()
            writers.discard(writer)
            script.ended.put_nowait(number)

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    script.port = server.sockets[0].getsockname()[1]
    try:
        yield script
    finally:
        server.close()
        for writer in tuple(writers):
            writer.transport.abort()


async def answer_all(script: Script, reader: Reader, writer: Writer) -> None:
    """Every request is answered well."""
    while True:
        await script.read(reader)
        writer.write(OK)
        await writer.drain()


async def until_gone(script: Script, reader: Reader, _writer: Writer) -> None:
    """Take one request and wait until the client leaves."""
    await script.read(reader)
    await reader.read()


def proxying(user: str = "") -> Act:
    """A proxy: CONNECT, and requests that name a server; with a user, only for who gives it."""
    wanted = b"proxy-authorization: basic " + base64.b64encode(user.encode()).lower()

    async def act(script: Script, reader: Reader, writer: Writer) -> None:
        head = await script.read(reader)
        if user and wanted not in head.lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        method, target, _ = head.split(b"\r\n")[0].split(b" ")
        if method != b"CONNECT":
            writer.write(OK)
            await writer.drain()
            await reader.read()
            return
        host, _, port = target.decode().rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(b"HTTP/1.0 200 Connection established\r\n\r\n")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, far_writer))
                group.create_task(_copy(far_reader, writer))
        finally:
            far_writer.transport.abort()

    return act


async def _copy(reader: Reader, writer: Writer) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
