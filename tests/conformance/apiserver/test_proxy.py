"""The subresource proxy of Pods, Services and Nodes."""

from __future__ import annotations

import pytest

from dray.api.errors import BadRequestError
from dray.apiserver.handlers.subresources.proxy import (
    Place,
    parse_place,
    passed_on,
    pod_address,
    rewrite_links,
    rewritten,
    split_path,
)
from dray.apiserver.routes import parse_request


@pytest.mark.behaviour("EX-45")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("web", Place("web")),
        ("web:8080", Place("web", port="8080")),
        ("web:http", Place("web", port="http")),
        ("https:web:8443", Place("web", "https", "8443")),
        ("https:web:", Place("web", "https")),
    ],
)
def test_names(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.behaviour("EX-45")
@pytest.mark.parametrize("text", ["", ":80", "ftp:web:80", "a:b:c:d"])
def test_names_that_mean_nothing(text: str) -> None:
    with pytest.raises(BadRequestError):
        parse_place(text)


@pytest.mark.behaviour("EX-45")
def test_the_path_behind_the_proxy_is_not_a_subresource() -> None:
    path = "/api/v1/namespaces/ns/pods/web:8080/proxy/a%20b/watch/"
    info = parse_request("POST", path, {"watch": "true"})
    assert (info.resource, info.name, info.subresource, info.verb) == ("pods", "web:8080", "proxy", "create")
    assert parse_request("GET", path, {"watch": "true"}).verb == "get"
    assert split_path(path) == ("/api/v1/namespaces/ns/pods/web:8080/proxy", "/a%20b/watch/")
    assert split_path("/x/proxy/") == ("/x/proxy", "/")
    assert split_path("/x/proxy") == ("/x/proxy", None)


@pytest.mark.behaviour("EX-45")
def test_ports_of_pods() -> None:
    pod = {
        "spec": {"containers": [{"ports": [{"containerPort": 8080, "name": "http"}, {"containerPort": 9}]}]},
        "status": {"podIP": "10.1.1.1"},
    }
    assert pod_address(pod, Place("p")) == ("10.1.1.1", 8080)
    assert pod_address(pod, Place("p", port="http")) == ("10.1.1.1", 8080)
    assert pod_address(pod, Place("p", port="9")) == ("10.1.1.1", 9)
    with pytest.raises(BadRequestError):
        pod_address(pod, Place("p", port="70000"))
    bare = {"spec": {"containers": [{}]}, "status": {"podIP": "10.1.1.1"}}
    assert pod_address(bare, Place("p")) == ("10.1.1.1", 80)
    assert pod_address(bare, Place("p", "https")) == ("10.1.1.1", 443)


@pytest.mark.behaviour("EX-45")
def test_credentials_are_not_passed_on() -> None:
    given = [("Authorization", "Bearer x"), ("Cookie", "c"), ("Impersonate-User", "u"), ("Host", "h"), ("X-Own", "1")]
    assert passed_on([*given, ("Connection", "close"), ("Content-Type", "a/b")]) == [
        ("X-Own", "1"),
        ("Content-Type", "a/b"),
    ]


@pytest.mark.behaviour("EX-45")
def test_links_lead_back_through_the_proxy() -> None:
    page = b'<a class="x" href="/a">a</a><img src=\'/i.png\'><a href="b">b</a><a href="//other/x"><form action=/f>'
    assert rewrite_links(page, "/p") == (
        b'<a class="x" href="/p/a">a</a><img src=\'/p/i.png\'><a href="b">b</a><a href="//other/x"><form action=/p/f>'
    )
    assert rewrite_links(b'<a href="/p/a">', "/p") == b'<a href="/p/a">'
    assert rewritten("Location", "/login", "/p") == "/p/login"
    assert rewritten("location", "https://example.com/x", "/p") == "https://example.com/x"
    assert rewritten("X-Other", "/login", "/p") == "/login"
