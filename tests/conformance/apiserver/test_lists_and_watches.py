"""Consistent pages, selectors, and watches without gaps and duplicates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dray.api.document import Document
from dray.api.errors import APIError, BadRequestError, ExpiredError, InvalidError
from dray.apiserver.handlers import get as get_handler
from dray.client.interface import WatchBatch
from tests.local_server import Local, local_request

MAPS = "core/v1/configmaps"
MERGE = "application/merge-patch+json"
WAIT_SECONDS = 120.0


def config_map(name: str, **labels: str) -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


async def create(api: Local, name: str, **labels: str) -> Document:
    return await api.request("create", f"{MAPS}@default", config_map(name, **labels))


async def relabel(api: Local, name: str, **labels: str) -> Document:
    patch = {"metadata": {"labels": labels}}
    return await api.request("patch", f"{MAPS}/{name}@default", patch, content_type=MERGE)


async def take(events: AsyncIterator[tuple[str, Document]], count: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(found) < count:
            kind, document = await anext(events)
            found.append((kind, document["metadata"].get("name", "")))
    return found


def names(listing: Document) -> list[str]:
    return [item["metadata"]["name"] for item in listing["items"]]


async def test_pages_show_one_moment(api: Local) -> None:
    for name in ("a", "b", "c"):
        await create(api, name)
    first = await api.request("list", f"{MAPS}@default", query={"limit": "1"})
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a"], 2)
    await create(api, "a2")
    token = first["metadata"]["continue"]
    second = await api.request("list", f"{MAPS}@default", query={"limit": "5", "continue": token})
    assert names(second) == ["b", "c"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_page_has_a_largest_size(api: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_handler, "PAGE_OBJECTS_MAX", 2)
    for name in ("a", "b", "c"):
        await create(api, name)
    first = await api.request("list", f"{MAPS}@default", query={"limit": "100"})
    assert names(first) == ["a", "b"]
    query = {"limit": "100", "continue": first["metadata"]["continue"]}
    assert names(await api.request("list", f"{MAPS}@default", query=query)) == ["c"]


async def test_a_continue_token_of_a_compacted_revision_has_expired(api: Local) -> None:
    for name in ("a", "b"):
        await create(api, name)
    first = await api.request("list", f"{MAPS}@default", query={"limit": "1"})
    newest = await create(api, "c")
    await api.running.store.compact(int(newest["metadata"]["resourceVersion"]))
    token = first["metadata"]["continue"]
    with pytest.raises(ExpiredError) as caught:
        await api.request("list", f"{MAPS}@default", query={"limit": "1", "continue": token})
    status = caught.value.status()
    assert "use the continue token in this response to retrieve the remainder of the results" in status["message"]
    # Its token goes on where the list was, with what there is now.
    query = {"limit": "1", "continue": status["metadata"]["continue"]}
    second = await api.request("list", f"{MAPS}@default", query=query)
    assert (names(second), int(second["metadata"]["resourceVersion"])) == (["b"], await api.running.store.revision())
    query["continue"] = second["metadata"]["continue"]
    third = await api.request("list", f"{MAPS}@default", query=query)
    assert (names(third), "continue" in third["metadata"]) == (["c"], False)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"labelSelector": "l=x"}, ["a", "b"]),
        ({"labelSelector": "l!=x"}, ["c"]),
        ({"labelSelector": "l in (x,y),k"}, ["b"]),
        ({"fieldSelector": "metadata.name=b"}, ["b"]),
        ({"fieldSelector": "metadata.name!=b,metadata.namespace=default"}, ["a", "c"]),
        ({"labelSelector": "l=x", "limit": "1"}, ["a"]),
    ],
)
async def test_selectors_choose(api: Local, query: dict[str, str], expected: list[str]) -> None:
    await create(api, "a", l="x")
    await create(api, "b", l="x", k="1")
    await create(api, "c", l="y")
    assert names(await api.request("list", f"{MAPS}@default", query=query)) == expected


@pytest.mark.behaviour("SP-33")
async def test_slices_are_selected_by_node_and_driver_and_by_nothing_else(api: Local) -> None:
    for node in ("n1", "n2"):
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": node},
            "spec": {
                "driver": "d.example.com",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "d0"}],
            },
        }
        await api.request("create", "resource.k8s.io/v1/resourceslices", body)
    place = "resource.k8s.io/v1/resourceslices"
    mine = await api.request("list", place, query={"fieldSelector": "spec.nodeName=n1,spec.driver=d.example.com"})
    assert names(mine) == ["n1"]
    with pytest.raises(BadRequestError, match="field label not supported"):
        await api.request("list", place, query={"fieldSelector": "spec.pool.generation=1"})


@pytest.mark.behaviour("N-141")
async def test_slices_by_pool(api: Local) -> None:
    place = "resource.k8s.io/{}/resourceslices"
    for name, pool in (("a", "one"), ("b", "two"), ("c", "one")):
        spec = {"driver": "d.example.com", "allNodes": True, "devices": [{"name": "d0"}]}
        spec["pool"] = {"name": pool, "generation": 1, "resourceSliceCount": 2}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
        await api.request("create", place.format("v1"), body)
    selected = {"fieldSelector": "spec.pool.name=one"}
    for version in ("v1", "v1beta2", "v1beta1"):
        assert names(await api.request("list", place.format(version), query=selected)) == ["a", "c"]
    events = await api.watch(place.format("v1"), fieldSelector="spec.pool.name=two", resourceVersion="0")
    assert (await anext(events))[1]["metadata"]["name"] == "b"
    await api.request("deletecollection", place.format("v1"), query=selected)
    assert names(await api.request("list", place.format("v1"))) == ["b"]


async def test_a_watch_from_a_revision_sees_each_change_once(api: Local) -> None:
    start = await create(api, "a")
    await create(api, "b")
    await relabel(api, "b", l="x")
    events = await api.watch(f"{MAPS}@default", resourceVersion=start["metadata"]["resourceVersion"])
    await api.request("delete", f"{MAPS}/b@default")
    await create(api, "c")
    assert await take(events, 4) == [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "b"), ("ADDED", "c")]


async def test_objects_enter_and_leave_a_selector(api: Local) -> None:
    start = await create(api, "a", l="x")
    events = await api.watch(
        f"{MAPS}@default", resourceVersion=start["metadata"]["resourceVersion"], labelSelector="l=x"
    )
    await relabel(api, "a", l="y")
    await relabel(api, "a", l="x")
    await relabel(api, "a", k="1")
    await api.request("delete", f"{MAPS}/a@default")
    assert await take(events, 4) == [("DELETED", "a"), ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_selector_that_makes_no_difference_shares_the_batch_of_all(api: Local) -> None:
    start = await create(api, "a", l="x")

    async def batches(selector: str) -> AsyncIterator[WatchBatch]:
        query = {"resourceVersion": start["metadata"]["resourceVersion"], "labelSelector": selector}
        return await api.running.local.watch(
            local_request(api.user, api.groups, "watch", f"{MAPS}@default", query=query, content_type="")
        )

    everything, all_but_z, only_x = await batches(""), await batches("l!=z"), await batches("l=x")
    changes = (
        (relabel(api, "a", k="1"), "MODIFIED", "MODIFIED"),
        (relabel(api, "a", l="y"), "MODIFIED", "DELETED"),
        (relabel(api, "a", l="x"), "MODIFIED", "ADDED"),
        (api.request("delete", f"{MAPS}/a@default"), "DELETED", "DELETED"),
    )
    async with asyncio.timeout(WAIT_SECONDS):
        for change, kind, kind_of_x in changes:
            await change
            whole, same, selected = await anext(everything), await anext(all_but_z), await anext(only_x)
            assert [event_type for event_type, _ in whole] == [kind]
            assert same is whole
            assert [event_type for event_type, _ in selected] == [kind_of_x]


async def test_a_streamed_list_ends_with_its_bookmark(api: Local) -> None:
    await create(api, "a")
    events = await api.watch(
        f"{MAPS}@default",
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
    )
    assert await take(events, 1) == [("ADDED", "a")]
    kind, bookmark = await anext(events)
    assert kind == "BOOKMARK"
    assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    await create(api, "b")
    assert await take(events, 1) == [("ADDED", "b")]


async def test_a_watch_from_a_compacted_revision_sends_an_error_event(api: Local) -> None:
    start = await create(api, "a")
    newest = await create(api, "b")
    await api.running.store.compact(int(newest["metadata"]["resourceVersion"]))
    old = str(int(start["metadata"]["resourceVersion"]) - 1)
    events = await api.watch(f"{MAPS}@default", resourceVersion=old)
    kind, status = await anext(events)
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


async def test_a_watch_ends_when_its_time_is_over(api: Local) -> None:
    events = await api.watch(f"{MAPS}@default", timeoutSeconds="1")
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ({"limit": "x"}, BadRequestError, "strconv.ParseInt"),
        ({"labelSelector": "a=b=c"}, BadRequestError, "found '='"),
        ({"fieldSelector": "spec.foo=x"}, BadRequestError, "is not a known field selector"),
        ({"continue": "abc"}, BadRequestError, "invalid continue token"),
        ({"resourceVersionMatch": "Exact"}, InvalidError, "forbidden unless resourceVersion is provided"),
        ({"resourceVersion": "0", "resourceVersionMatch": "Exact"}, InvalidError, "is forbidden for resourceVersion"),
        ({"resourceVersion": "abc"}, BadRequestError, "invalid resource version"),
        ({"sendInitialEvents": "true"}, InvalidError, "sendInitialEvents is forbidden for list"),
    ],
)
async def test_wrong_options_are_rejected(
    api: Local, query: dict[str, str], error: type[APIError], message: str
) -> None:
    with pytest.raises(error) as caught:
        await api.request("list", f"{MAPS}@default", query=query)
    assert message in caught.value.message
