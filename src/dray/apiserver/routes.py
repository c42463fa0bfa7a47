"""Parses the request line by Kubernetes' URL layout. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

_METHOD_VERBS: Final[Mapping[str, str]] = {
    "POST": "create",
    "GET": "get",
    "HEAD": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_PROXY: Final = "proxy"
_COLLECTION_VERBS: Final[Mapping[str, str]] = {"get": "list", "delete": "deletecollection"}
# Path segments that may follow a namespace's name without naming a namespaced resource.
_NAMESPACE_SUBRESOURCES: Final = frozenset({"status", "finalize"})


class RequestInfo(msgspec.Struct, frozen=True):
    """A parsed request line; `resource` is empty for non-resource paths."""

    method: str
    path: str
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


def parse_query(text: str) -> dict[str, str]:
    """Return the query parameters; of a repeated one the first value, except for a list of excluded checks."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name == "exclude" and name in query:
            query[name] += f",{value}"
        query.setdefault(name, value)
    return query


def is_true(value: str | None) -> bool:
    """Return a boolean query parameter as Kubernetes does: true unless absent, false or 0."""
    return value is not None and value.lower() not in ("false", "0")


def parse_request(method: str, path: str, query: Mapping[str, str]) -> RequestInfo:
    """Return the resource, the object and the verb of a request."""
    parts = [unquote(part) for part in path.split("/") if part]
    plain = RequestInfo(method=method, path=path, verb=method.lower())
    match parts:
        case ["api", version, _, *_]:
            group, rest = "", parts[2:]
        case ["apis", group, version, _, *_]:
            rest = parts[3:]
        case _:
            return plain
    watching = rest[0] == "watch"
    if watching:
        # The deprecated form of ?watch=true.
        rest = rest[1:]
        if not rest:
            return plain
    namespace, rest = _split_namespace(rest)
    resource = rest[0]
    name = rest[1] if len(rest) > 1 else ""
    # What follows is the path on the server behind the proxy, and so is the query.
    is_proxy = rest[2:3] == [_PROXY]
    subresource = _PROXY if is_proxy else "/".join(rest[2:])
    verb = _verb(method, name, watching=watching or (is_true(query.get("watch")) and not is_proxy))
    return RequestInfo(
        method=method,
        path=path,
        verb=verb,
        group=group,
        version=version,
        resource=resource,
        subresource=subresource,
        namespace=namespace,
        name=name,
    )


def _split_namespace(rest: list[str]) -> tuple[str, list[str]]:
    match rest:
        case ["namespaces", namespace, resource, *_] if resource not in _NAMESPACE_SUBRESOURCES:
            return namespace, rest[2:]
    return "", rest


def _verb(method: str, name: str, *, watching: bool) -> str:
    verb = _METHOD_VERBS.get(method, method.lower())
    if verb == "get" and watching:
        return "watch"
    if not name:
        return _COLLECTION_VERBS.get(verb, verb)
    return verb
