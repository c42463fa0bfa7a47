"""Small patches that would grow a document without bound, or take the server's time: refused while they are applied."""

from __future__ import annotations

import time

import orjson
import pytest

from dray.api.document import GroupVersionKind
from dray.api.errors import BadRequestError, RequestEntityTooLargeError
from dray.api.limits import EXPANDED_BYTES_MAX, NESTING_DEPTH_MAX
from dray.api.schema import load
from dray.apiserver.patch import json_patch, strategic
from tests.security.attacker import (
    APPLY_PATCH,
    CONFIG_MAPS,
    CPU_SECONDS_MAX,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    assert_refused,
    attacked_server,
)

VICTIM = f"{CONFIG_MAPS}/victim"
POD = load.kind_type(GroupVersionKind("", "v1", "Pod"))


def copies(source: str, target: str, times: int) -> bytes:
    return orjson.dumps([{"op": "copy", "from": source, "path": target.format(i)} for i in range(times)])


async def test_copies_of_copies_are_refused_before_they_grow() -> None:
    doubling = [{"op": "add", "path": "/x", "value": {"a": "b" * 100}}]
    doubling += [{"op": "copy", "from": "/x", "path": f"/x/{i}"} for i in range(40)]
    body = orjson.dumps(doubling)
    assert len(body) < 2500
    async with attacked_server() as attacker:
        answer = await attacker.send("PATCH", VICTIM, body, JSON_PATCH)
        assert answer.code in (400, 413)
        assert_refused(answer, answer.code, "exceeded max depth" if answer.code == 400 else "accumulated size increase")


async def test_wide_copies_are_refused_by_the_bytes_they_add() -> None:
    body = orjson.dumps(
        [
            {"op": "add", "path": "/x", "value": []},
            {"op": "add", "path": "/x/-", "value": "y" * 1000},
            *({"op": "copy", "from": "/x/0", "path": "/x/-"} for _ in range(9_900)),
        ]
    )
    async with attacked_server() as attacker:
        answer = await attacker.send("PATCH", VICTIM, body, JSON_PATCH)
        assert_refused(answer, 413, f"exceeding the limit {EXPANDED_BYTES_MAX}")
        assert b'"key":"value"' in (await attacker.send("GET", VICTIM)).body


async def test_more_operations_than_kubernetes_allows_are_refused() -> None:
    body = orjson.dumps([{"op": "test", "path": "/data/key", "value": "value"}] * 10_001)
    async with attacked_server() as attacker:
        answer = await attacker.send("PATCH", VICTIM, body, JSON_PATCH)
        assert_refused(answer, 413, "The allowed maximum operations in a JSON patch is 10000, got 10001")


async def test_copies_of_many_small_values_are_refused_by_what_they_cost() -> None:
    """Each empty list has two bytes in JSON: 757 bytes of patch became 1.5 million of them, in half a second."""
    doubling = [{"op": "add", "path": "/x", "value": []}, *[{"op": "copy", "from": "/x", "path": "/x/-"}] * 20]
    async with attacked_server() as attacker:
        answer = await attacker.send("PATCH", VICTIM, orjson.dumps(doubling), JSON_PATCH)
        assert_refused(answer, 413, f"exceeding the limit {EXPANDED_BYTES_MAX}")
        assert answer.cpu_seconds < 0.4


def test_copies_up_to_the_limit_are_applied() -> None:
    document = {"x": "y" * (EXPANDED_BYTES_MAX // 10 - 2)}
    patched = json_patch.apply(document, json_patch.decode(copies("/x", "/x{}", 10)))
    assert len(patched) == 11
    with pytest.raises(RequestEntityTooLargeError, match="accumulated size"):
        json_patch.apply(document, json_patch.decode(copies("/x", "/x{}", 11)))


def test_moves_that_nest_a_document_deeper_are_refused() -> None:
    operations = [{"op": "add", "path": "/a", "value": {}}]
    for _ in range(NESTING_DEPTH_MAX * 20):
        operations += [
            {"op": "add", "path": "/b", "value": {}},
            {"op": "move", "from": "/a", "path": "/b/a"},
            {"op": "move", "from": "/b", "path": "/a"},
        ]
    with pytest.raises(BadRequestError, match="exceeded max depth"):
        json_patch.apply({}, json_patch.decode(orjson.dumps(operations)))
    operations.append({"op": "copy", "from": "/a", "path": "/c"})
    with pytest.raises(BadRequestError, match="exceeded max depth"):
        json_patch.apply({}, json_patch.decode(orjson.dumps(operations)))


def test_insertions_into_a_huge_list_are_bounded() -> None:
    document = {"x": [0] * 500_000}
    operations = json_patch.decode(orjson.dumps([{"op": "add", "path": "/x/0", "value": 1}] * 9_000))
    started = time.process_time()
    with pytest.raises(RequestEntityTooLargeError, match="list elements"):
        json_patch.apply(document, operations)
    assert time.process_time() - started < CPU_SECONDS_MAX


@pytest.mark.parametrize("directive", [None, "delete"])
def test_strategic_merge_of_long_lists_takes_linear_time(directive: str | None) -> None:
    assert POD is not None
    containers = [{"name": f"c{i}", "image": "a"} for i in range(20_000)]
    document = {"spec": {"containers": containers}}
    items = [{"name": f"c{i}", **({"$patch": directive} if directive else {"image": "b"})} for i in range(20_000)]
    started = time.process_time()
    patched = strategic.apply(document, {"spec": {"containers": items}}, POD)
    assert time.process_time() - started < CPU_SECONDS_MAX
    assert [item["image"] for item in patched["spec"]["containers"]] == ([] if directive else ["b"] * 20_000)


def test_retained_keys_are_looked_up_in_linear_time() -> None:
    assert POD is not None
    names = [f"k{i}" for i in range(50_000)]
    labels = dict.fromkeys(names, "v")
    patch = {"metadata": {"labels": {**labels, "$retainKeys": names}}}
    started = time.process_time()
    assert strategic.apply({"metadata": {"labels": {"gone": "x"}}}, patch, POD)["metadata"]["labels"] == labels
    assert time.process_time() - started < CPU_SECONDS_MAX


@pytest.mark.parametrize("media", [MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH])
async def test_patches_cannot_grow_an_object_beyond_the_limit_of_a_body(media: str) -> None:
    codes = []
    piece = "x" * 700_000
    async with attacked_server() as attacker:
        for number in range(5):
            patch: dict[str, object] = {"binaryData": {f"k{number}": piece}}
            if media == APPLY_PATCH:
                patch |= {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "victim"}}
            target = f"{VICTIM}?fieldManager=m{number}"
            answer = await attacker.send("PATCH", target, orjson.dumps(patch), media)
            codes.append(answer.code)
        # ConfigMaps have a limit of their own, 1 MiB.
        assert codes == [200, 422, 422, 422, 422]


async def test_no_object_is_stored_that_exceeds_the_limit_of_a_body() -> None:
    names = [f"device-{i:05}" for i in range(30)]
    async with attacked_server() as attacker:
        role = {"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/x" * 50_000]}] * 28}
        roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
        assert (await attacker.send("POST", roles, orjson.dumps(role))).code == 201
        more = [{"op": "add", "path": "/rules/-", "value": role["rules"][0]} for _ in names[:10]]  # type: ignore[index]
        answer = await attacker.send("PATCH", f"{roles}/r", orjson.dumps(more), JSON_PATCH)
        assert_refused(answer, 413, f"Request entity too large: limit is {EXPANDED_BYTES_MAX}")
