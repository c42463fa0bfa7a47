"""Server-side apply.

Recorded from kube-apiserver 1.36.4: the first apply, the conflict of two fields, removal, status without a time, the
custom resource, and the errors of managed fields, an unknown field and a missing kind. The rest follows the rules.
"""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.api.document import GroupVersionKind
from dray.api.errors import APIError, ApplyConflictError, BadRequestError
from dray.api.schema.load import kind_type, object_meta
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType
from dray.apiserver.patch.managed_fields.apply import LAST_APPLIED, apply
from dray.apiserver.patch.managed_fields.update import FieldWrite, update_managed_fields

NOW = datetime(2026, 11, 15, 21, 37, 8, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)
TIME, LATER_TIME = "2026-11-15T21:37:08Z", "2026-11-15T21:38:08Z"

Document = dict[str, Any]


def kind(api_version: str, name: str) -> StructType:
    group, _, version = api_version.rpartition("/")
    found = kind_type(GroupVersionKind(group, version, name))
    assert found is not None
    return found


def claim(requests: Any = None, **metadata: Any) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a1", **metadata},
        "spec": {"devices": {"requests": requests or [{"name": "gpu", "exactly": {"deviceClassName": "x"}}]}},
    }


def pod(*containers: Document, **spec: Any) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": list(containers), **spec},
    }


def config_map(data: dict[str, Any] | None = None, **metadata: Any) -> Document:
    made: Document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", **metadata}}
    return made if data is None else {**made, "data": data}


def run(live: Document | None, applied: Document, manager: str = "m1", **arguments: Any) -> Document:
    given = {
        "struct": kind(applied["apiVersion"], applied["kind"]) if "struct" not in arguments else None,
        "api_version": applied["apiVersion"],
        "now": NOW,
        **arguments,
    }
    options = {"force": given.pop("force", False), "kind": given.pop("kind", applied["kind"])}
    inputs = copy.deepcopy((live, applied))
    try:
        return apply(live, applied, FieldWrite(manager=manager, **given), **options)
    finally:
        assert (live, applied) == inputs


def written(document: Document, changes: Document, manager: str, subresource: str = "") -> Document:
    """Return the document after another client's update."""
    struct = kind(document["apiVersion"], document["kind"])
    new = {**document, **changes}
    write = FieldWrite(
        struct=struct, manager=manager, api_version=document["apiVersion"], now=NOW, subresource=subresource
    )
    entries = update_managed_fields(document, new, write)
    return {**new, "metadata": {**new["metadata"], "managedFields": entries}}


def owned(document: Document) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in document["metadata"].get("managedFields") or ()}


def body(document: Document) -> Document:
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": metadata}


def test_a_first_apply_creates() -> None:
    made = run(None, claim(labels={"k": "1"}))
    assert body(made) == claim(labels={"k": "1"})
    assert json.dumps(made["metadata"]["managedFields"], separators=(",", ":")) == (
        '[{"manager":"m1","operation":"Apply","apiVersion":"resource.k8s.io/v1","time":"2026-11-15T21:37:08Z",'
        '"fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{"f:k":{}}},"f:spec":{"f:devices":'
        '{"f:requests":{}}}}}]'
    )


def test_the_same_again_changes_nothing() -> None:
    made = run(None, config_map({"a": "b"}))
    assert run(made, config_map({"a": "b"}), now=LATER) == made


def test_a_conflict_names_every_field_and_its_manager() -> None:
    live = run(None, claim(labels={"k": "1"}))
    other = claim([{"name": "gpu", "exactly": {"deviceClassName": "y"}}], labels={"k": "2"})
    with pytest.raises(ApplyConflictError) as caught:
        run(live, other, "m2")
    assert caught.value.status() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": (
            'Apply failed with 2 conflicts: conflicts with "m1":\n- .metadata.labels.k\n- .spec.devices.requests'
        ),
        "reason": "Conflict",
        "details": {
            "causes": [
                {"reason": "FieldManagerConflict", "message": 'conflict with "m1"', "field": ".metadata.labels.k"},
                {"reason": "FieldManagerConflict", "message": 'conflict with "m1"', "field": ".spec.devices.requests"},
            ]
        },
        "code": 409,
    }


