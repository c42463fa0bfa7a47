"""HTTP as such: compression, caching, limits, odd requests and odd clients."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator

import pytest

from tests.e2e.apiserver.calls import Caller, RawConnection, calling, events
from tests.servers import Server

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def wire(admin: Caller) -> Iterator[RawConnection]:
    found = RawConnection(admin)
    yield found
    found.close()


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


# --- compression and caching


@pytest.fixture(scope="module")
def big(server: Server) -> str:
    """The path of an object above the size from which answers are compressed."""
    with calling(server) as admin:
        body = {"metadata": {"name": "big"}, "data": {"text": "abc" * 60_000}}
        assert admin.call("POST", MAPS, body).status == 201
    return f"{MAPS}/big"


def test_big_answers_are_compressed_when_asked(admin: Caller, big: str) -> None:
    plain = admin.get(big)
    packed = admin.get(big, Accept_Encoding="gzip")
    assert len(plain.body) > 128 * 1024
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 10


def test_small_answers_are_not_compressed(admin: Caller) -> None:
    assert "Content-Encoding" not in admin.get("/api/v1/namespaces/default", Accept_Encoding="gzip").headers


def test_watches_are_not_compressed(admin: Caller, big: str) -> None:
    path = f"{MAPS}?watch=true&fieldSelector=metadata.name%3Dbig&timeoutSeconds=5"
    with admin.stream(path, Accept_Encoding="gzip") as answer:
        assert answer.getheader("Content-Encoding") is None
        assert next(iter(events(answer)))[1]["metadata"]["name"] == big.rpartition("/")[2]


AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        pytest.param("/api", AGGREGATED, id="discovery of the core"),
        pytest.param("/apis", AGGREGATED, id="discovery of the groups"),
        pytest.param("/openapi/v2", "application/json", id="OpenAPI v2"),
        pytest.param("/openapi/v3/api/v1", "application/json", id="OpenAPI v3 of the core"),
        pytest.param("/openapi/v3/apis/resource.k8s.io/v1", "application/json", id="OpenAPI v3 of a group"),
    ],
)
def test_unchanged_documents_are_not_sent_again(admin: Caller, path: str, accept: str) -> None:
    first = admin.get(path, Accept=accept)
    assert first.status == 200
    again = admin.get(path, Accept=accept, If_None_Match=first.headers["Etag"])
    assert (again.status, again.body, again.headers["Etag"]) == (304, b"", first.headers["Etag"])
    other = admin.get(path, Accept=accept, If_None_Match='"other"')
    assert (other.status, other.body) == (200, first.body)


def test_hashed_documents_are_kept_for_good(admin: Caller) -> None:
    index = admin.get("/openapi/v3").json()["paths"]["apis/resource.k8s.io/v1"]["serverRelativeURL"]
    assert "?hash=" in index
    answer = admin.get(index)
    assert answer.status == 200
    assert "immutable" in answer.headers["Cache-Control"]


# --- limits


def test_body_over_the_limit(admin: Caller) -> None:
    body = {"metadata": {"name": "huge"}, "data": {"text": "x" * (3 * 1024 * 1024)}}
    answer = admin.call("POST", MAPS, body)
    assert (answer.status, answer.json()["reason"]) == (413, "RequestEntityTooLarge")
    # The connection is still good.
    assert admin.get("/version").status == 200


@pytest.mark.parametrize(("size", "status"), [(3 * 1024 * 1024, 201), (3 * 1024 * 1024 + 1, 413)])
def test_a_body_of_exactly_the_limit_is_accepted(admin: Caller, size: int, status: int) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    spec = b'{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}'
    answer = admin.call("POST", path, spec + b" " * (size - len(spec)))
    assert answer.status == status


def test_object_over_the_limit_of_its_kind(admin: Caller) -> None:
    body = {"metadata": {"name": "huge"}, "data": {"text": "x" * (1024 * 1024 + 1)}}
    answer = admin.call("POST", MAPS, body)
    assert answer.status == 422
    assert "Too long" in answer.message


def test_headers_over_the_limit(wire: RawConnection) -> None:
    wire.send(b"GET /version HTTP/1.1\r\nHost: localhost\r\n")
    piece = b"X-Filler: " + b"x" * 60_000 + b"\r\n"
    try:
        for _ in range(40):
            wire.send(piece)
        status, _, _ = wire.answer()
    except (ConnectionError, ssl.SSLError):
        # Refused while we were still sending.
        return
    assert status == 431
    assert wire.ended()


def test_many_small_headers(wire: RawConnection) -> None:
    wire.send(request("GET", "/version", *(f"X-Filler-{number}: {number}" for number in range(500))))
    assert wire.answer()[0] == 200


# --- odd requests


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"nonsense\r\n\r\n", id="no request line"),
        pytest.param(b"GET /version HTTP/9.9\r\nHost: x\r\n\r\n", id="unknown version"),
        pytest.param(b"\x00\x01\x02\x03\r\n\r\n", id="binary"),
        pytest.param(b"GET /version HTTP/1.1\r\nBad Header: x\r\n\r\n", id="space in a header name"),
        pytest.param(
            b"POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="two lengths",
        ),
        pytest.param(b"POST /version HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n", id="length is no number"),
        pytest.param(
            b"POST /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            id="chunk size is no number",
        ),
    ],
)
def test_malformed_requests_end_the_connection(wire: RawConnection, admin: Caller, data: bytes) -> None:
    wire.send(data)
    assert wire.answer()[0] == 400
    assert wire.ended()
    assert admin.get("/version").status == 200


def test_half_a_request_then_gone(admin: Caller) -> None:
    for piece in (b"GET /ver", b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"):
        wire = RawConnection(admin)
        wire.send(piece)
        wire.close()
    assert admin.get("/version").status == 200


def test_request_in_single_bytes(wire: RawConnection) -> None:
    for byte in request("GET", "/version", "Accept: application/json"):
        wire.send(bytes([byte]))
    assert wire.answer()[0] == 200


def test_pipelined_requests_are_answered_in_order(wire: RawConnection) -> None:
    names = ["default", "kube-system", "missing", "kube-public"]
    wire.send(b"".join(request("GET", f"/api/v1/namespaces/{name}") for name in names))
    answers = [wire.answer() for _ in names]
    assert [status for status, _, _ in answers] == [200, 200, 404, 200]
    bodies = [json.loads(body) for _, _, body in answers]
    assert [body["metadata"].get("name") for body in bodies] == ["default", "kube-system", None, "kube-public"]


def test_pipelined_writes_then_read(wire: RawConnection) -> None:
    body = json.dumps({"metadata": {"name": "piped"}, "data": {"a": "1"}}).encode()
    wire.send(
        request("POST", MAPS, "Content-Type: application/json", body=body)
        + request("GET", f"{MAPS}/piped")
        + request("DELETE", f"{MAPS}/piped")
        + request("GET", f"{MAPS}/piped")
    )
    assert [wire.answer()[0] for _ in range(4)] == [201, 200, 200, 404]


def test_expect_continue(wire: RawConnection) -> None:
    body = b'{"metadata": {"name": "patient"}}'
    head = request(
        "POST",
        f"{MAPS}?dryRun=All",
        "Content-Type: application/json",
        "Expect: 100-continue",
        f"Content-Length: {len(body)}",
    )
    wire.send(head)
    assert wire.answer()[0] == 100
    wire.send(body)
    assert wire.answer()[0] == 201


def test_chunked_body(wire: RawConnection) -> None:
    body = b'{"metadata": {"name": "pieces"}, "data": {"a": "1"}}'
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    chunked = b"".join(b"%x;note=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nTrailer: x\r\n\r\n"
    wire.send(request("POST", f"{MAPS}?dryRun=All", "Content-Type: application/json", "Transfer-Encoding: chunked"))
    wire.send(chunked)
    status, _, answer = wire.answer()
    assert (status, json.loads(answer)["data"]) == (201, {"a": "1"})
    wire.send(request("GET", "/version"))
    assert wire.answer()[0] == 200


@pytest.mark.parametrize("path", ["/version", "/healthz", "/apis", "/openapi/v2"])
def test_head(wire: RawConnection, path: str) -> None:
    wire.send(request("HEAD", path))
    # A HEAD answer has a length and no body: what follows must be the next answer.
    wire.send(request("GET", "/livez"))
    status = wire.file.readline()
    while wire.file.readline().strip():
        pass
    assert b" 200 " in status
    assert wire.answer()[2] == b"ok"


def test_keep_alive_and_close(wire: RawConnection) -> None:
    for _ in range(20):
        wire.send(request("GET", "/livez"))
        assert wire.answer()[0] == 200
    wire.send(request("GET", "/livez", "Connection: close"))
    assert wire.answer()[0] == 200
    assert wire.ended()


def test_http_1_0_closes(wire: RawConnection) -> None:
    wire.send(b"GET /livez HTTP/1.0\r\n\r\n")
    assert wire.answer()[0] == 200
    assert wire.ended()


def test_upgrades_are_not_taken_up(wire: RawConnection) -> None:
    wire.send(request("GET", "/version", "Connection: Upgrade", "Upgrade: websocket"))
    assert wire.answer()[0] in (200, 400)


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_other_methods(admin: Caller, method: str) -> None:
    answer = admin.call(method, "/api/v1/namespaces")
    assert answer.status in (400, 403, 404, 405), answer.body


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/namespaces/default?", 200),
        ("/api/v1//namespaces/default", 200),
        ("/api/v1/namespaces/default/", 200),
        ("/api/v1/namespaces/%64efault", 200),
        ("/api/v1/namespaces/..%2f..%2fetc", 404),
        ("/api/v1/namespaces/default/pods/a%2Fb", 404),
        ("/api/v2/namespaces", 404),
        ("/nothing", 404),
        ("/api/v1/namespaces?limit=abc", 400),
        ("/api/v1/namespaces?labelSelector=a%3D%3D%3Db", 400),
        ("/api/v1/namespaces?continue=nonsense", 400),
    ],
)
def test_odd_paths(admin: Caller, path: str, status: int) -> None:
    assert admin.get(path).status == status


def test_closed_port() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        connection = http.client.HTTPSConnection("127.0.0.1", held.getsockname()[1], timeout=5)
        with pytest.raises(ConnectionRefusedError):
            connection.request("GET", "/healthz")
        connection.close()


def test_metrics(admin: Caller) -> None:
    admin.get(MAPS)
    text = admin.get("/metrics").body.decode()
    line = next(
        line
        for line in text.splitlines()
        if line.startswith("apiserver_request_total{") and 'resource="configmaps"' in line and 'verb="LIST"' in line
    )
    assert float(line.rpartition(" ")[2]) >= 1
    assert "apiserver_request_duration_seconds_bucket" in text


def open_watches(admin: Caller) -> float:
    lines = admin.get("/metrics").body.decode().splitlines()
    what = 'component="apiserver",group="",resource="configmaps"'
    wanted = f'apiserver_longrunning_requests{{{what},scope="namespace",subresource="",verb="WATCH",version="v1"}} '
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def test_open_watches_are_counted(admin: Caller) -> None:
    before = open_watches(admin)
    with admin.stream(f"{MAPS}?watch=true&timeoutSeconds=60"):
        assert open_watches(admin) == before + 1
    deadline = time.monotonic() + 30
    while open_watches(admin) != before:
        assert time.monotonic() < deadline
    assert admin.get("/api/v1/nothings?watch=true").status == 404
    assert "nothings" not in admin.get("/metrics").body.decode()
