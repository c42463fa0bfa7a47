"""Properties of field sets and of server-side apply, on random documents with every kind of list and map."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.errors import APIError
from dray.api.schema import load
from dray.api.schema.model import Field, ListOf, ListType, MapOf, Scalar, StructType
from dray.apiserver.patch.managed_fields import walk
from dray.apiserver.patch.managed_fields.apply import apply
from dray.apiserver.patch.managed_fields.entries import UPDATE, Entry, Manager
from dray.apiserver.patch.managed_fields.field_set import NOTHING, FieldSet
from dray.apiserver.patch.managed_fields.first_apply import add_unowned_fields
from dray.apiserver.patch.managed_fields.shape import struct_shape
from dray.apiserver.patch.managed_fields.typed_errors import type_errors
from dray.apiserver.patch.managed_fields.typed_merge import merge
from dray.apiserver.patch.managed_fields.update import FieldWrite, update_managed_fields
from dray.apiserver.patch.managed_fields.walk import (
    created_fields,
    fields_of,
    plain_fields,
    remove,
    with_named_fields,
)
from tests.property.apiserver.patch.plain_field_management import compare, plain_steps

Document = dict[str, Any]
Paths = set[tuple[str, ...]]

NOW = datetime(2026, 1, 1, tzinfo=UTC)

# --- Sets of paths.

elements = st.sampled_from(["f:a", "f:b", 'k:{"n":1}', 'k:{"n":"x"}', "v:1", 'v:"x"', "i:0", "i:10"])
path_sets = st.sets(st.lists(elements, min_size=1, max_size=3).map(tuple), max_size=6)


def as_set(paths: Paths) -> FieldSet:
    return FieldSet.of(*sorted(paths))


def as_paths(fields: FieldSet) -> Paths:
    found = list(fields.paths())
    assert len(found) == len(set(found))
    return set(found)


@settings(max_examples=300, deadline=None)
@given(path_sets, path_sets)
def test_field_sets_are_sets_of_paths(left: Paths, right: Paths) -> None:
    a, b = as_set(left), as_set(right)
    assert as_paths(a) == left
    assert as_paths(a | b) == left | right
    assert as_paths(a & b) == left & right
    assert as_paths(a - b) == left - right
    below = {path for path in left if any(path[: len(other)] == other for other in right)}
    assert as_paths(a.without_below(b)) == left - below
    assert bool(a) == bool(left)
    assert all((path in a) == (path in left) for path in left | right)


def in_order(fields: FieldSet) -> bool:
    return repr(fields.tree) == repr(FieldSet.from_fields_v1(fields.tree).tree)


@settings(max_examples=300, deadline=None)
@given(path_sets, path_sets)
def test_whatever_comes_of_field_sets_is_in_order(left: Paths, right: Paths) -> None:
    a, b = as_set(left), as_set(right)
    before = repr((a, b))
    assert all(map(in_order, (a | b, a & b, a - b, a.without_below(b))))
    assert (a - b is a) == (a & b == NOTHING)
    assert repr((a, b)) == before


@settings(max_examples=200, deadline=None)
@given(path_sets, st.randoms(use_true_random=False))
def test_the_wire_form_is_one_for_every_set(paths: Paths, random: Any) -> None:
    shuffled = list(paths)
    random.shuffle(shuffled)
    wire = FieldSet.of(*shuffled).tree
    assert FieldSet.from_fields_v1(wire) == as_set(paths)
    assert repr(wire) == repr(as_set(paths).tree)


# --- Documents.

ITEM = StructType(
    "example.com.Item",
    {
        "name": Field("name", Scalar.STRING, required=True),
        "value": Field("value", Scalar.STRING),
        "labels": Field("labels", MapOf(Scalar.STRING)),
    },
)
THING = StructType(
    "example.com.Thing",
    {
        "apiVersion": Field("apiVersion", Scalar.STRING),
        "kind": Field("kind", Scalar.STRING),
        "value": Field("value", Scalar.STRING),
        "labels": Field("labels", MapOf(Scalar.STRING)),
        "frozen": Field("frozen", MapOf(Scalar.STRING, atomic=True)),
        "words": Field("words", ListOf(Scalar.STRING, ListType.SET)),
        "items": Field("items", ListOf(ITEM, ListType.MAP, ("name",))),
        "item": Field("item", ITEM),
        "atoms": Field("atoms", ListOf(Scalar.STRING)),
        "any": Field("any", Scalar.ANY),
    },
)

words = st.sampled_from(["p", "q", "r"])
labels = st.dictionaries(words, words, min_size=1, max_size=2)
items: st.SearchStrategy[Document] = st.fixed_dictionaries({"name": words}, optional={"value": words, "labels": labels})
anything = st.recursive(words, lambda inner: st.dictionaries(words, inner, min_size=1, max_size=2), max_leaves=4)
envelope: dict[str, st.SearchStrategy[Any]] = {"apiVersion": st.just("example.com/v1"), "kind": st.just("Thing")}
things: st.SearchStrategy[Document] = st.fixed_dictionaries(
    envelope,
    optional={
        "value": words,
        "labels": labels,
        "frozen": labels,
        "words": st.lists(words, min_size=1, max_size=3, unique=True),
        "items": st.lists(items, min_size=1, max_size=3, unique_by=lambda item: item["name"]),
        "item": items,
        "atoms": st.lists(words, min_size=1, max_size=2),
        "any": st.dictionaries(words, anything, min_size=1, max_size=2),
    },
)


def write_of(manager: str) -> FieldWrite:
    return FieldWrite(struct=THING, manager=manager, api_version="example.com/v1", now=NOW, reset=NOTHING)


def run(live: Document | None, applied: Document, manager: str, *, force: bool = True) -> Document:
    inputs = copy.deepcopy((live, applied))
    result = apply(live, applied, write_of(manager), force=force)
    assert (live, applied) == inputs
    return result


def owned(document: Document) -> dict[str, FieldSet]:
    entries = document["metadata"].get("managedFields") or []
    return {entry["manager"]: FieldSet.from_fields_v1(entry["fieldsV1"]) for entry in entries}


def without_metadata(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "metadata"}


def all_fields(document: Document) -> FieldSet:
    """Return every path of a document, containers included."""
    change = compare({}, document, THING)
    return change.added | change.modified


@settings(max_examples=200, deadline=None)
@given(things, things)
def test_a_comparison_has_equal_changed_and_removed_fields(old: Document, new: Document) -> None:
    change = compare(old, new, THING)
    assert all(map(in_order, (change.added, change.modified, change.removed, change.changed)))
    before, after = as_paths(all_fields(old)), as_paths(all_fields(new))
    assert as_paths(change.added) == after - before
    assert as_paths(change.removed) == before - after
    assert as_paths(change.modified) <= before & after
    same_leaves = not (change.added or change.removed or change.modified)
    assert same_leaves == (normal(old) == normal(new))


def normal(value: Any) -> Any:
    """Return a document without the order of its sets and keyed lists."""
    if isinstance(value, dict):
        return {
            name: sorted(json.dumps(normal(each), sort_keys=True) for each in item)
            if name in ("words", "items")
            else normal(item)
            for name, item in value.items()
        }
    return value


@settings(max_examples=200, deadline=None)
@given(things)
def test_a_creator_owns_every_path(document: Document) -> None:
    assert created_fields(document, THING) == all_fields(document)
    assert in_order(created_fields(document, THING))
    assert in_order(fields_of(document, THING))
    assert not as_paths(fields_of(document, THING)) - as_paths(all_fields(document))


@settings(max_examples=200, deadline=None)
@given(things)
def test_removing_all_fields_removes_all(document: Document) -> None:
    every = with_named_fields(fields_of(document, THING), THING)
    assert remove(document, every, THING) == {}
    assert remove(document, FieldSet(), THING) == document


@settings(max_examples=200, deadline=None)
@given(things, words)
def test_creators_of_objects_with_the_same_spec_own_the_same_fields_of_it(spec: Document, value: str) -> None:
    struct = StructType("example.com.Object", {**THING.fields, "spec": Field("spec", THING)})
    for document in ({"spec": spec}, {"value": value, "spec": copy.deepcopy(spec)}, {"words": [value], "spec": spec}):
        expected = walk._created(document, struct_shape(struct))
        assert repr(created_fields(document, struct).tree) == repr(expected)


@settings(max_examples=200, deadline=None)
@given(things, things)
def test_a_merge_has_all_of_the_configuration(live: Document, config: Document) -> None:
    merged = merge(live, config, THING)
    assert merge(merged, config, THING) == merged
    change = compare(config, merged, THING)
    assert not change.removed
    assert not change.modified
    assert not as_paths(all_fields(live)) - as_paths(all_fields(merged)) - gone_with_leaves(live, config)


def gone_with_leaves(live: Document, config: Document) -> Paths:
    """Return paths of untyped values that changed from a map to something else."""
    change = compare(live.get("any") or {}, config.get("any") or {}, StructType("x", open=True))
    replaced = as_paths(change.modified)
    found = as_paths(all_fields({"any": live.get("any") or {}}))
    return {path for path in found if any(path[1 : len(other) + 1] == other for other in replaced)}


@settings(max_examples=150, deadline=None)
@given(things, things)
def test_applying_twice_changes_nothing(first: Document, second: Document) -> None:
    live = run(run(None, first, "a"), second, "b")
    assert run(live, second, "b") == live
    assert run(live, second, "b", force=False) == live


@settings(max_examples=150, deadline=None)
@given(things, things)
def test_a_sole_manager_has_what_it_applies_and_nothing_else(first: Document, second: Document) -> None:
    after = run(run(None, first, "a"), second, "a")
    assert normal(without_metadata(after)) == normal(second)
    assert owned(after).get("a", NOTHING) == fields_of(without_metadata(second), THING) - KIND


KIND = FieldSet.of(("f:apiVersion",), ("f:kind",))


def leaves_of(document: Document) -> Paths:
    paths = as_paths(all_fields(without_metadata(document)))
    return paths - {path[:-1] for path in paths}


@settings(max_examples=150, deadline=None)
@given(things, things)
def test_a_field_is_removed_with_its_last_manager(first: Document, second: Document) -> None:
    both = run(run(None, first, "a"), second, "b")
    nothing = {"apiVersion": "example.com/v1", "kind": "Thing"}
    without_b = run(both, nothing, "b")
    assert "b" not in owned(without_b)
    kept = as_paths(fields_of(without_metadata(without_b), THING) - KIND)
    assert kept >= leaves_of(both) & as_paths(owned(both).get("a", NOTHING))
    without_both = run(without_b, nothing, "a")
    assert without_metadata(without_both) == nothing


@settings(max_examples=150, deadline=None)
@given(things, things, things)
def test_absent_fields_have_no_manager(first: Document, second: Document, third: Document) -> None:
    live = run(run(None, first, "a"), second, "b")
    new = {**third, "metadata": live["metadata"]}
    entries = update_managed_fields(live, new, write_of("c"))
    updated = {**new, "metadata": {"managedFields": entries} if entries else {}}
    applied_again = run(updated, first, "a")
    for document in (live, updated, applied_again):
        there = as_paths(all_fields(without_metadata(document)))
        for fields in owned(document).values():
            assert as_paths(fields) <= there


@settings(max_examples=300, deadline=None)
@given(path_sets, path_sets)
def test_a_union_with_a_subset_is_the_set_itself(left: Paths, right: Paths) -> None:
    a, b = as_set(left), as_set(right)
    assert not left or ((a | b).tree is a.tree) == (right <= left)
    assert not left or (as_set(left | right) | a).tree == as_set(left | right).tree


@settings(max_examples=200, deadline=None)
@given(things, st.lists(st.tuples(st.sampled_from("ab"), things), min_size=1, max_size=3))
def test_a_manager_that_writes_its_own_fields_is_recorded_as_any_other(
    created: Document, writes: list[tuple[str, Document]]
) -> None:
    created = {**created, "value": "p"}
    entries = update_managed_fields(None, created, write_of("a"))
    live = {**created, "metadata": {"managedFields": entries}}
    for manager, written in writes:
        # Fields are added, then changed by their manager, then removed.
        fewer = {**written, "metadata": {}}
        more = {**without_metadata(live), **fewer}
        for document in (more, {**more, "value": "x"}, {**more, "value": "y"}, {**fewer, "value": "z"}):
            with plain_steps():
                expected = update_managed_fields(live, document, write_of(manager))
            assert repr(update_managed_fields(live, document, write_of(manager))) == repr(expected)
            live = {**document, "metadata": {"managedFields": expected}}


# --- What is computed in fewer steps, against the plain ones.

numbers = st.sampled_from([0, 1, 1.0, True, False])
texts = st.sampled_from(["", "p", "q"])
# Values that may be of another type than the field's, null or empty.
oddities = st.one_of(st.none(), numbers, texts, st.just([]), st.just({}), labels, st.lists(texts, max_size=2))
POD = load.struct("io.k8s.api.core.v1.Pod")


def some(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[Document]:
    """Some of these members, each rarely of another type, in any order."""
    optional = {name: st.one_of(value, value, value, oddities) for name, value in members.items()}
    found: st.SearchStrategy[Document] = st.fixed_dictionaries({}, optional=optional)
    return found.flatmap(lambda document: st.permutations(list(document.items())).map(dict))


def some_items(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(some(**members), max_size=3)


metadata = some(
    name=texts,
    uid=texts,
    generation=numbers,
    labels=labels,
    finalizers=st.lists(texts, max_size=3),
    ownerReferences=some_items(uid=texts, name=texts, controller=st.booleans()),
)
# Fields held by value, lists with one and several keys, sets, atomic fields, and numbers.
pods = some(
    apiVersion=st.just("v1"),
    kind=st.just("Pod"),
    spec=some(
        containers=some_items(
            name=texts,
            image=texts,
            ports=some_items(containerPort=numbers, protocol=texts, hostPort=numbers),
            resources=some(requests=labels, claims=some_items(name=texts)),
        ),
        nodeName=texts,
        nodeSelector=labels,
        tolerations=some_items(key=texts),
        securityContext=some(runAsUser=numbers),
        priority=numbers,
    ),
    status=some(
        phase=texts,
        startTime=texts,
        conditions=some_items(type=texts, status=texts),
        resourceClaimStatuses=some_items(name=texts, resourceClaimName=texts),
        podIPs=some_items(ip=texts),
    ),
)
objects = st.tuples(pods, metadata).map(lambda parts: {**parts[0], "metadata": parts[1]})
anything_at_all = st.one_of(objects, things)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from([POD, THING]), st.none() | anything_at_all, anything_at_all, st.booleans())
def test_a_comparison_is_that_of_plain_steps(
    struct: StructType, old: Document | None, new: Document, as_sent: bool
) -> None:
    found = walk.compare(old, new, struct, as_sent=as_sent)
    expected = compare(old, new, struct, as_sent=as_sent)
    assert repr((found.changed, found.removed)) == repr((expected.changed, expected.removed))
    assert old is None or walk.compare(old, copy.deepcopy(old), struct) == walk.Comparison(NOTHING, NOTHING)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from([POD, THING]), anything_at_all)
def test_fields_that_are_found_with_the_types_are_the_fields(struct: StructType, document: Document) -> None:
    found = plain_fields(document, struct)
    assert found is None or not type_errors(document, struct)
    assert found is None or repr(found) == repr(fields_of(document, struct))


def test_fields_of_a_status_are_found_with_the_types() -> None:
    status = {"phase": "Running", "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "c"}, {"name": "a"}]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": status}
    assert plain_fields(document, POD) == fields_of(document, POD)


managers = st.sampled_from(["a", "b", "c"])
resets = st.sampled_from(
    [None, NOTHING, FieldSet.of(("f:status",)), FieldSet.of(("f:metadata", "f:labels"), ("f:spec",))]
)
writes = st.tuples(st.booleans(), managers, st.sampled_from(["", "", "status"]), resets, anything_at_all)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from([POD, THING]), st.lists(writes, min_size=1, max_size=4), st.booleans())
def test_managers_are_those_of_plain_steps(
    struct: StructType, history: list[tuple[bool, str, str, FieldSet | None, Document]], sends_back: bool
) -> None:
    live: Document | None = None
    for second, (applies, manager, subresource, reset, document) in enumerate(history):
        request = FieldWrite(
            struct=struct,
            manager=manager,
            api_version="v1",
            now=NOW.replace(second=second),
            subresource=subresource,
            reset=reset,
            convert=lambda each, version: (each, struct) if version == "v1" else None,
        )
        new = {**document, "apiVersion": "v1", "kind": "Pod"}
        found = written(live, new, request, applies=applies, sends_back=sends_back)
        with plain_steps():
            expected = written(live, new, request, applies=applies, sends_back=sends_back)
        assert repr(found) == repr(expected)
        live = live if isinstance(expected, str) else expected


# Configurations that only add to a Pod, and those that nearly do.
identities = st.fixed_dictionaries(
    {"name": st.sampled_from(["p", "p", "q"])}, optional={"uid": texts, "resourceVersion": texts}
)
IDENTITY = {"name": "p", "uid": "q", "resourceVersion": "p"}
added_members = some(
    phase=texts,
    message=texts,
    resourceClaimStatuses=some_items(name=texts, resourceClaimName=texts),
    extendedResourceClaimStatus=some(resourceClaimName=texts),
)
configurations = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Pod")},
    optional={
        "metadata": st.one_of(identities, identities, metadata),
        "spec": some(nodeName=texts, nodeSelector=labels),
        "status": added_members,
    },
).flatmap(lambda document: st.permutations(list(document.items())).map(dict))


@settings(max_examples=500, deadline=None)
@given(added_members, configurations, managers, resets, st.booleans())
def test_a_first_apply_is_that_of_plain_steps(
    status: Document, configuration: Document, manager: str, reset: FieldSet | None, force: bool
) -> None:
    created = {"apiVersion": "v1", "kind": "Pod", "metadata": dict(IDENTITY), "spec": {"priority": 1}}
    entries = update_managed_fields(None, created, write_to_pod("a", reset=NOTHING))
    live = {**created, "metadata": {"managedFields": entries, **IDENTITY}, "status": status}
    write = write_to_pod(manager, reset=reset)

    def applied() -> Document | str:
        inputs = copy.deepcopy((live, configuration))
        try:
            return apply(live, configuration, write, force=force)
        except APIError as error:
            return str(error)
        finally:
            assert (live, configuration) == inputs

    found = applied()
    with plain_steps():
        assert repr(applied()) == repr(found)


def write_to_pod(manager: str, *, reset: FieldSet | None) -> FieldWrite:
    return FieldWrite(struct=POD, manager=manager, api_version="v1", now=NOW, subresource="status", reset=reset)


def test_a_first_apply_that_adds_to_the_status_is_not_compared() -> None:
    live = {"apiVersion": "v1", "kind": "Pod", "metadata": IDENTITY, "status": {"phase": "Pending"}}
    statuses = [{"name": "a", "resourceClaimName": "b"}]
    applied = {**live, "status": {"resourceClaimStatuses": statuses}}
    write = write_to_pod("a", reset=FieldSet.of(("f:spec",)))
    manager = Manager("b", UPDATE, "v1", "")
    added = add_unowned_fields(live, applied, write, {manager: Entry(FieldSet.of(("f:spec",)), "v1")})
    assert added is not None
    assert added[0] == {**live, "status": {"phase": "Pending", "resourceClaimStatuses": statuses}}
    owns_status = {manager: Entry(FieldSet.of(("f:status", "f:phase")), "v1")}
    assert add_unowned_fields(live, applied, write, owns_status) is None


def written(
    live: Document | None, new: Document, request: FieldWrite, *, applies: bool, sends_back: bool
) -> Document | str:
    """Return the object after a write, or the error of the write."""
    inputs = copy.deepcopy((live, new))
    try:
        return apply(live, new, request, force=True) if applies else updated(live, new, request, sends_back)
    except APIError as error:
        return str(error)
    finally:
        assert (live, new) == inputs


def updated(live: Document | None, new: Document, request: FieldWrite, sends_back: bool) -> Document:
    own = new.get("metadata")
    own = own if isinstance(own, dict) else {}
    stored = ((live or {}).get("metadata") or {}).get("managedFields")
    sent = {**own, "managedFields": stored} if sends_back and stored else own
    entries = update_managed_fields(live, {**new, "metadata": sent}, request)
    return {**new, "metadata": {**own, "managedFields": entries} if entries else own}