def test_one_conflict_reads_differently() -> None:
    live = run(None, config_map({"a": "1"}))
    with pytest.raises(ApplyConflictError) as caught:
        run(live, config_map({"a": "2"}), "m2")
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "m1": .data.a'


def test_conflicts_with_updaters_name_their_version_and_subresource() -> None:
    live = run(None, config_map({"c": "1"}))
    live = written(live, {"data": {"c": "1", "a": "1"}}, "z")
    live = written(live, {"data": {"c": "1", "a": "1", "b": "1"}}, "y", "status")
    # The status endpoint of a kind without status resets nothing.
    with pytest.raises(ApplyConflictError) as caught:
        run(live, config_map({"a": "2", "b": "2"}), "m2")
    assert caught.value.message == (
        'Apply failed with 2 conflicts: conflicts with "y" with subresource "status" using v1:\n- .data.b\n'
        'conflicts with "z" using v1:\n- .data.a'
    )


def test_force_takes_over() -> None:
    live = run(None, claim(labels={"k": "1"}))
    forced = run(live, claim(labels={"k": "2"}), "m2", force=True)
    assert forced["metadata"]["labels"] == {"k": "2"}
    assert owned(forced) == {
        "m1": {"f:spec": {"f:devices": {"f:requests": {}}}},
        "m2": {"f:metadata": {"f:labels": {"f:k": {}}}, "f:spec": {"f:devices": {"f:requests": {}}}},
    }


def test_agreeing_managers_share() -> None:
    live = run(None, config_map({"a": "1"}))
    shared = run(live, config_map({"a": "1"}), "m2")
    assert owned(shared) == {"m1": {"f:data": {"f:a": {}}}, "m2": {"f:data": {"f:a": {}}}}
    left = run(shared, config_map(), "m2")
    assert left["data"] == {"a": "1"}
    assert owned(left) == {"m1": {"f:data": {"f:a": {}}}}


def test_what_is_no_longer_applied_goes() -> None:
    live = run(None, claim(labels={"k": "2"}))
    after = run(live, claim(), now=LATER)
    assert body(after) == claim()
    assert owned(after) == {"m1": {"f:spec": {"f:devices": {"f:requests": {}}}}}
    assert after["metadata"]["managedFields"][0]["time"] == LATER_TIME


def test_what_others_updated_stays() -> None:
    live = run(None, config_map({"a": "1", "b": "1"}))
    live = written(live, {"data": {"a": "2", "b": "1", "c": "3"}}, "updater")
    after = run(live, config_map({"b": "1"}))
    assert after["data"] == {"a": "2", "b": "1", "c": "3"}
    assert owned(after) == {"m1": {"f:data": {"f:b": {}}}, "updater": {"f:data": {"f:a": {}, "f:c": {}}}}


def test_unowned_fields_stay_in_a_kept_item() -> None:
    applied = pod({"name": "c", "image": "i"})
    live = run(None, applied)
    defaulted = copy.deepcopy(live)
    defaulted["spec"]["containers"][0]["imagePullPolicy"] = "Always"
    after = run(defaulted, pod({"name": "c"}))
    assert after["spec"]["containers"] == [{"name": "c", "imagePullPolicy": "Always"}]


def test_items_that_are_no_longer_applied_are_removed() -> None:
    live = run(None, pod({"name": "a", "image": "i"}, {"name": "b", "image": "i"}))
    live["spec"]["containers"][1]["imagePullPolicy"] = "Always"
    after = run(live, pod({"name": "a", "image": "i"}))
    assert after["spec"]["containers"] == [{"name": "a", "image": "i"}]


def test_items_that_others_hold_stay() -> None:
    live = run(None, pod({"name": "a"}, {"name": "b", "image": "i"}))
    live = run(live, pod({"name": "b", "tty": True}), "m2")
    after = run(live, pod({"name": "a"}))
    assert after["spec"]["containers"] == [{"name": "a"}, {"name": "b", "tty": True}]


