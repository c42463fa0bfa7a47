"""Strategic merge patch: lists, directives and order, on the types of real kinds."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import GroupVersionKind
from dray.api.errors import APIError, BadRequestError
from dray.api.schema.load import kind_type
from dray.api.schema.model import Field, ListOf, Scalar, StructType
from dray.apiserver.patch import strategic

POD = kind_type(GroupVersionKind("", "v1", "Pod"))
CLAIM = kind_type(GroupVersionKind("resource.k8s.io", "v1", "ResourceClaim"))
DEPLOYMENT = kind_type(GroupVersionKind("apps", "v1", "Deployment"))


def run(struct: StructType | None, document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    assert struct is not None
    inputs = copy.deepcopy((document, patch))
    try:
        return strategic.apply(document, patch, struct)
    finally:
        assert (document, patch) == inputs


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def containers(*named: str) -> list[dict[str, Any]]:
    return [{"name": name, "image": name} for name in named]


def keys(*names: str) -> list[dict[str, Any]]:
    return [{"name": name} for name in names]


def gone(name: str) -> dict[str, Any]:
    return {"name": name, "$patch": "delete"}


ORDER = "$setElementOrder/containers"

CASES = {
    "maps merge": (
        {"metadata": {"labels": {"a": "1", "b": "2"}}},
        {"metadata": {"labels": {"b": None, "c": "3"}}},
        {"metadata": {"labels": {"a": "1", "c": "3"}}},
    ),
    "items merge by key": (
        spec(containers=[{"name": "a", "image": "1", "tty": True}, {"name": "b"}]),
        spec(containers=[{"name": "a", "image": "2"}]),
        spec(containers=[{"name": "a", "image": "2", "tty": True}, {"name": "b"}]),
    ),
    "nested lists merge": (
        spec(containers=[{"name": "a", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 1}]}]),
        spec(
            containers=[
                {"name": "a", "env": [{"name": "Y", "value": "2"}], "ports": [{"containerPort": 1, "name": "p"}]}
            ]
        ),
        spec(
            containers=[
                {
                    "name": "a",
                    "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}],
                    "ports": [{"containerPort": 1, "name": "p"}],
                }
            ]
        ),
    ),
    "new items come first, after what the server has before them": (
        spec(containers=containers("a", "b")),
        spec(containers=containers("b", "c")),
        spec(containers=containers("a", "b", "c")),
    ),
    "the order of the patch wins": (
        spec(containers=containers("a", "b", "c")),
        spec(containers=containers("c", "a")),
        spec(containers=containers("b", "c", "a")),
    ),
    "an item is deleted": (
        spec(containers=containers("a", "b")),
        spec(containers=[gone("a")]),
        spec(containers=containers("b")),
    ),
    "deleting what is not there": (
        spec(containers=containers("a")),
        spec(containers=[gone("x")]),
        spec(containers=containers("a")),
    ),
    "the list is replaced": (
        spec(containers=containers("a", "b")),
        spec(containers=[{"$patch": "replace"}, *containers("c")]),
        spec(containers=containers("c")),
    ),
    "an item is replaced": (
        spec(containers=containers("a")),
        spec(containers=[{"name": "a", "resources": {"$patch": "replace", "limits": {"cpu": "1"}}}]),
        spec(containers=[{"name": "a", "image": "a", "resources": {"limits": {"cpu": "1"}}}]),
    ),
    "a map is replaced": (
        {"metadata": {"labels": {"a": "1"}}},
        {"metadata": {"labels": {"$patch": "replace", "b": "2"}}},
        {"metadata": {"labels": {"b": "2"}}},
    ),
    "a map is deleted": (
        {"metadata": {"labels": {"a": "1"}}},
        {"metadata": {"labels": {"$patch": "delete"}}},
        {"metadata": {"labels": {}}},
    ),
    "a list without strategy is replaced": (
        spec(containers=[{"name": "a", "command": ["x", "y"]}]),
        spec(containers=[{"name": "a", "command": ["z"]}]),
        spec(containers=[{"name": "a", "command": ["z"]}]),
    ),
    "scalars are a set": (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["c", "b"]}},
        {"metadata": {"finalizers": ["c", "a", "b"]}},
    ),
    "scalars are deleted": (
        {"metadata": {"finalizers": ["a", "b", "c"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a", "c"]}},
        {"metadata": {"finalizers": ["b"]}},
    ),
    "scalars are deleted from nothing": (
        {"metadata": {}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
        {"metadata": {}},
    ),
    "scalars are deleted and ordered at once": (
        {"metadata": {"finalizers": ["a", "b", "c"]}},
        {
            "metadata": {
                "$setElementOrder/finalizers": ["d", "b"],
                "$deleteFromPrimitiveList/finalizers": ["a"],
                "finalizers": ["d"],
            }
        },
        {"metadata": {"finalizers": ["d", "b", "c"]}},
    ),
    "only the order changes": (
        spec(containers=containers("a", "b", "c")),
        spec(**{ORDER: keys("c", "b", "a")}),
        spec(containers=containers("c", "b", "a")),
    ),
    "items the order does not name keep their place": (
        spec(containers=containers("a", "x", "b", "y")),
        spec(**{ORDER: keys("b", "a"), "containers": [{"name": "a", "image": "new"}]}),
        spec(containers=[*containers("x", "b"), {"name": "a", "image": "new"}, *containers("y")]),
    ),
    "order, additions and deletions": (
        spec(containers=containers("a", "b", "c")),
        spec(**{ORDER: keys("d", "c", "a"), "containers": [*containers("d"), gone("b")]}),
        spec(containers=containers("d", "c", "a")),
    ),
    "an order for a list that is not there": (
        spec(nodeName="n"),
        spec(**{ORDER: keys("a")}),
        spec(nodeName="n"),
    ),
    "an order for a new list": (
        spec(),
        spec(**{ORDER: keys("b", "a"), "containers": [*containers("b", "a"), gone("z")]}),
        spec(containers=containers("b", "a")),
    ),
    "only retained keys stay": (
        spec(volumes=[{"name": "v", "emptyDir": {}}]),
        spec(volumes=[{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]),
        spec(volumes=[{"name": "v", "hostPath": {"path": "/x"}}]),
    ),
    "retained keys at the top": (
        {"spec": {"a": 1}, "status": {}},
        {"$retainKeys": ["spec"], "status": None},
        {"spec": {"a": 1}},
    ),
    "a type that changed is taken": (spec(hostname={"a": 1}), spec(hostname="x"), spec(hostname="x")),
    "directives in new objects vanish": (
        {"metadata": {"name": "p"}},
        {"metadata": {"labels": {"$patch": "foo"}, "annotations": {"$retainKeys": ["a"], "a": "b", "c": None}}},
        {"metadata": {"name": "p", "labels": {}, "annotations": {"a": "b"}}},
    ),
    "deleted items of a new list vanish": (
        spec(),
        spec(containers=[gone("a"), *containers("b"), {"$patch": "replace"}]),
        spec(containers=containers("b")),
    ),
    "a new map that is deleted": ({"spec": {}}, spec(securityContext={"$patch": "delete"}), {"spec": {}}),
    "unknown fields merge as plain maps": (
        {"foo": {"bar": {"a": 1}, "list": [1]}},
        {"foo": {"bar": {"b": 2}, "list": [2]}},
        {"foo": {"bar": {"a": 1, "b": 2}, "list": [2]}},
    ),
    "an empty list over an empty list": (spec(containers=[]), spec(containers=[]), spec(containers=[])),
    "an empty patch list": (spec(containers=containers("a")), spec(containers=[]), spec(containers=containers("a"))),
}


@pytest.mark.parametrize(("document", "patch", "expected"), CASES.values(), ids=CASES)
def test_patches(document: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    assert run(POD, document, patch) == expected


@pytest.mark.behaviour("SP-36")
def test_reserved_for_merges_by_uid() -> None:
    pods = [{"resource": "pods", "name": name, "uid": name} for name in ("a", "b")]
    added = run(CLAIM, {"status": {"reservedFor": pods[:1]}}, {"status": {"reservedFor": pods[1:]}})
    assert sorted(item["uid"] for item in added["status"]["reservedFor"]) == ["a", "b"]
    removed = run(CLAIM, added, {"status": {"reservedFor": [{"$patch": "delete", "uid": "a"}]}})
    assert removed == {"status": {"reservedFor": pods[1:]}}


def test_strategies_reach_through_templates() -> None:
    live = {"spec": {"template": {"spec": {"containers": containers("a", "b")}}}}
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "b", "image": "new"}]}}}}
    merged = run(DEPLOYMENT, live, patch)
    assert merged["spec"]["template"]["spec"]["containers"] == [*containers("a"), {"name": "b", "image": "new"}]


def test_a_map_field_with_the_replace_strategy_is_replaced() -> None:
    inner = StructType("Inner", {"a": Field("a", Scalar.STRING), "b": Field("b", Scalar.STRING)})
    outer = StructType("Outer", {"inner": Field("inner", inner, patch_strategies=("replace",))})
    assert run(outer, {"inner": {"a": "1"}}, {"inner": {"b": "2"}}) == {"inner": {"b": "2"}}


FAILS: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "an unknown directive in a map": (
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"labels": {"$patch": "foo"}}},
        500,
        "unknown patch type: foo in map: map[$patch:foo]",
    ),
    "an unknown directive in a list": (
        spec(containers=containers("a")),
        spec(containers=[{"name": "a", "$patch": "foo"}]),
        500,
        "unknown patch type: foo in map: map[$patch:foo name:a]",
    ),
    "a merge directive in a list": (
        spec(containers=containers("a")),
        spec(containers=[{"$patch": "merge"}]),
        500,
        "merging lists cannot yet be specified in the patch",
    ),
    "an item without its key": (
        spec(containers=containers("a")),
        spec(containers=[{"image": "x"}]),
        500,
        "map: map[image:x] does not contain declared merge key: name",
    ),
    "a deletion without its key": (
        spec(containers=containers("a")),
        spec(containers=[{"$patch": "delete"}]),
        500,
        "map: map[$patch:delete] does not contain declared merge key: name",
    ),
    "a key that is no scalar": (
        spec(containers=containers("a")),
        spec(containers=[{"name": {"x": 1}}]),
        500,
        "map: map[name:map[x:1]] does not contain declared merge key: name",
    ),
    "lists of lists": (
        {"metadata": {"finalizers": ["a"]}},
        {"metadata": {"finalizers": [["b"]]}},
        422,
        "the server rejected our request due to an error in our request",
    ),
    "items of different types": (
        {"metadata": {"finalizers": ["a"]}},
        {"metadata": {"finalizers": [1]}},
        500,
        "list element types are not identical: [[a] [1]]",
    ),
    "retainKeys that is no list": (
        spec(),
        {"spec": {"$retainKeys": "a"}},
        400,
        "invalid patch format of retainKeys",
    ),
    "a member that is not retained": (
        spec(),
        {"spec": {"$retainKeys": ["a"], "b": 1}},
        400,
        "invalid patch format of retainKeys",
    ),
    "a deletion list without a name": (
        spec(),
        {"spec": {"$deleteFromPrimitiveList": ["a"]}},
        400,
        "invalid patch format of primitive list",
    ),
    "an order without a name": (
        spec(),
        {"spec": {"$setElementOrder": []}},
        400,
        "invalid patch format of setElementOrder list",
    ),
    "an order that is no list": (
        spec(),
        {"spec": {ORDER: "a"}},
        500,
        "expected a []interface {}, but received a string",
    ),
    "an order that contradicts the patch": (
        spec(containers=containers("a")),
        {"spec": {ORDER: keys("a", "b"), "containers": keys("b", "a")}},
        500,
        "The order in patch list:\n[map[name:b] map[name:a]]\n doesn't match $setElementOrder list:\n"
        "[map[name:a] map[name:b]]\n",
    ),
}


@pytest.mark.parametrize(("document", "patch", "code", "message"), FAILS.values(), ids=FAILS)
def test_rejects(document: dict[str, Any], patch: dict[str, Any], code: int, message: str) -> None:
    with pytest.raises(APIError) as caught:
        run(POD, document, patch)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_failures_without_a_reason_have_none() -> None:
    with pytest.raises(APIError) as caught:
        run(POD, spec(containers=containers("a")), spec(containers=[{}]))
    assert "reason" not in caught.value.status()


def test_a_list_that_merges_needs_a_key() -> None:
    item = StructType("Item", {"a": Field("a", Scalar.STRING)})
    kind = StructType("Kind", {"items": Field("items", ListOf(item), patch_strategies=("merge",))})
    with pytest.raises(APIError, match="cannot merge lists without merge key for type struct"):
        run(kind, {"items": [{"a": "1"}]}, {"items": [{"a": "2"}]})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "invalid JSON patch"),
        (b"[]", "json: cannot unmarshal array into Go value of type map[string]interface {}"),
    ],
)
def test_rejects_malformed_bodies(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        strategic.decode(body)
    assert caught.value.message == message


def test_reads_bodies() -> None:
    assert strategic.decode(b'{"a":{"$patch":"delete"}}') == {"a": {"$patch": "delete"}}
