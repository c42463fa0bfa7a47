"""Requests that say something twice: a proxy in front of the server and the server read the same of them."""

from __future__ import annotations

import pytest

from dray.runtime.http.requests import Limits, Request, RequestError, RequestParser

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


def parsed(head: bytes) -> Request:
    requests: list[Request] = []
    RequestParser(Limits(), requests.append).feed(head + b"\r\n")
    return requests[0]


def test_the_first_of_repeated_credentials_counts() -> None:
    request = parsed(HEAD + b"Authorization: Bearer checked\r\nauthorization: Bearer other\r\n")
    assert request.headers["authorization"] == "Bearer checked"
    assert len(request.raw_headers) == 3


@pytest.mark.parametrize("host", [b"Host: b\r\n", b"host: b\r\n"])
def test_a_request_for_two_hosts_is_refused(host: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        parsed(HEAD + host)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nContent-Length: 0\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: 3, 3\r\n",
        b"X: a\rContent-Length: 3\r\n",
        b"X: a\r\n b\r\n",
    ],
)
def test_a_request_whose_end_can_be_read_in_two_ways_is_refused(framing: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        parsed(HEAD + framing)
    assert refused.value.status == 400