def test_a_map_that_becomes_empty_is_removed() -> None:
    after = run(run(None, config_map({"a": "1"})), config_map())
    assert body(after) == config_map()
    assert "managedFields" not in after["metadata"]


def test_keys_may_come_from_defaults() -> None:
    live = run(None, pod({"name": "c", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "old"}]}))
    after = run(live, pod({"name": "c", "ports": [{"containerPort": 80, "name": "new"}]}))
    assert after["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "name": "new"}]
    assert owned(after)["m1"]["f:spec"]["f:containers"]['k:{"name":"c"}']["f:ports"] == {
        'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}, "f:name": {}}
    }


ORDERS = {
    "new items go to the end": ("ab", "c", "abc"),
    "shared items in the applied order": ("abc", "cb", "acb"),
    "live items stay behind what they follow": ("axby", "ba", "xbya"),
    "applied items go where they are": ("ac", "abc", "abc"),
    "nothing in common": ("ab", "xy", "abxy"),
    "the same": ("abc", "abc", "abc"),
    "reversed": ("abc", "cba", "cba"),
}


@pytest.mark.parametrize(("live", "applied", "expected"), ORDERS.values(), ids=ORDERS)
def test_the_order_of_merged_items(live: str, applied: str, expected: str) -> None:
    before = written(pod(*({"name": name} for name in live)), {}, "x")
    before["metadata"] |= {"uid": "u"}
    after = run(before, pod(*({"name": name} for name in applied)), force=True)
    assert "".join(item["name"] for item in after["spec"]["containers"]) == expected


def test_sets_merge() -> None:
    live = run(None, config_map(finalizers=["a"]))
    both = run(live, config_map(finalizers=["b"]), "m2")
    assert both["metadata"]["finalizers"] == ["a", "b"]
    assert run(both, config_map(), "m2")["metadata"]["finalizers"] == ["a"]


def test_atomic_values_are_taken_whole() -> None:
    live = run(None, pod({"name": "c"}, nodeSelector={"a": "1"}, tolerations=[{"key": "a"}]))
    after = run(live, pod({"name": "c"}, nodeSelector={"b": "2"}, tolerations=[{"key": "b"}]))
    assert (after["spec"]["nodeSelector"], after["spec"]["tolerations"]) == ({"b": "2"}, [{"key": "b"}])
    with pytest.raises(ApplyConflictError):
        run(live, pod({"name": "c"}, nodeSelector={"a": "1", "b": "2"}), "m2")


def test_a_status_that_is_there_already_is_owned_without_a_time() -> None:
    live = run(None, claim())
    live["status"] = {}
    status = {**claim(), "status": {}}
    del status["spec"]
    after = run(live, status, "m3", subresource="status")
    assert json.dumps(after["metadata"]["managedFields"][0], separators=(",", ":")) == (
        '{"manager":"m3","operation":"Apply","apiVersion":"resource.k8s.io/v1","fieldsType":"FieldsV1",'
        '"fieldsV1":{"f:status":{}},"subresource":"status"}'
    )


def test_the_main_endpoint_does_not_own_status() -> None:
    made = run(None, {**claim(), "status": {"reservedFor": [{"uid": "u", "resource": "pods", "name": "p"}]}})
    assert owned(made) == {"m1": {"f:spec": {"f:devices": {"f:requests": {}}}}}


def test_an_untracked_object_is_tracked_from_its_first_apply() -> None:
    live = config_map({"a": "1", "b": "1"}, uid="u")
    after = run(live, config_map({"a": "1"}))
    assert after["metadata"]["managedFields"] == [
        {
            "manager": "m1",
            "operation": "Apply",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:a": {}}},
        },
        {
            "manager": "before-first-apply",
            "operation": "Update",
            "apiVersion": "v1",
            "time": TIME,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {".": {}, "f:a": {}, "f:b": {}}},
        },
    ]
    with pytest.raises(ApplyConflictError) as caught:
        run(live, config_map({"a": "2"}))
    assert caught.value.message == (
        'Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.a'
    )


