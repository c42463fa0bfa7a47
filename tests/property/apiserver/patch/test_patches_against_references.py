"""Patches compared with slow reference implementations of JSON patch, merge patch and strategic merge patch."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import jsonpointer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.errors import PatchRejectedError
from dray.api.schema.model import Field, ListOf, ListType, MapOf, Scalar, StructType
from dray.apiserver.patch import json_patch, merge_patch, strategic

Document = dict[str, Any]

names = st.sampled_from(["a", "b", "c~", "d/e", ""])
scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["x", "y"]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
documents = st.dictionaries(names, values, max_size=4)

# --- JSON patch.

pointer_parts = st.one_of(names, st.sampled_from(["0", "1", "2", "-"]))
pointers = st.lists(pointer_parts, min_size=1, max_size=3).map(
    lambda parts: "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
)
operations = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": pointers,
        "from": pointers,
        "value": values,
    }
)


def reference_json_patch(document: Document, patch: list[Document]) -> Document | None:
    try:
        for operation in patch:
            document = jsonpatch.apply_patch(document, [as_kubernetes(document, operation)])
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError):
        return None
    return document


def as_kubernetes(document: Document, operation: Document) -> Document:
    """Kubernetes also replaces members that do not exist."""
    parent = jsonpointer.resolve_pointer(document, operation["path"].rpartition("/")[0], None)
    sets_member = operation["op"] == "replace" and operation["path"] and isinstance(parent, dict)
    return operation | {"op": "add"} if sets_member else operation


def is_comparable(patch: list[Document]) -> bool:
    """Report whether both implementations apply: they differ in missing members and in moves into oneself."""
    return not any(
        (each["op"] == "test" and each["value"] in (None, True, False, 0, 1))
        or (each["op"] in ("move", "copy") and each["path"].startswith(each["from"]))
        or (each["op"] in ("move", "copy", "test", "remove", "replace") and "/-" in each["path"] + each["from"])
        for each in patch
    )


@settings(max_examples=400, deadline=None)
@given(documents, st.lists(operations, min_size=1, max_size=3).filter(is_comparable))
def test_json_patch_agrees_with_another_implementation(document: Document, patch: list[Document]) -> None:
    expected = reference_json_patch(copy.deepcopy(document), copy.deepcopy(patch))
    before = copy.deepcopy(document)
    try:
        found: Document | None = json_patch.apply(document, json_patch.decode(json.dumps(patch).encode()))
    except PatchRejectedError:
        found = None
    assert found == expected
    assert document == before


# --- Merge patch.


def rfc_7386(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = rfc_7386(merged.get(name), value)
    return merged


def has_nulls_in_lists(value: Any, *, inside: bool = False) -> bool:
    if isinstance(value, list):
        return any(has_nulls_in_lists(item, inside=True) for item in value)
    if isinstance(value, dict):
        return any((inside and item is None) or has_nulls_in_lists(item, inside=inside) for item in value.values())
    return False


@settings(max_examples=400, deadline=None)
@given(documents, documents.filter(lambda patch: not has_nulls_in_lists(patch)))
def test_merge_patch_agrees_with_the_rfc(document: Document, patch: Document) -> None:
    before = copy.deepcopy((document, patch))
    assert merge_patch.apply(document, patch) == rfc_7386(document, patch)
    assert (document, patch) == before


# --- Strategic merge patch.

LEAF = StructType(
    "Leaf",
    {
        "name": Field("name", Scalar.STRING),
        "value": Field("value", Scalar.STRING),
        "many": Field("many", ListOf(Scalar.INT64)),
    },
)
NODE = StructType("Node", {})
KEYED = ("merge",)
NODE.fields.update(
    {
        "name": Field("name", Scalar.STRING),
        "value": Field("value", Scalar.STRING),
        "labels": Field("labels", MapOf(Scalar.STRING)),
        "words": Field("words", ListOf(Scalar.STRING, ListType.SET), patch_strategies=KEYED),
        "leaves": Field(
            "leaves", ListOf(LEAF, ListType.MAP, ("name",)), patch_strategies=KEYED, patch_merge_key="name"
        ),
        "nodes": Field("nodes", ListOf(NODE, ListType.MAP, ("name",)), patch_strategies=KEYED, patch_merge_key="name"),
        "atoms": Field("atoms", ListOf(Scalar.STRING)),
    }
)

words = st.sampled_from(["p", "q", "r", "s"])


def keyed(items: st.SearchStrategy[Document]) -> st.SearchStrategy[list[Document]]:
    return st.lists(items, max_size=3, unique_by=lambda item: item["name"])


leaves = st.fixed_dictionaries(
    {"name": words}, optional={"value": words, "many": st.lists(st.integers(0, 2), max_size=2)}
)
optional_fields: dict[str, st.SearchStrategy[Any]] = {
    "value": words,
    "labels": st.dictionaries(words, words, max_size=3),
    "words": st.lists(words, max_size=4, unique=True),
    "leaves": keyed(leaves),
    "atoms": st.lists(words, max_size=3),
}
flat_nodes = st.fixed_dictionaries({"name": words}, optional=optional_fields)
nodes = st.fixed_dictionaries({"name": words}, optional={**optional_fields, "nodes": keyed(flat_nodes)})


def slow_diff(old: Document, new: Document, struct: StructType | None) -> Document:
    """Return a patch from one document to another that specifies every list's order."""
    patch: Document = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
        elif old[name] != value:
            field = struct.fields.get(name) if struct else None
            patch.update(diff_member(name, old[name], value, field))
    return patch


