"""Queries of the page: what a raised quota changes, and when a count is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import BadRequestError
from dray.client.in_process import in_process_client
from dray.client.interface import unstructured
from dray.dashboard import queries
from dray.dashboard.queries import Queries, with_quota
from tests.fake_local_server import FakeLocalServer

PODS = unstructured(GroupVersion("", "v1"), "pods", "Pod")
QUERY = {"namespace": "team", "name": "gpus", "resource": "pods", "limit": "20"}


def quota(**more: Any) -> Document:
    metadata = {"name": "gpus", "namespace": "team"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "3"}}, **more}


def test_a_raised_quota_is_raised_where_admission_looks() -> None:
    status = {"hard": {"pods": "3", "cpu": "1"}, "used": {"pods": "3"}}
    other = {**quota(), "metadata": {"name": "gpus", "namespace": "other"}}
    documents = [other, quota(status=status)]
    untouched, changed = with_quota(documents, QUERY)
    assert untouched is other
    assert changed["spec"]["hard"] == {"pods": "20"}
    assert changed["status"] == {"hard": {"pods": "20", "cpu": "1"}, "used": {"pods": "3"}}
    assert documents[1]["spec"] == {"hard": {"pods": "3"}}, "the objects are not changed"


def test_a_quota_that_was_never_counted_gets_a_status() -> None:
    (changed,) = with_quota([quota()], QUERY)
    assert changed["status"] == {"hard": {"pods": "20"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit": "many"}, "limit must be a quantity"),
        ({"limit": ""}, "limit must be a quantity"),
        ({"resource": "cpu"}, "quota team/gpus has no limit of 'cpu'"),
        ({"name": "other"}, "there is no quota team/other that you can read"),
        ({"namespace": ""}, "namespace is required"),
        ({"name": "-f"}, "name of an object is required"),
    ],
)
def test_what_is_no_quota_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        with_quota([quota()], QUERY | change)


async def test_the_same_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bytes] = []

    async def output(_: Any, stdin: bytes) -> Any:
        runs.append(stdin)
        return {"items": [{"fit": len(runs)}]}

    monkeypatch.setattr(queries, "_output", output)
    client = in_process_client(FakeLocalServer(), user="admin")
    found = Queries()
    assert await found.fragmentation(client) == await found.fragmentation(client) == [{"fit": 1}]
    await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}})
    assert await found.fragmentation(client) == [{"fit": 2}]
