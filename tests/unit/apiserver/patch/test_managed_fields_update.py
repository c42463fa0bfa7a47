"""managedFields after creates and updates.

Recorded from kube-apiserver 1.36.4: claims, generated names, finalizers, quota, role binding, access review, the
custom resource, status of claims and label changes. The other rows follow from the same rules and are not recorded.
"""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.api.document import GroupVersionKind
from dray.api.schema.load import kind_type, object_meta
from dray.api.schema.model import Field, ListOf, ListType, Scalar, StructType
from dray.apiserver.patch.managed_fields.field_set import NOTHING, FieldSet
from dray.apiserver.patch.managed_fields.update import FieldWrite, equal_except_times, update_managed_fields
from dray.apiserver.patch.managed_fields.walk import compare, created_fields

NOW = datetime(2026, 11, 15, 21, 37, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=7)

Document = dict[str, Any]


def kind(api_version: str, name: str) -> StructType:
    group, _, version = api_version.rpartition("/")
    found = kind_type(GroupVersionKind(group, version, name))
    assert found is not None
    return found


CLAIM = kind("resource.k8s.io/v1", "ResourceClaim")
POD = kind("v1", "Pod")


def gadget(*, schema: bool = True) -> StructType:
    """Return a custom resource's type, with or without a schema."""
    spec = StructType("example.com.GadgetSpec", {"n": Field("n", Scalar.INT64), "color": Field("color", Scalar.STRING)})
    fields = {
        "apiVersion": Field("apiVersion", Scalar.STRING),
        "kind": Field("kind", Scalar.STRING),
        "metadata": Field("metadata", object_meta()),
    }
    if schema:
        return StructType("example.com.Gadget", {**fields, "spec": Field("spec", spec)})
    return StructType("example.com.Gadget", fields, open=True)


def claim(**members: Any) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c1", "namespace": "golden"} | members.pop("metadata", {}),
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
        **members,
    }


def pod(**members: Any) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p1", "namespace": "golden", "uid": "u"} | members.pop("metadata", {}),
        "spec": {
            "containers": [{"name": "c", "image": "pause", "resources": {}}],
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "securityContext": {},
        }
        | members.pop("spec", {}),
        **members,
    }


def update(old: Document | None, new: Document, struct: StructType = CLAIM, **arguments: Any) -> list[Document] | None:
    given = {
        "manager": "unknown",
        "api_version": new["apiVersion"],
        "now": NOW,
        "subresource": "",
        **arguments,
    }
    inputs = copy.deepcopy((old, new))
    found = update_managed_fields(old, new, FieldWrite(struct=struct, **given))
    assert (old, new) == inputs
    return found


def fields(entries: list[Document] | None) -> str:
    assert entries is not None
    (entry,) = entries
    return json.dumps(entry["fieldsV1"], separators=(",", ":"))


def stored(document: Document, entries: list[Document] | None) -> Document:
    return {**document, "metadata": {**document["metadata"], "managedFields": entries, "uid": "u"}}


def test_an_entry_has_its_members_in_order() -> None:
    assert json.dumps(update(None, claim(metadata={"labels": {"a": "b"}}))) == (
        '[{"manager": "unknown", "operation": "Update", "apiVersion": "resource.k8s.io/v1", '
        '"time": "2026-11-15T21:37:01Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": '
        '{".": {}, "f:a": {}}}, "f:spec": {"f:devices": {"f:requests": {}}}}}]'
    )