def test_applying_null_sets_null() -> None:
    live = run(None, config_map({"a": "1"}))
    after = run(live, {**config_map(), "immutable": None})
    assert after["immutable"] is None
    assert owned(after) == {"m1": {"f:immutable": {}}}


# --- Upgrade from client-side apply.


def client_side_applied(data: dict[str, str]) -> Document:
    record = json.dumps(config_map(data))
    return written(
        config_map(uid="u", annotations={}, managedFields=[updater_entry()]),
        {"metadata": {"name": "m", "uid": "u", "annotations": {LAST_APPLIED: record}}, "data": data},
        "kubectl-client-side-apply",
    )


def updater_entry() -> Document:
    fields_v1: Document = {"f:immutable": {}}
    made = {"manager": "old", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    return {**made, "fieldsV1": fields_v1}


def test_kubectl_takes_over_what_its_record_says() -> None:
    live = client_side_applied({"a": "1"})
    with pytest.raises(ApplyConflictError):
        run(live, config_map({"a": "2"}), "someone")
    after = run(live, config_map({"a": "2"}), "kubectl")
    assert after["data"] == {"a": "2"}
    assert after["metadata"]["annotations"][LAST_APPLIED] == (
        '{"apiVersion":"v1","data":{"a":"2"},"kind":"ConfigMap","metadata":{"name":"m"}}\n'
    )


def test_kubectl_does_not_take_what_others_changed_since() -> None:
    live = client_side_applied({"a": "1", "b": "1"})
    live = written(live, {"data": {"a": "1", "b": "other"}}, "other")
    with pytest.raises(ApplyConflictError) as caught:
        run(live, config_map({"a": "2", "b": "2"}), "kubectl")
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "other" using v1: .data.b'


@pytest.mark.parametrize("record", ["{", "[]", '{"apiVersion":"v2"}', ""])
def test_a_useless_record_allows_nothing(record: str) -> None:
    live = client_side_applied({"a": "1"})
    live["metadata"]["annotations"] = {LAST_APPLIED: record}
    with pytest.raises(ApplyConflictError):
        run(live, config_map({"a": "2"}), "kubectl")


def test_a_record_too_large_is_emptied() -> None:
    live = client_side_applied({"a": "1"})
    after = run(live, config_map({"b": "x" * 262_144}), "kubectl")
    assert after["metadata"]["annotations"] == {LAST_APPLIED: ""}


def test_the_record_does_not_record_itself() -> None:
    live = client_side_applied({"a": "1"})
    after = run(live, config_map({"a": "1"}, annotations={LAST_APPLIED: "x", "k": "v"}), "kubectl", force=True)
    assert json.loads(after["metadata"]["annotations"][LAST_APPLIED])["metadata"]["annotations"] == {"k": "v"}


# --- Errors.


REFUSED: dict[str, tuple[Document, int, str]] = {
    "managed fields": (
        config_map(managedFields=[{"manager": "x"}]),
        400,
        "metadata.managedFields must be nil",
    ),
    "an unknown field": (
        {**claim(), "foo": 1},
        500,
        "failed to create typed patch object (/a1; resource.k8s.io/v1, Kind=ResourceClaim): "
        ".foo: field not declared in schema",
    ),
    "a number for a text": (
        config_map({"a": 1}, namespace="ns"),
        500,
        "failed to create typed patch object (ns/m; /v1, Kind=ConfigMap): "
        ".data.a: expected string, got &value.valueUnstructured{Value:1}",
    ),
    "a text for a number": (
        pod({"name": "c"}, priority="x"),
        500,
        "failed to create typed patch object (/p; /v1, Kind=Pod): "
        ".spec.priority: expected numeric (int or float), got string",
    ),
    "a text for a truth": (
        pod({"name": "c", "tty": "x"}),
        500,
        'failed to create typed patch object (/p; /v1, Kind=Pod): .spec.containers[name="c"].tty: '
        "expected boolean, got &{x}",
    ),
    "a map for a list": (
        pod(containers={"a": 1}),
        500,
        "failed to create typed patch object (/p; /v1, Kind=Pod): .spec.containers: expected list, got &{map[a:1]}",
    ),
    "a list for a map": (
        config_map([1]),  # type: ignore[arg-type]
        500,
        "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .data: expected map, got &{[1]}",
    ),
    "a map for a quantity": (
        pod({"name": "c", "resources": {"limits": {"cpu": {}}}}),
        500,
        'failed to create typed patch object (/p; /v1, Kind=Pod): .spec.containers[name="c"].resources.limits.cpu: '
        "expected any scalar, got &{map[]}",
    ),
    "the same key twice": (
        pod({"name": "c"}, {"name": "c"}),
        500,
        "failed to create typed patch object (/p; /v1, Kind=Pod): .spec.containers: "
        'duplicate entries for key [name="c"]',
    ),
    "the same element twice": (
        config_map(finalizers=["a", "a"]),
        500,
        "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .metadata.finalizers: "
        'duplicate entries for key [="a"]',
    ),
    "an item without its key": (
        pod({"image": "c"}),
        500,
        "failed to create typed patch object (/p; /v1, Kind=Pod): .spec.containers: element 0: associative list with "
        'keys has an element that omits all key fields ["name"] (and doesn\'t have default values for any key fields)',
    ),
    "a null item": (
        pod(None),  # type: ignore[arg-type]
        500,
        "failed to create typed patch object (/p; /v1, Kind=Pod): .spec.containers: element 0: associative list with "
        "keys may not have a null element",
    ),
    "two mistakes": (
        config_map({"a": 1, "b": True}),
        500,
        "failed to create typed patch object (/m; /v1, Kind=ConfigMap): errors:\n"
        "  .data.a: expected string, got &value.valueUnstructured{Value:1}\n"
        "  .data.b: expected string, got &value.valueUnstructured{Value:true}",
    ),
}


@pytest.mark.parametrize(("applied", "code", "message"), REFUSED.values(), ids=REFUSED)
def test_rejects(applied: Document, code: int, message: str) -> None:
    with pytest.raises(APIError) as caught:
        run(None, applied)
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"apiVersion": None, "kind": None}, "invalid object type: /, Kind="),
        ({"kind": "Secret"}, "invalid object type: /v1, Kind=Secret"),
        ({"apiVersion": "apps/v1"}, "invalid object type: apps/v1, Kind=ConfigMap"),
    ],
)
def test_the_kind_must_be_the_endpoints(changes: Document, message: str) -> None:
    applied = {**config_map({"a": "1"}), **changes}
    with pytest.raises(BadRequestError) as caught:
        run(None, applied, struct=kind("v1", "ConfigMap"), api_version="v1", kind="ConfigMap")
    assert caught.value.message == message


