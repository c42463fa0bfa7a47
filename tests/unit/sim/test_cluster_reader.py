"""A cluster is read as it was at one moment, if the server can tell."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dray.api.document import Document, GroupResource
from dray.api.errors import ExpiredError, ForbiddenError
from dray.client.interface import Client, ListOptions, ListPage, Resource, ServedResource
from dray.sim.cluster_reader import read_cluster, read_documents
from dray.sim.snapshot import KINDS, PATH_KINDS, VERSIONS

NOW = "7"


class FakeServer:
    """Serves Pods and claims, two on a page, and records what was asked for."""

    def __init__(self, *, forbidden: str = "", compacted: bool = False) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self._forbidden = forbidden
        self._compacted = compacted

    async def resources(self) -> list[ServedResource]:
        return [
            ServedResource("", "v1", "pods", "Pod", namespaced=True, verbs=frozenset(("list",))),
            ServedResource(
                "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True, verbs=frozenset(("list",))
            ),
        ]

    async def list(self, resource: Resource[Any], _namespace: str = "", *, options: ListOptions) -> ListPage[Document]:
        if resource.plural == self._forbidden:
            raise ForbiddenError(GroupResource("", "pods"), "", "no")
        exact = options.resource_version if options.resource_version_match == "Exact" else ""
        if exact and self._compacted:
            raise ExpiredError("compacted")
        self.asked.append((resource.plural, exact, options.continue_token))
        first = not options.continue_token
        return ListPage([{"metadata": {"name": f"x{first}"}}], NOW, "more" if first and options.limit > 1 else "")


async def read(server: FakeServer) -> list[str]:
    documents = await read_documents(cast("Client", server), ("Pod", "ResourceClaim"))
    return [document["kind"] for document in documents]


async def test_all_kinds_are_read_at_one_resource_version() -> None:
    server = FakeServer()
    assert await read(server) == ["Pod", "Pod", "ResourceClaim", "ResourceClaim"]
    assert sorted(server.asked[1:]) == [
        ("pods", "", "more"),
        ("pods", NOW, ""),
        ("resourceclaims", "", "more"),
        ("resourceclaims", NOW, ""),
    ]


async def test_the_version_is_that_of_a_kind_that_may_be_listed() -> None:
    server = FakeServer(forbidden="pods")
    assert await read(server) == ["ResourceClaim", "ResourceClaim"]
    assert ("resourceclaims", NOW, "") in server.asked


async def test_a_version_that_cannot_be_read_any_more_is_not_required() -> None:
    assert await read(FakeServer(compacted=True)) == ["Pod", "Pod", "ResourceClaim", "ResourceClaim"]


async def test_without_any_permission_the_refusal_is_reported() -> None:
    class Refusing(FakeServer):
        async def list(self, *_arguments: Any, **_options: Any) -> ListPage[Document]:
            raise ForbiddenError(GroupResource("", "pods"), "", "no")

    with pytest.raises(ForbiddenError):
        await read(Refusing())


@pytest.mark.parametrize("taken_away", [kind for kind in PATH_KINDS if KINDS[kind][1] != "resourceclaims"])
async def test_each_kind_that_may_not_be_listed_is_named_in_one_line(taken_away: str) -> None:
    class Everything(FakeServer):
        async def resources(self) -> list[ServedResource]:
            return [
                ServedResource(group, VERSIONS[group][0], plural, kind.partition(".")[0], True, frozenset(("list",)))
                for kind, (group, plural) in KINDS.items()
            ]

    group, plural = KINDS[taken_away]
    found = await read_cluster(cast("Client", Everything(forbidden=plural)), PATH_KINDS)
    name = f"{plural}.{group}" if group else plural
    assert found.hidden == (f"you may not list {name}: what depends on them is not evaluated",)
    assert found.unread(taken_away)