CREATED: dict[str, tuple[str, Document, str]] = {
    "a claim": ("ResourceClaim", claim(), '{"f:spec":{"f:devices":{"f:requests":{}}}}'),
    "status is ignored": (
        "ResourceClaim",
        claim(status={"reservedFor": [{"uid": "u"}]}),
        '{"f:spec":{"f:devices":{"f:requests":{}}}}',
    ),
    "a generated name": (
        "ResourceClaim",
        claim(metadata={"name": "g-x", "generateName": "g-"}),
        '{"f:metadata":{"f:generateName":{}},"f:spec":{"f:devices":{"f:requests":{}}}}',
    ),
    "finalizers": (
        "ResourceClaim",
        claim(metadata={"finalizers": ["example.com/hold"]}),
        '{"f:metadata":{"f:finalizers":{".":{},"v:\\"example.com/hold\\"":{}}},'
        '"f:spec":{"f:devices":{"f:requests":{}}}}',
    ),
    "empty maps are as good as none": (
        "ResourceClaim",
        claim(metadata={"labels": {}, "annotations": None}),
        '{"f:spec":{"f:devices":{"f:requests":{}}}}',
    ),
    "owners by uid": (
        "ResourceClaim",
        claim(metadata={"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1"}]}),
        '{"f:metadata":{"f:ownerReferences":{".":{},"k:{\\"uid\\":\\"u1\\"}":{}}},'
        '"f:spec":{"f:devices":{"f:requests":{}}}}',
    ),
    "a pod": (
        "Pod",
        pod(
            spec={
                "containers": [
                    {
                        "name": "c",
                        "image": "pause",
                        "resources": {"limits": {"cpu": "1"}},
                        "ports": [{"containerPort": 443, "protocol": "TCP"}, {"containerPort": 80}],
                    }
                ],
                "nodeSelector": {"a": "b"},
                "tolerations": [{"key": "k"}],
            }
        ),
        '{"f:spec":{"f:automountServiceAccountToken":{},"f:containers":{"k:{\\"name\\":\\"c\\"}":{".":{},'
        '"f:image":{},"f:name":{},"f:ports":{".":{},"k:{\\"containerPort\\":80,\\"protocol\\":\\"TCP\\"}":{".":{},'
        '"f:containerPort":{}},"k:{\\"containerPort\\":443,\\"protocol\\":\\"TCP\\"}":{".":{},"f:containerPort":{},'
        '"f:protocol":{}}},"f:resources":{".":{},"f:limits":{".":{},"f:cpu":{}}}}},"f:nodeSelector":{},'
        '"f:restartPolicy":{},"f:securityContext":{},"f:tolerations":{}}}',
    ),
    "a config map": (
        "ConfigMap",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"b": "1", "a": "2"}},
        '{"f:data":{".":{},"f:a":{},"f:b":{}}}',
    ),
    "a quota": (
        "ResourceQuota",
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q"},
            "spec": {"hard": {"count/resourceclaims.resource.k8s.io": "1"}},
        },
        '{"f:spec":{"f:hard":{".":{},"f:count/resourceclaims.resource.k8s.io":{}}}}',
    ),
    "a role binding": (
        "RoleBinding",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "rb"},
            "subjects": [{"kind": "User", "name": "alice"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        },
        '{"f:roleRef":{},"f:subjects":{}}',
    ),
    "an access review": (
        "SelfSubjectAccessReview",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {"resourceAttributes": {"namespace": "golden", "verb": "get", "resource": "pods"}},
        },
        '{"f:spec":{"f:resourceAttributes":{".":{},"f:namespace":{},"f:resource":{},"f:verb":{}}}}',
    ),
    "a slice": (
        "ResourceSlice",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "s"},
            "spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}},
        },
        '{"f:spec":{"f:driver":{},"f:nodeName":{},"f:pool":{"f:generation":{},"f:name":{},"f:resourceSliceCount":{}}}}',
    ),
    "a deployment": (
        "Deployment",
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "x"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
                "template": {
                    "metadata": {"labels": {"app": "x"}},
                    "spec": {"containers": [{"name": "c", "image": "i", "resources": {}}]},
                },
            },
        },
        '{"f:spec":{"f:replicas":{},"f:selector":{},"f:strategy":{"f:rollingUpdate":{".":{},"f:maxSurge":{}},'
        '"f:type":{}},"f:template":{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":'
        '{"k:{\\"name\\":\\"c\\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{}}}}}}}',
    ),
}


@pytest.mark.parametrize(("name", "document", "expected"), CREATED.values(), ids=CREATED)
def test_a_creator_owns_the_fields_that_the_empty_object_lacks(name: str, document: Document, expected: str) -> None:
    assert fields(update(None, document, kind(document["apiVersion"], name))) == expected


@pytest.mark.parametrize(("name", "document", "expected"), CREATED.values(), ids=CREATED)
def test_the_fast_walk_of_creates_is_the_comparison_with_nothing(name: str, document: Document, expected: str) -> None:
    struct = kind(document["apiVersion"], name)
    change = compare(None, document, struct)
    assert change.removed == NOTHING
    assert created_fields(document, struct) == change.changed, expected


def test_an_object_without_fields_has_no_entry() -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l1"}, "spec": {}}
    assert update(None, lease, kind("coordination.k8s.io/v1", "Lease")) is None


def test_custom_resources_own_their_containers_too() -> None:
    new = {
        "apiVersion": "example.com/v1",
        "kind": "Gadget",
        "metadata": {"name": "g1"},
        "spec": {"color": "red", "n": 3},
    }
    expected = '{"f:spec":{".":{},"f:color":{},"f:n":{}}}'
    assert fields(update(None, new, gadget())) == expected
    assert fields(update(None, new, gadget(schema=False))) == expected


