"""Kubernetes' URL layout: which path and method mean which verb on which resource."""

from __future__ import annotations

import pytest

from dray.apiserver.routes import RequestInfo, is_true, parse_query, parse_request


def info(verb: str, **parts: str) -> dict[str, str]:
    return {"verb": verb, **parts}


CASES = {
    "list": ("GET", "/api/v1/pods", info("list", version="v1", resource="pods")),
    "list in a namespace": (
        "GET",
        "/api/v1/namespaces/a/pods",
        info("list", version="v1", resource="pods", namespace="a"),
    ),
    "get": (
        "GET",
        "/apis/apps/v1/namespaces/a/deployments/d",
        info("get", group="apps", version="v1", resource="deployments", namespace="a", name="d"),
    ),
    "subresource": (
        "PUT",
        "/api/v1/namespaces/a/pods/p/status",
        info("update", version="v1", resource="pods", namespace="a", name="p", subresource="status"),
    ),
    "a namespace itself": ("GET", "/api/v1/namespaces/a", info("get", version="v1", resource="namespaces", name="a")),
    "a namespace's status": (
        "PATCH",
        "/api/v1/namespaces/a/status",
        info("patch", version="v1", resource="namespaces", name="a", subresource="status"),
    ),
    "a namespace's finalizers": (
        "PUT",
        "/api/v1/namespaces/a/finalize",
        info("update", version="v1", resource="namespaces", name="a", subresource="finalize"),
    ),
    "create": ("POST", "/api/v1/nodes", info("create", version="v1", resource="nodes")),
    "delete a collection": ("DELETE", "/api/v1/nodes", info("deletecollection", version="v1", resource="nodes")),
    "delete one": ("DELETE", "/api/v1/nodes/n", info("delete", version="v1", resource="nodes", name="n")),
    "the old watch path": (
        "GET",
        "/apis/apps/v1/watch/namespaces/a/deployments",
        info("watch", group="apps", version="v1", resource="deployments", namespace="a"),
    ),
    "escaped names": ("GET", "/api/v1/nodes/a%2Fb", info("get", version="v1", resource="nodes", name="a/b")),
    "discovery": ("GET", "/apis/apps/v1", info("get")),
    "health": ("GET", "/healthz", info("get")),
}


@pytest.mark.parametrize(("method", "path", "expected"), CASES.values(), ids=CASES)
def test_paths_are_understood(method: str, path: str, expected: dict[str, str]) -> None:
    assert parse_request(method, path, {}) == RequestInfo(method=method, path=path, **expected)


@pytest.mark.parametrize(("value", "verb"), [("true", "watch"), ("1", "watch"), ("false", "list"), ("0", "list")])
def test_watch_is_a_parameter(value: str, verb: str) -> None:
    assert parse_request("GET", "/api/v1/pods", {"watch": value}).verb == verb


def test_the_first_of_repeated_parameters_counts() -> None:
    assert parse_query("a=1&a=2&b=&c=%20x") == {"a": "1", "b": "", "c": " x"}
    assert is_true("")
    assert not is_true(None)