def diff_member(name: str, old: Any, new: Any, field: Field | None) -> Document:
    if isinstance(new, dict):
        return {name: slow_diff(old, new, None)}
    if not isinstance(new, list) or field is None or "merge" not in field.patch_strategies:
        return {name: new}
    order = [{"name": item["name"]} for item in new] if field.patch_merge_key else new
    patch: Document = {f"$setElementOrder/{name}": order}
    if field.patch_merge_key:
        patch[name] = diff_items(old, new, field)
    else:
        patch[name] = [item for item in new if item not in old]
        patch[f"$deleteFromPrimitiveList/{name}"] = [item for item in old if item not in new]
    return patch


def diff_items(old: list[Document], new: list[Document], field: Field) -> list[Document]:
    before = {item["name"]: item for item in old}
    after = {item["name"] for item in new}
    element = field.type.element if isinstance(field.type, ListOf) else None
    struct = element if isinstance(element, StructType) else None
    changes = [{**slow_diff(before.get(i["name"], {}), i, struct), "name": i["name"]} for i in new]
    return changes + [{"name": name, "$patch": "delete"} for name in before if name not in after]


@settings(max_examples=300, deadline=None)
@given(nodes, nodes)
def test_a_strategic_patch_of_the_difference_gives_the_target(old: Document, new: Document) -> None:
    patch = slow_diff(old, new, NODE)
    inputs = copy.deepcopy((old, patch))
    assert strategic.apply(old, patch, NODE) == new
    assert (old, patch) == inputs


@settings(max_examples=200, deadline=None)
@given(nodes, nodes)
def test_a_strategic_patch_without_directives_keeps_all_that_it_does_not_name(old: Document, new: Document) -> None:
    merged = strategic.apply(old, new, NODE)
    assert strategic.apply(merged, new, NODE) == merged
    for name in ("leaves", "nodes"):
        have = {item["name"] for item in merged.get(name, [])}
        assert have == {item["name"] for side in (old, new) for item in side.get(name, [])}
        wanted = [item["name"] for item in new.get(name, [])]
        assert [item["name"] for item in merged.get(name, []) if item["name"] in wanted] == wanted
    assert set(merged.get("words", [])) == set(old.get("words", [])) | set(new.get("words", []))


def test_the_generated_patches_use_the_directives() -> None:
    patch = slow_diff({"name": "p", "words": ["p"]}, {"name": "p", "words": ["q"]}, NODE)
    assert patch == {
        "$setElementOrder/words": ["q"],
        "words": ["q"],
        "$deleteFromPrimitiveList/words": ["p"],
    }
    with pytest.raises(KeyError):
        diff_items([], [{}], NODE.fields["leaves"])