def test_without_a_schema_lists_are_leaves() -> None:
    new = {
        "apiVersion": "example.com/v1",
        "kind": "Gadget",
        "metadata": {"name": "g1"},
        "spec": {"a": {"b": [{"name": "x"}]}, "c": []},
    }
    assert fields(update(None, new, gadget(schema=False))) == '{"f:spec":{".":{},"f:a":{".":{},"f:b":{}},"f:c":{}}}'


def test_a_new_label_replaces_the_old_one_and_the_time() -> None:
    first = claim(metadata={"labels": {"a": "b"}})
    old = stored(first, update(None, first))
    entries = update(old, stored(claim(metadata={"labels": {"n": "1"}}), None), now=LATER)
    assert fields(entries) == ('{"f:metadata":{"f:labels":{".":{},"f:n":{}}},"f:spec":{"f:devices":{"f:requests":{}}}}')
    assert entries is not None
    assert entries[0]["time"] == "2026-11-15T21:37:08Z"


def test_a_change_of_nothing_changes_no_time() -> None:
    old = stored(claim(), update(None, claim()))
    assert update(old, old, now=LATER) == old["metadata"]["managedFields"]


def test_fields_that_the_server_sets_have_no_manager() -> None:
    old = stored(claim(), update(None, claim()))
    new = copy.deepcopy(old)
    new["metadata"] |= {"resourceVersion": "7", "generation": 2, "creationTimestamp": "2026-11-15T21:37:01Z"}
    assert update(old, new, now=LATER) == old["metadata"]["managedFields"]


def test_removing_everything_removes_the_entry() -> None:
    struct = kind("v1", "ConfigMap")
    first = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1"}}
    old = stored(first, update(None, first, struct))
    assert update(old, {**old, "data": None}, struct, now=LATER) is None


def test_who_changes_a_field_takes_it() -> None:
    first = pod()
    old = stored(first, update(None, first, POD, manager="a"))
    new = stored(pod(spec={"restartPolicy": "Never"}), None)
    entries = update(old, new, POD, manager="b", now=LATER)
    assert entries is not None
    by_manager = {entry["manager"]: entry for entry in entries}
    assert by_manager["b"]["fieldsV1"] == {"f:spec": {"f:restartPolicy": {}}}
    assert by_manager["b"]["time"] == "2026-11-15T21:37:08Z"
    assert "f:restartPolicy" not in by_manager["a"]["fieldsV1"]["f:spec"]
    assert by_manager["a"]["time"] == "2026-11-15T21:37:01Z"


def test_a_status_is_owned_apart() -> None:
    old = stored(claim(status={}), update(None, claim()))
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"ignored": "?"}
    new["status"] = {
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": "d", "pool": "p", "device": "x"}]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
    }
    entries = update(old, new, subresource="status", now=LATER)
    assert entries is not None
    assert entries[0] == old["metadata"]["managedFields"][0]
    assert json.dumps(entries[1], separators=(",", ":")) == (
        '{"manager":"unknown","operation":"Update","apiVersion":"resource.k8s.io/v1","time":"2026-11-15T21:37:08Z",'
        '"fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:allocation":{".":{},"f:devices":{".":{},"f:results":{}}},'
        '"f:reservedFor":{".":{},"k:{\\"uid\\":\\"u\\"}":{".":{},"f:name":{},"f:resource":{},"f:uid":{}}}}},'
        '"subresource":"status"}'
    )


def test_unset_times_of_new_items_are_owned() -> None:
    old = stored(pod(), update(None, pod(), POD))
    new = {**old, "status": {"conditions": [{"type": "Ready", "status": "False", "lastProbeTime": None}]}}
    entries = update(old, new, POD, manager="kube-scheduler", subresource="status")
    assert entries is not None
    assert entries[0]["fieldsV1"] == {
        "f:status": {
            "f:conditions": {
                ".": {},
                'k:{"type":"Ready"}': {".": {}, "f:lastProbeTime": {}, "f:status": {}, "f:type": {}},
            }
        }
    }


def test_a_required_list_is_there_before_it_is_filled() -> None:
    struct = kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    entry = {
        "manager": "x",
        "operation": "Update",
        "apiVersion": "apiextensions.k8s.io/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:scope": {}}},
    }
    old = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "x", "managedFields": [entry]},
        "status": {"acceptedNames": {"plural": "", "kind": ""}},
    }
    new = {**old, "status": {"acceptedNames": {"plural": "p", "kind": "K"}, "storedVersions": ["v1"]}}
    entries = update(old, new, struct, subresource="status")
    assert entries is not None
    assert entries[1]["fieldsV1"] == {
        "f:status": {"f:acceptedNames": {"f:kind": {}, "f:plural": {}}, "f:storedVersions": {}}
    }


