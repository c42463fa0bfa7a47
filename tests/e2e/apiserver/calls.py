"""Plain HTTP to a server under test: stdlib connections, so that nothing hides what is on the wire."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.servers import Server

TIMEOUT_SECONDS = 30.0


@dataclass(slots=True)
class Answer:
    """A whole answer."""

    status: int
    # Names are found in any case.
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The text of a Status."""
        return str(self.json()["message"])


@dataclass(slots=True)
class Caller:
    """Calls one server as one user; connections are kept between calls."""

    url: str
    tls: ssl.SSLContext
    headers: dict[str, str] = field(default_factory=dict)
    _connection: http.client.HTTPSConnection | None = None

    def connect(self) -> http.client.HTTPSConnection:
        """A connection of one's own."""
        place = urlsplit(self.url)
        assert place.hostname is not None
        return http.client.HTTPSConnection(place.hostname, place.port, context=self.tls, timeout=TIMEOUT_SECONDS)

    def call(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json", **headers: str
    ) -> Answer:
        """One request; header names may be given as identifiers."""
        if self._connection is None:
            self._connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if data is not None:
            sent["Content-Type"] = content_type
        self._connection.request(method, path, data, sent)
        answer = self._connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, **headers)

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """An answer that is read as it comes, on a connection of its own."""
        connection = self.connect()
        try:
            connection.request(
                "GET", path, headers={**self.headers, **{name.replace("_", "-"): v for name, v in headers.items()}}
            )
            yield connection.getresponse()
        finally:
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RawConnection:
    """A TLS connection with the caller's certificate, if any; it sends exactly the bytes that it is given."""

    def __init__(self, caller: Caller) -> None:
        place = urlsplit(caller.url)
        assert place.hostname is not None
        plain = socket.create_connection((place.hostname, place.port or 443), timeout=TIMEOUT_SECONDS)
        self._socket: ssl.SSLSocket = caller.tls.wrap_socket(plain, server_hostname=place.hostname)
        self.file = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next response, which has a Content-Length."""
        status = int(self.file.readline().split()[1])
        headers: dict[str, str] = {}
        while line := self.file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return status, headers, self.file.read(int(headers.get("content-length", 0)))

    def ended(self) -> bool:
        """Whether the server has closed the connection."""
        try:
            return self.file.read(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True

    def close(self) -> None:
        self.file.close()
        self._socket.close()


def chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """What has arrived, piece by piece, until the end."""
    while piece := answer.read1(65536):
        yield piece


def events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """The events of a JSON watch."""
    for line in answer:
        event = json.loads(line)
        yield event["type"], event["object"]


def read_kubeconfig(path: Path) -> tuple[str, bytes, bytes, bytes]:
    """Server, authority, certificate and key of a kubeconfig with everything embedded."""
    document = yaml.safe_load(path.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    return (
        cluster["server"],
        base64.b64decode(cluster["certificate-authority-data"]),
        base64.b64decode(user["client-certificate-data"]),
        base64.b64decode(user["client-key-data"]),
    )


def tls_context(authority: bytes, certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext:
    """Verifies the server by the authority, and presents the certificate."""
    context = ssl.create_default_context(cadata=authority.decode())
    if certificate:
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def caller(server: Server, token: str = "") -> Caller:
    """The administrator by certificate, or the user of the token; `anonymous` sends no credentials."""
    url, authority, certificate, key = read_kubeconfig(server.kubeconfig)
    if not token:
        return Caller(url, tls_context(authority, certificate, key))
    headers = {} if token == "anonymous" else {"Authorization": f"Bearer {token}"}
    return Caller(url, tls_context(authority), headers)


@contextmanager
def calling(server: Server, token: str = "") -> Iterator[Caller]:
    """A caller whose connection is closed in the end."""
    found = caller(server, token)
    try:
        yield found
    finally:
        found.close()
