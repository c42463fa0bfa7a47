"""URLs, the beginnings of messages, and paths with handlers."""

from __future__ import annotations

import pytest

from dray.runtime.http.heads import date, request_head, response_head
from dray.runtime.http.proxy import parse_proxy
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply, Router, text
from dray.runtime.http.urls import Origin, parse_url, redirected


@pytest.mark.parametrize(
    ("url", "origin", "target", "authority"),
    [
        ("http://host", Origin("http", "host", 80), "/", "host"),
        ("https://host:443/a?b=c", Origin("https", "host", 443), "/a?b=c", "host"),
        ("https://Host:6443/k8s/c-1/", Origin("https", "host", 6443), "/k8s/c-1/", "host:6443"),
        ("http://[::1]:80/", Origin("http", "::1", 80), "/", "[::1]"),
        ("https://[fd00::1]:6443", Origin("https", "fd00::1", 6443), "/", "[fd00::1]:6443"),
        ("http://h/a b/%41?q=x y#part", Origin("http", "h", 80), "/a%20b/%41?q=x%20y", "h"),
        ("http://h/ä", Origin("http", "h", 80), "/%C3%A4", "h"),
    ],
)
def test_urls_are_taken_apart(url: str, origin: Origin, target: str, authority: str) -> None:
    address = parse_url(url)
    assert (address.origin, address.target, address.origin.authority) == (origin, target, authority)
    assert address.authorization == ""


@pytest.mark.parametrize("url", ["", "host:1", "ftp://h", "http://", "http://h:x", "http://h:99999", "socks5://h:1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_url(url)


def test_users_in_urls_are_credentials() -> None:
    assert parse_url("http://bob:x@h/").authorization == "Basic Ym9iOng="
    proxy = parse_proxy("http://b%40b:p%3A@[::1]:3128")
    assert proxy.origin.address == "[::1]:3128"
    assert proxy.headers == (("Proxy-Authorization", "Basic YkBiOnA6"),)
    assert parse_proxy("http://h:1").headers == ()


@pytest.mark.parametrize(
    ("status", "location", "to"),
    [
        (301, "/b", "http://h:1/b"),
        (302, "b?c", "http://h:1/x/b?c"),
        (307, "https://other/", "https://other/"),
        (308, "//other/y", "http://other/y"),
        (303, "", ""),
        (200, "/b", ""),
        (304, "/b", ""),
    ],
)
def test_redirects_lead_somewhere(status: int, location: str, to: str) -> None:
    assert redirected("http://h:1/x/a", status, location) == to


def test_heads_are_what_was_meant_or_nothing() -> None:
    assert request_head("GET", "/a", (("Host", "h"),)) == b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
    assert request_head("PUT", "/a", (), 3) == b"PUT /a HTTP/1.1\r\nContent-Length: 3\r\n\r\n"
    assert date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT"
    answer = response_head(404, (("A", "b"),), date(784111777))
    assert answer == b"HTTP/1.1 404 Not Found\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nA: b\r\n\r\n"


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nX: y", "a\rb", "a\0b"])
def test_a_value_cannot_become_a_header(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head("GET", "/", (("A", value),))
    with pytest.raises(ValueError, match="line break"):
        response_head(200, ((value, "b"),), "")


@pytest.mark.parametrize("target", ["/a b", "/ä", "/a HTTP/1.1\r\nX: y"])
def test_a_target_must_be_quoted(target: str) -> None:
    with pytest.raises(ValueError, match="not quoted"):
        request_head("GET", target, ())


async def _named(request: Request) -> Reply:
    return text(",".join(f"{name}={value}" for name, value in request.parameters.items()))


@pytest.mark.parametrize(
    ("method", "target", "status", "body"),
    [
        ("GET", "/a", 200, b""),
        ("HEAD", "/a?x=y", 200, b""),
        ("GET", "/logs/n/p%2Fq", 200, b"namespace=n,pod=p/q"),
        ("GET", "/logs/n", 404, b"404: Not Found"),
        ("GET", "/logs/n/p/c", 404, b"404: Not Found"),
        ("GET", "/logs//p", 404, b"404: Not Found"),
        ("GET", "/axb", 404, b"404: Not Found"),
        ("POST", "/a", 405, b"405: Method Not Allowed"),
        ("POST", "/nowhere", 404, b"404: Not Found"),
    ],
)
async def test_paths_have_handlers(method: str, target: str, status: int, body: bytes) -> None:
    router = Router({"/a": _named, "/logs/{namespace}/{pod}": _named, "/a.b": _named})
    reply = await router(Request(method, target))
    assert (reply.status, reply.body) == (status, body)
    assert dict(reply.headers).get("Allow") == ("GET,HEAD" if status == 405 else None)