def test_entries_are_sorted() -> None:
    def entry(manager: str, operation: str, time: str | None, **members: str) -> Document:
        fields_v1: Document = {"f:data": {f"f:{manager}{operation}{time}{members}": {}}}
        made = {"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1"}
        return {**made, **({"time": time} if time else {}), "fieldsV1": fields_v1, **members}

    expected = [
        entry("z", "Apply", None),
        entry("b", "Apply", "2026-01-01T00:00:00Z"),
        entry("c", "Apply", "2026-01-01T00:00:00Z"),
        entry("a", "Apply", "2026-01-02T00:00:00Z"),
        entry("a", "Update", "2026-01-01T00:00:00Z"),
        entry("a", "Update", "2026-01-01T00:00:00Z", subresource="status"),
        entry("b", "Update", "2026-01-01T00:00:00Z"),
    ]
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "uid": "u"}}
    new = stored(document, list(reversed(expected)))
    assert update(stored(document, None), new, kind("v1", "ConfigMap"), now=LATER) == expected


SENT = [
    {
        "manager": "me",
        "operation": "Apply",
        "apiVersion": "resource.k8s.io/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:devices": {"f:requests": {}}}},
    }
]


@pytest.mark.parametrize(
    ("sent", "subresource", "expected"),
    [
        pytest.param(SENT, "", "me", id="what the client sends replaces what is stored"),
        pytest.param(SENT, "status", "unknown", id="but not through a subresource"),
        pytest.param(None, "", "unknown", id="leaving it out keeps it"),
        pytest.param([{**SENT[0], "operation": "X"}], "", "unknown", id="a bad operation is not taken"),
        pytest.param([{**SENT[0], "apiVersion": ""}], "", "unknown", id="no version is not taken"),
        pytest.param([{**SENT[0], "fieldsType": ""}], "", "unknown", id="no fields type is not taken"),
        pytest.param([{**SENT[0], "fieldsType": "V2"}], "", "unknown", id="an unknown fields type is not taken"),
        pytest.param([{**SENT[0], "fieldsV1": {"x": 1}}], "", "unknown", id="unreadable fields are not taken"),
        pytest.param([{}], "", None, id="one empty entry forgets all"),
        pytest.param([], "", None, id="an empty list forgets all"),
    ],
)
def test_clients_can_edit_the_list(sent: Any, subresource: str, expected: str | None) -> None:
    old = stored(claim(), update(None, claim()))
    new = copy.deepcopy(old)
    new["metadata"]["managedFields"] = sent
    entries = update(old, new, subresource=subresource, now=LATER)
    assert (entries[0]["manager"] if entries else None) == expected


def test_an_untracked_object_stays_untracked() -> None:
    old = stored(claim(), None)
    assert update(old, stored(claim(metadata={"labels": {"a": "b"}}), None)) is None


def test_the_oldest_of_too_many_updaters_are_merged() -> None:
    struct = kind("v1", "ConfigMap")
    document: Document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"m0": ""}}
    document = stored(document, update(None, document, struct, manager="m0"))
    for number in range(1, 12):
        changed = {**document, "data": {**document["data"], f"m{number}": ""}}
        when = NOW + timedelta(seconds=number)
        document = stored(changed, update(document, changed, struct, manager=f"m{number}", now=when))
    entries = document["metadata"]["managedFields"]
    assert len(entries) == 10
    assert entries[0] == {
        "manager": "ancient-changes",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-11-15T21:37:03Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {".": {}, "f:m0": {}, "f:m1": {}, "f:m2": {}}},
    }
    assert [entry["manager"] for entry in entries[1:]] == [f"m{number}" for number in range(3, 12)]


def test_managers_at_other_versions_lose_what_changed_there() -> None:
    beta = StructType("io.k8s.test.v1beta1.Thing", {**gadget().fields, "colour": Field("colour", Scalar.STRING)})
    stable = StructType("io.k8s.test.v1.Thing", {**gadget().fields, "color": Field("color", Scalar.STRING)})

    def convert(document: Document, api_version: str) -> tuple[Document, StructType] | None:
        if api_version != "test/v1beta1":
            return None
        renamed = {"colour" if name == "color" else name: value for name, value in document.items()}
        return renamed, beta

    def entry(manager: str, api_version: str) -> Document:
        fields_v1: Document = {"f:colour": {}, "f:spec": {"f:n": {}}}
        made = {"manager": manager, "operation": "Update", "apiVersion": api_version, "fieldsType": "FieldsV1"}
        return {**made, "fieldsV1": fields_v1}

    managed = [entry("old", "test/v1beta1"), entry("gone", "test/v0")]
    old = {"apiVersion": "test/v1", "metadata": {"managedFields": managed}, "color": "red", "spec": {"n": 1}}
    new = {**old, "color": "blue"}
    entries = update(old, new, stable, convert=convert)
    assert entries is not None
    assert {each["manager"]: each["fieldsV1"] for each in entries} == {
        "old": {"f:spec": {"f:n": {}}},
        "unknown": {"f:color": {}},
    }