def test_stored_fields_that_cannot_be_read_fail() -> None:
    live = config_map({"a": "1"}, managedFields=[{"operation": "X"}])
    with pytest.raises(APIError) as caught:
        run(live, config_map({"a": "1"}))
    assert caught.value.message == "failed to decode managed fields: operation must be `Apply` or `Update`"


# --- Custom resources and versions.


def gadget(**fields: Field) -> StructType:
    return StructType(
        "example.com.Gadget",
        {
            "apiVersion": Field("apiVersion", Scalar.STRING),
            "kind": Field("kind", Scalar.STRING),
            "metadata": Field("metadata", object_meta()),
            **fields,
        },
        open=not fields,
    )


def custom(**members: Any) -> Document:
    return {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}, **members}


def test_a_custom_resource_without_schema_merges_maps_and_replaces_lists() -> None:
    struct = gadget()
    live = run(None, custom(spec={"a": {"x": 1}, "l": [1, 2]}), struct=struct)
    assert owned(live) == {"m1": {"f:spec": {".": {}, "f:a": {".": {}, "f:x": {}}, "f:l": {}}}}
    after = run(live, custom(spec={"a": {"y": 2}}), "m2", struct=struct)
    assert after["spec"] == {"a": {"x": 1, "y": 2}, "l": [1, 2]}
    dropped = run(after, custom(spec={"l": [3]}), struct=struct)
    assert dropped["spec"] == {"a": {"y": 2}, "l": [3]}


