"""One answer from the bytes of a connection: cut anywhere, ended early, too large, or not HTTP at all."""

from __future__ import annotations

import pytest

from dray.runtime.http.errors import BrokenResponseError, HttpError, NoResponseError
from dray.runtime.http.responses import HEAD_BYTES_MAX, ResponseParser

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;e=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: t\r\n\r\n"
EARLY = b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\nhello"


def read(data: bytes, *, method: str = "GET", cut: int = 0, close: bool = False) -> tuple[ResponseParser, bytes]:
    reader, body = ResponseParser(method), b""
    for part in (data[:cut], data[cut:]) if cut else (data,):
        reader.feed(part)
        body += b"".join(reader.take())
    if close:
        reader.end()
    return reader, body


@pytest.mark.parametrize(
    ("data", "status", "reusable"),
    [
        pytest.param(LENGTH, 200, True, id="length"),
        pytest.param(CHUNKED, 200, True, id="chunks"),
        pytest.param(EARLY + LENGTH, 200, True, id="early answers first"),
        pytest.param(LENGTH.replace(b"X-A: b", b"Connection: close"), 200, False, id="says that it closes"),
        pytest.param(LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0"), 200, False, id="old version"),
        pytest.param(LENGTH.replace(b"200 OK", b"503 No"), 503, True, id="failure"),
    ],
)
def test_an_answer_is_the_same_wherever_it_is_cut(data: bytes, status: int, *, reusable: bool) -> None:
    for cut in range(len(data)):
        reader, body = read(data, cut=cut)
        assert (reader.status, body, reader.complete, reader.reusable) == (status, b"hello", True, reusable), cut
        assert b"x-early" not in dict(reader.headers)
        assert b"trailer" not in dict(reader.headers)


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    for cut in range(len(UNTIL_CLOSE)):
        reader, body = read(UNTIL_CLOSE, cut=cut)
        assert not reader.complete
        reader.end()
        assert (reader.complete, reader.reusable, body) == (True, False, b"hello")


@pytest.mark.parametrize(
    ("data", "method"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", "GET"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "GET"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HEAD"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HEAD"),
        (b"HTTP/1.0 200 Connection established\r\n\r\n", "CONNECT"),
    ],
)
def test_some_answers_have_no_body_whatever_they_say(data: bytes, method: str) -> None:
    for cut in range(len(data)):
        reader, body = read(data, method=method, cut=cut)
        assert (reader.complete, body) == (True, b"")
        assert reader.reusable is (method != "HEAD"), "a parser that waits for a body cannot read the next answer"


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n", id="another answer"),
        pytest.param(b"H", id="its first letter"),
        pytest.param(b"rubbish\r\n\r\n", id="rubbish"),
        pytest.param(b"\0\0\0", id="no text"),
    ],
)
@pytest.mark.parametrize("data", [LENGTH, CHUNKED])
def test_unsolicited_bytes_keep_the_response_and_close_the_connection(data: bytes, more: bytes) -> None:
    reader, body = read(data + more)
    assert (body, reader.complete, reader.reusable) == (b"hello", True, False)
    later, _ = read(data)
    later.feed(more)
    assert not later.reusable


def test_a_tunnel_whose_far_end_speaks_first_is_not_taken() -> None:
    reader, _ = read(b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0", method="CONNECT")
    assert not reader.reusable
    refused, _ = read(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n", method="CONNECT")
    assert (refused.status, refused.reason, refused.reusable) == (407, b"Who are you", False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "malformed"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "malformed"),
        (b"HTTP/1.1 abc OK\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nX Y: z\r\n\r\n", "malformed"),
        (CHUNKED.replace(b"3;e=1", b"zz"), "malformed"),
        (CHUNKED.replace(b"hel\r\n", b"hello\r\n"), "malformed"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "unrequested protocol"),
    ],
)
def test_what_is_not_an_answer_is_refused_wherever_it_is_cut(data: bytes, message: str) -> None:
    for cut in range(len(data)):
        with pytest.raises(BrokenResponseError, match=message):
            read(data, cut=cut)


@pytest.mark.parametrize("data", [LENGTH, CHUNKED, EARLY + LENGTH])
def test_an_answer_that_ends_early_is_not_one(data: bytes) -> None:
    for cut in range(1, len(data)):
        with pytest.raises(BrokenResponseError, match="in the middle of a response"):
            read(data[:cut], close=True)
    with pytest.raises(NoResponseError, match="without a response"):
        ResponseParser().end()
    with pytest.raises(NoResponseError, match="reset"):
        ResponseParser().end("connection reset by peer")


def test_a_failure_does_not_end_an_answer_without_a_length() -> None:
    reader, _ = read(UNTIL_CLOSE)
    with pytest.raises(BrokenResponseError, match="reset"):
        reader.end("connection reset by peer")


def feed_often(reader: ResponseParser, more: bytes) -> None:
    for _ in range(HEAD_BYTES_MAX // len(more) + 2):
        reader.feed(more)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 4096, id="many headers"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-A: ", b"x" * 32768, id="a long header"),
        pytest.param(b"HTTP/1.1 200 ", b"x" * 32768, id="a long status"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1024, id="early answers without end"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: ", b"x" * 32768, id="a long trailer"
        ),
    ],
)
def test_heads_and_trailers_have_a_bound(begin: bytes, more: bytes) -> None:
    reader = ResponseParser()
    reader.feed(begin)
    with pytest.raises(HttpError, match="bytes of headers"):
        feed_often(reader, more)


def test_a_body_has_no_bound() -> None:
    reader = ResponseParser()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 * HEAD_BYTES_MAX))
    for _ in range(8 * 16):
        reader.feed(b"x" * (HEAD_BYTES_MAX // 16))
        assert sum(map(len, reader.take())) == HEAD_BYTES_MAX // 16
    assert reader.complete
