"""Parsing of requests, and the errors of those that cannot be served."""

from __future__ import annotations

import pytest

from dray.runtime.http.requests import HEAD_BYTES_MAX, Limits, Request, RequestError, RequestParser

GET = b"GET /a%20b/c?x=1&y=&x=2&z=%2F HTTP/1.1\r\nHost: h:1\r\nX-A: b\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nT: t\r\n\r\n"


def read(data: bytes, cut: int = 0) -> list[Request]:
    parser = RequestParser(Limits(body_bytes_max=10))
    for part in (data[:cut], data[cut:]) if cut else (data,):
        parser.feed(part)
    assert parser.is_idle
    return list(parser.ready)


def test_requests_are_the_same_wherever_they_are_cut() -> None:
    data = GET + POST + CHUNKED + GET
    for cut in range(len(data)):
        first, second, third, fourth = read(data, cut)
        assert (first.method, first.path, first.target) == ("GET", "/a b/c", "/a%20b/c?x=1&y=&x=2&z=%2F")
        assert first.query == {"x": "1", "y": "", "z": "/"}
        assert first.headers == {"host": "h:1", "x-a": "b"}
        assert (second.method, second.body, second.keep_alive) == ("POST", b"hello", True)
        assert (third.body, third.headers) == (b"hello", {"transfer-encoding": "chunked"})
        assert fourth == first


@pytest.mark.parametrize(
    ("data", "keep_alive", "accepts_chunks"),
    [
        (GET, True, True),
        (GET.replace(b"X-A: b", b"Connection: close"), False, True),
        (GET.replace(b"HTTP/1.1", b"HTTP/1.0"), False, False),
        (GET.replace(b"X-A: b", b"Connection: Upgrade\r\nUpgrade: websocket"), False, True),
    ],
)
def test_which_connections_are_kept_alive(data: bytes, *, keep_alive: bool, accepts_chunks: bool) -> None:
    (request,) = read(data)
    assert (request.keep_alive, request.accepts_chunks) == (keep_alive, accepts_chunks)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"rubbish\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
        (b"GET / HTTP/1.1\r\nX Y: z\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (CHUNKED.replace(b"3\r\n", b"zz\r\n"), 400),
        (POST.replace(b"5", b"11").replace(b"hello", b"hello world"), 413),
        (CHUNKED.replace(b"3\r\nhel", b"b\r\nhello world"), 413),
    ],
)
def test_bad_requests_are_refused_wherever_they_are_cut(data: bytes, status: int) -> None:
    for cut in range(len(data)):
        with pytest.raises(RequestError) as caught:
            read(data, cut)
        assert caught.value.status == status


def feed_often(parser: RequestParser, more: bytes) -> None:
    for _ in range(HEAD_BYTES_MAX // len(more) + 2):
        parser.feed(more)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"x" * 8192),
        (b"GET / HTTP/1.1\r\nX-A: ", b"x" * 8192),
        (b"GET / HTTP/1.1\r\n", b"X-A: b\r\n" * 1024),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: ", b"x" * 8192),
        (b"", b"\r\n" * 4096),
    ],
)
def test_heads_and_trailers_have_a_bound(begin: bytes, more: bytes) -> None:
    parser = RequestParser(Limits())
    parser.feed(begin)
    with pytest.raises(RequestError) as caught:
        feed_often(parser, more)
    assert caught.value.status == 431


def test_a_client_that_expects_100_continue_is_noticed() -> None:
    head, _, body = POST.replace(b"Host: h", b"Expect: 100-continue").partition(b"\r\n\r\n")
    parser = RequestParser(Limits())
    parser.feed(head + b"\r\n\r\n")
    assert parser.expects_continue
    parser.expects_continue = False
    parser.feed(body)
    assert not parser.expects_continue
    assert parser.ready[0].body == b"hello"


def post(size: int, *, chunked: bool = False) -> bytes:
    if chunked:
        return b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * size + b"0\r\n\r\n"
    return b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_exactly_the_limit_passes_and_one_byte_more_is_refused(*, chunked: bool) -> None:
    parser = RequestParser(Limits(body_bytes_max=10))
    parser.feed(post(10, chunked=chunked))
    assert parser.ready[0].body == b"x" * 10
    with pytest.raises(RequestError) as caught:
        parser.feed(post(11, chunked=chunked))
    assert caught.value.status == 413


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_discarded_and_marked_where_the_limits_allow_it(*, chunked: bool) -> None:
    parser = RequestParser(Limits(body_bytes_max=10, discarded_bytes_max=20))
    for size in (10, 11, 20, 0):
        parser.feed(post(size, chunked=chunked))
    assert [(len(item.body), item.is_too_large) for item in parser.ready] == [
        (10, False),
        (0, True),
        (0, True),
        (0, False),
    ]
    with pytest.raises(RequestError) as caught:
        parser.feed(post(21, chunked=chunked))
    assert caught.value.status == 413


def test_a_request_can_be_refused_before_its_body() -> None:
    def check(request: Request) -> None:
        if "authorization" not in request.headers:
            raise RequestError(401, "no credentials")

    parser = RequestParser(Limits(), check)
    parser.feed(b"GET / HTTP/1.1\r\nAuthorization: x\r\n\r\n")
    assert len(parser.ready) == 1
    with pytest.raises(RequestError) as caught:
        parser.feed(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
    assert caught.value.status == 401


def test_headers_are_kept_in_order_with_their_names_as_sent() -> None:
    parser = RequestParser(Limits())
    parser.feed(b"GET / HTTP/1.1\r\nX-Group: a\r\nx-group: b\r\n\r\n")
    assert parser.ready[0].raw_headers == [("X-Group", "a"), ("x-group", "b")]
    assert parser.ready[0].headers == {"x-group": "a"}