def test_a_custom_resource_with_schema() -> None:
    spec = StructType("example.com.Spec", {"n": Field("n", Scalar.INT64), "color": Field("color", Scalar.STRING)})
    struct = gadget(spec=Field("spec", spec))
    live = custom(spec={"n": 3, "color": "red"})
    write = FieldWrite(struct=struct, manager="unknown", api_version="example.com/v1", now=NOW)
    entries = update_managed_fields(None, live, write)
    live = {**live, "metadata": {"name": "g", "managedFields": entries}}
    after = run(live, custom(spec={"n": 4}), "x", struct=struct, force=True)
    assert after["spec"] == {"n": 4, "color": "red"}
    assert [(entry["manager"], entry["fieldsV1"]) for entry in after["metadata"]["managedFields"]] == [
        ("x", {"f:spec": {"f:n": {}}}),
        ("unknown", {"f:spec": {".": {}, "f:color": {}}}),
    ]


BETA = gadget(colour=Field("colour", Scalar.STRING), tags=Field("tags", MapOf(Scalar.STRING)))
STABLE = gadget(color=Field("color", Scalar.STRING), tags=Field("tags", MapOf(Scalar.STRING)))


def convert(document: Document, api_version: str) -> tuple[Document, StructType] | None:
    names = {"example.com/v1": ("color", STABLE), "example.com/v1beta1": ("colour", BETA)}
    if api_version not in names:
        return None
    name, struct = names[api_version]
    renamed = {name if key in ("color", "colour") else key: value for key, value in document.items()}
    return {**renamed, "apiVersion": api_version}, struct


def test_managers_of_other_versions_conflict_there() -> None:
    beta = {**custom(colour="red"), "apiVersion": "example.com/v1beta1"}
    live = run(None, beta, "old", struct=BETA, convert=convert)
    converted = convert(live, "example.com/v1")
    assert converted is not None
    with pytest.raises(ApplyConflictError) as caught:
        run(converted[0], custom(color="blue"), struct=STABLE, convert=convert)
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "old": .colour'


def test_a_manager_that_changes_version_still_drops_what_it_no_longer_applies() -> None:
    beta = {**custom(colour="red", tags={"a": "1"}), "apiVersion": "example.com/v1beta1"}
    live = run(None, beta, struct=BETA, convert=convert)
    live = run(live, {**beta, "tags": {"b": "1"}, "colour": "red"}, "other", struct=BETA, convert=convert)
    converted = convert(live, "example.com/v1")
    assert converted is not None
    after = run(converted[0], custom(tags={"c": "1"}), struct=STABLE, convert=convert)
    assert body(after) == custom(color="red", tags={"b": "1", "c": "1"})
    versions = {entry["manager"]: entry["apiVersion"] for entry in after["metadata"]["managedFields"]}
    assert versions == {"m1": "example.com/v1", "other": "example.com/v1beta1"}


def test_managers_of_versions_no_longer_served_are_dropped() -> None:
    entry = {
        "manager": "gone",
        "operation": "Apply",
        "apiVersion": "example.com/v0",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:color": {}},
    }
    live = custom(color="red")
    live["metadata"]["managedFields"] = [entry]
    after = run(live, custom(color="blue"), struct=STABLE, convert=convert)
    assert owned(after) == {"m1": {"f:color": {}}}
    kept = run(live, custom(tags={"a": "1"}), "gone", struct=STABLE, convert=convert)
    assert body(kept) == custom(color="red", tags={"a": "1"})


def test_lists_of_lists_are_leaves() -> None:
    struct = gadget(rows=Field("rows", ListOf(ListOf(Scalar.INT64))))
    live = run(None, custom(rows=[[1], [2]]), struct=struct)
    assert owned(live) == {"m1": {"f:rows": {}}}
    assert run(live, custom(rows=[[3]]), struct=struct)["rows"] == [[3]]
