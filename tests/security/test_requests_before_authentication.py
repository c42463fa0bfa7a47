"""What a client without credentials can make the API server do: next to nothing, and nothing by other headers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.apiserver.calls import Caller, RawConnection, caller, calling
from tests.servers import Server, running_server

MAPS: Final = "/api/v1/namespaces/default/configmaps"
WAIT_SECONDS: Final = 120.0
ADMIN: Final = b"Authorization: Bearer admin-token\r\n"
ALICE: Final = b"Authorization: Bearer alice-token\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server"), command="apiserver") as running:
        yield running


@pytest.fixture
def admin(server: Server) -> Iterator[Caller]:
    with calling(server) as found:
        yield found


@pytest.fixture
def wire(server: Server) -> Iterator[RawConnection]:
    found = RawConnection(caller(server, "anonymous"))
    yield found
    found.close()


def head(method: str, path: str, *headers: bytes) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + b"".join(headers) + b"\r\n"


def config_map(name: str) -> bytes:
    return json.dumps({"metadata": {"name": name}}).encode()


def chunked(body: bytes, trailers: bytes = b"") -> bytes:
    return b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)


JSON: Final = b"Content-Type: application/json\r\n"


@pytest.mark.parametrize("auth", [b"", b"Authorization: Bearer wrong\r\n"], ids=["nobody", "wrong token"])
@pytest.mark.parametrize("length", [b"Content-Length: 3000000\r\n", CHUNKED], ids=["length", "chunked"])
def test_a_body_without_credentials_is_rejected_unread(wire: RawConnection, auth: bytes, length: bytes) -> None:
    wire.send(head("POST", MAPS, auth, length, JSON))
    status, headers, body = wire.answer()
    assert status == (401 if auth else 403)
    assert headers["connection"] == "close"
    assert json.loads(body)["kind"] == "Status"
    assert wire.ended()


def test_impersonation_is_refused_before_the_body(wire: RawConnection) -> None:
    wire.send(head("POST", MAPS, ALICE, b"Impersonate-User: root\r\n", b"Content-Length: 3000000\r\n"))
    status, _, body = wire.answer()
    assert status == 403
    assert "impersonate" in json.loads(body)["message"]
    assert wire.ended()


def test_a_refused_body_waits_for_the_responses_before_it(wire: RawConnection) -> None:
    wire.send(head("GET", "/version") + head("POST", MAPS, b"Content-Length: 9\r\n"))
    assert [wire.answer()[0], wire.answer()[0]] == [200, 403]
    assert wire.ended()


@pytest.mark.parametrize("name", ["authorization", "impersonate-user"])
def test_trailers_are_not_headers(wire: RawConnection, admin: Caller, name: str) -> None:
    trailers = {
        "authorization": ADMIN + b"X-Last: 1\r\n",
        "impersonate-user": b"X-First: 1\r\nImpersonate-User: admin\r\nImpersonate-Group: system:masters\r\n",
    }[name]
    # alice may review her own access, and nothing else.
    review = b'{"spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}}'
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    wire.send(head("POST", path, ALICE, CHUNKED, JSON) + chunked(review, trailers))
    status, _, body = wire.answer()
    assert (status, json.loads(body)["status"]["allowed"]) == (201, False)
    # Nor do they belong to the next request of the connection.
    wire.send(head("POST", MAPS, ALICE, CHUNKED, JSON) + chunked(config_map(f"by-trailer-{name}"), trailers))
    wire.send(head("GET", MAPS))
    assert [wire.answer()[0], wire.answer()[0]] == [403, 403]
    assert admin.get(f"{MAPS}/by-trailer-{name}").status == 404


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"0\r\n" + b"X-Filler: " + b"x" * 2_000_000, 431),
        (b"0\r\nBad Trailer: x\r\n\r\n", 400),
        (b"zz\r\n\r\n", 400),
    ],
    ids=["trailers too large", "malformed trailer", "malformed chunk"],
)
def test_what_is_answered_with_400_or_431_is_not_executed(
    wire: RawConnection, admin: Caller, rest: bytes, status: int, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
    body = config_map(name)
    begun = head("POST", MAPS, ADMIN, CHUNKED, JSON) + b"%x\r\n%b\r\n" % (len(body), body)
    try:
        wire.send(begun + rest)
    except (ConnectionError, ssl.SSLError):
        # Refused while we were still sending; the response may be lost.
        assert status == 431
    else:
        assert wire.answer()[0] == status
        assert wire.ended()
    assert admin.get(f"{MAPS}/{name}").status == 404


def resident_megabytes(server: Server) -> float:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.parametrize("auth", [b"", ALICE], ids=["nobody", "alice"])
def test_aborted_bodies_leave_no_memory(server: Server, auth: bytes) -> None:
    """Without bounds each of these held 3 MB until the garbage collector ran."""
    before = resident_megabytes(server)
    for _ in range(20):
        wire = RawConnection(caller(server, "anonymous"))
        with suppress(ConnectionError, ssl.SSLError):
            wire.send(head("POST", MAPS, auth, b"Content-Length: 3145728\r\n") + b"x" * 3_100_000)
        wire.close()
    assert resident_megabytes(server) - before < 25
