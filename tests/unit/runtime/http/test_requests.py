"""Requests from the bytes of a connection, and what is said to those that are none."""

from __future__ import annotations

import pytest

from dray.runtime.http.requests import HEAD_BYTES_MAX, Request, RequestError, RequestReader

GET = b"GET /a%20b/c?x=1&y=&x=2&z=%2F HTTP/1.1\r\nHost: h:1\r\nX-A: b\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /p HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nT: t\r\n\r\n"


def read(data: bytes, cut: int = 0) -> list[Request]:
    reader = RequestReader(body_bytes_max=10)
    for part in (data[:cut], data[cut:]) if cut else (data,):
        reader.feed(part)
    assert reader.is_between
    return list(reader.ready)


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
    ("data", "keep_alive", "takes_chunks"),
    [
        (GET, True, True),
        (GET.replace(b"X-A: b", b"Connection: close"), False, True),
        (GET.replace(b"HTTP/1.1", b"HTTP/1.0"), False, False),
        (GET.replace(b"X-A: b", b"Connection: Upgrade\r\nUpgrade: websocket"), False, True),
    ],
)
def test_who_may_ask_again(data: bytes, *, keep_alive: bool, takes_chunks: bool) -> None:
    (request,) = read(data)
    assert (request.keep_alive, request.takes_chunks) == (keep_alive, takes_chunks)


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


def feed_often(reader: RequestReader, more: bytes) -> None:
    for _ in range(HEAD_BYTES_MAX // len(more) + 2):
        reader.feed(more)


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
    reader = RequestReader()
    reader.feed(begin)
    with pytest.raises(RequestError) as caught:
        feed_often(reader, more)
    assert caught.value.status == 431


def test_a_client_that_waits_for_a_word_is_seen() -> None:
    head, _, body = POST.replace(b"Host: h", b"Expect: 100-continue").partition(b"\r\n\r\n")
    reader = RequestReader()
    reader.feed(head + b"\r\n\r\n")
    assert reader.expects_continue
    reader.expects_continue = False
    reader.feed(body)
    assert not reader.expects_continue
    assert reader.ready[0].body == b"hello"