def test_reset_fields_can_be_given() -> None:
    document = claim(metadata={"labels": {"a": "b"}})
    entries = update(None, document, reset=FieldSet.of(("f:spec",)))
    assert fields(entries) == '{"f:metadata":{"f:labels":{".":{},"f:a":{}}}}'
    assert '"f:status":{"f:x":{}}' in fields(update(None, claim(status={"x": 1}), reset=NOTHING))


def test_items_that_share_their_keys_are_owned_as_one() -> None:
    item = StructType("example.com.Item", {"name": Field("name", Scalar.STRING), "v": Field("v", Scalar.STRING)})
    struct = StructType("example.com.Kind", {"items": Field("items", ListOf(item, ListType.MAP, ("name",)))})
    twice = [{"name": "a", "v": "1"}, {"name": "a", "v": "2"}]
    assert created_fields({"items": twice}, struct).tree == {"f:items": {".": {}, 'k:{"name":"a"}': {}}}
    once = compare({"items": twice}, {"items": twice[:1]}, struct)
    assert once.removed.tree == {"f:items": {'k:{"name":"a"}': {}}}
    assert compare({"items": twice}, {"items": list(reversed(twice))}, struct).changed
    assert not compare({"items": twice}, {"items": list(twice)}, struct).changed


def test_times_alone_can_be_reported() -> None:
    old = update(None, claim())
    new = update(None, claim(), now=LATER)
    other = update(None, claim(), manager="x", now=LATER)
    assert old != new
    assert equal_except_times(old, new)
    assert not equal_except_times(old, other)
    assert equal_except_times(None, None)


def test_what_a_creator_owns_comes_in_order_whatever_the_order_it_was_sent_in() -> None:
    containers = [
        {
            "name": name,
            "ports": [{"containerPort": port, "protocol": "TCP"} for port in (10250, 9, 80)],
            "env": [{"name": "Z", "value": "1"}, {"name": "A", "value": "2"}],
        }
        for name in ("web", "app", "10")
    ]
    pod = {
        "metadata": {"name": "p", "labels": {"z": "1", "a": "2", "a.b/c": "3"}, "finalizers": ["y/z", "b/c"]},
        "spec": {"containers": containers, "tolerations": [{"key": "k"}], "nodeSelector": {"b": "1", "a": "2"}},
    }
    for document, struct in ((pod, POD), (claim(), CLAIM)):
        fields = created_fields(document, struct)
        assert json.dumps(fields.tree) == json.dumps(FieldSet.from_fields_v1(fields.tree).tree)
    assert '"k:{\\"name\\":\\"10\\"}"' in json.dumps(created_fields(pod, POD).tree)


def test_an_unchanged_entry_is_not_rewritten() -> None:
    old = stored(claim(status={}), update(None, claim()))
    new = copy.deepcopy(old) | {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
    entries = update(old, new, subresource="status", now=LATER)
    assert entries is not None
    assert entries[0] is old["metadata"]["managedFields"][0]
    released = update(stored(new, entries), stored(claim(status={}), entries), subresource="status", now=LATER)
    assert released == entries[:1]


def test_a_message_may_contain_itself() -> None:
    node = StructType("example.com.Node", {"value": Field("value", Scalar.STRING)})
    node.fields |= {
        "child": Field("child", node),
        "children": Field("children", ListOf(node, ListType.MAP, ("value",))),
    }
    tree = {"value": "a", "child": {"child": {"value": "b"}}, "children": [{"value": "c", "child": {"value": "d"}}]}
    expected = {
        "f:child": {".": {}, "f:child": {".": {}, "f:value": {}}},
        "f:children": {
            ".": {},
            'k:{"value":"c"}': {".": {}, "f:child": {".": {}, "f:value": {}}, "f:value": {}},
        },
        "f:value": {},
    }
    assert created_fields(tree, node).tree == compare(None, tree, node).changed.tree == expected
