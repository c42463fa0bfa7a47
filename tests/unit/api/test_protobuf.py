"""Protobuf as Go's clients write and read it: envelopes, zero values, embedded structs, unions and frames."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import GroupVersionKind
from dray.api.protobuf import (
    MAGIC,
    ProtobufError,
    UnknownKindError,
    decode_object,
    encode_list,
    encode_message,
    encode_object,
    has_protobuf,
    watch_frame,
)
from dray.api.protobuf.decode import decode_message
from dray.api.protobuf.wire import delimited, tag, varint
from dray.api.schema import load

POD = GroupVersionKind("", "v1", "Pod")


def text(number: int, value: str) -> bytes:
    return tag(number, 2) + delimited(value.encode())


def message(number: int, *parts: bytes) -> bytes:
    return tag(number, 2) + delimited(b"".join(parts))


def integer(number: int, value: int) -> bytes:
    return tag(number, 0) + varint(value)


def envelope(api_version: str, kind: str, *parts: bytes) -> bytes:
    return MAGIC + message(1, text(1, api_version), text(2, kind)) + message(2, *parts) + text(3, "") + text(4, "")


# A container as gogo-protobuf writes it: every plain field, set or not.
CONTAINER = (text(1, "c"), text(2, "busybox"), text(5, ""), message(8), text(13, ""), text(14, ""), integer(16, 0))


def test_go_zero_values_do_not_become_fields() -> None:
    spec = message(2, message(2, *CONTAINER), text(3, ""), text(10, ""), integer(11, 0), integer(12, 0))
    body = envelope("v1", "Pod", message(1, text(1, "p"), text(2, ""), integer(7, 0), message(8)), spec, message(3))
    assert decode_object(body) == (
        POD,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "busybox", "resources": {}}]},
            "status": {},
        },
    )


def test_zero_behind_a_pointer_is_kept() -> None:
    # automountServiceAccountToken=21 and priority=25 are pointers in Go, hostNetwork=11 is not.
    spec = message(2, integer(11, 0), integer(21, 0), integer(25, 0), integer(4, 0))
    document = decode_object(envelope("v1", "Pod", spec))[1]
    assert document["spec"] == {
        "automountServiceAccountToken": False,
        "priority": 0,
        "terminationGracePeriodSeconds": 0,
    }


# What kubectl 1.32 sent for `create deployment d --image=y --replicas=0`.
DEPLOYMENT = bytes.fromhex(
    "6b3873000a150a07617070732f7631120a4465706c6f796d656e7412a2010a220a016412001a0764656661756c7422002a00"
    "3200380042005a080a03617070120164126e0800120a0a080a036170701201641a560a1a0a0012001a0022002a0032003800"
    "42005a080a036170701201641238121a0a01791201792a0042006a007200800100880100900100a201001a00320042004a00"
    "52005800600068008201008a01009a0100c2010022020a00280038001a0c0800100018002000280038001a002200"
)


def test_what_kubectl_sends() -> None:
    labels = {"app": "d"}
    assert decode_object(DEPLOYMENT)[1] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default", "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "y", "image": "y", "resources": {}}]},
            },
            "strategy": {},
        },
        "status": {},
    }


ROUND_TRIPS: dict[str, dict[str, Any]] = {
    "embedded structs": {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "cm", "optional": False}}],
            "containers": [
                {
                    "name": "c",
                    "livenessProbe": {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 3},
                    "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                }
            ],
        },
    },
    "raw parameters": {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "spec": {"config": [{"opaque": {"driver": "d", "parameters": {"a": [1, {"b": None}]}}}]},
    },
    "string lists in maps": {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": "u", "extra": {"a": ["x", "y"], "b": ["z"]}},
        "status": {"allowed": False},
    },
    "schemas": {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "spec": {
            "group": "g",
            "names": {"kind": "K", "plural": "ks"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": False,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "default": {},
                            "x-kubernetes-preserve-unknown-fields": False,
                            "properties": {
                                "a": {"items": {"type": "string"}, "minLength": 0},
                                "b": {"items": [{"type": "string"}, {"type": "integer"}]},
                                "c": {"additionalProperties": {"type": "integer", "enum": [1, "x", None]}},
                                "d": {"additionalProperties": False},
                                "e": {"additionalProperties": True, "maximum": 1.5, "minimum": 0},
                                "f": {"dependencies": {"x": ["y"], "z": {"type": "string"}}},
                            },
                        }
                    },
                }
            ],
        },
    },
    "negative numbers": {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"priority": -5, "terminationGracePeriodSeconds": -(2**40), "containers": [{"name": "a"}]},
    },
    "options": {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}},
    "leases": {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"holderIdentity": "", "leaseTransitions": 0, "renewTime": "2026-01-02T03:04:05.123456Z"},
    },
}


@pytest.mark.parametrize("document", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_round_trip(document: dict[str, Any]) -> None:
    assert decode_object(encode_object(document))[1] == document


def test_a_list_of_encoded_items_is_the_list() -> None:
    struct_type = load.kind_type(GroupVersionKind("", "v1", "ConfigMap"))
    assert struct_type is not None
    items = [{"metadata": {"name": name}, "data": {"a": name}} for name in ("x", "y")]
    metadata = {"resourceVersion": "7", "remainingItemCount": 0}
    whole = {"apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata, "items": items}
    made = encode_list(
        GroupVersionKind("", "v1", "ConfigMapList"), metadata, [encode_message(item, struct_type) for item in items]
    )
    assert made == encode_object(whole)
    assert decode_object(made)[1] == whole


def test_a_watch_frame_has_a_length_and_a_bare_event() -> None:
    enveloped = encode_object({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
    frame = watch_frame("ADDED", enveloped)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4:] == text(1, "ADDED") + message(2, tag(1, 2), delimited(enveloped))


def test_json_inside_the_envelope() -> None:
    body = (
        MAGIC
        + message(1, text(1, "v1"), text(2, "Pod"))
        + text(2, '{"metadata":{"name":"a"}}')
        + text(4, "application/json")
    )
    assert decode_object(body)[1] == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}


def test_the_kind_may_come_from_the_request() -> None:
    assert decode_object(MAGIC + message(2, message(1, text(1, "a"))), POD) == (
        POD,
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
    )


def test_packed_and_unknown_fields_are_read() -> None:
    struct_type = load.struct("io.k8s.api.core.v1.PodSecurityContext")
    groups = next(field.number for field in struct_type.fields.values() if field.name == "supplementalGroups")
    packed = (
        tag(groups, 2) + delimited(varint(1) + varint(300)) + integer(99, 5) + text(100, "x") + tag(101, 5) + b"1234"
    )
    assert decode_message(packed, struct_type) == {"supplementalGroups": [1, 300]}


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        MAGIC + b"\x0a\xff",
        envelope("v1", "Pod", message(2, tag(2, 2) + b"\x7f")),
        envelope("v1", "Pod", message(1, tag(1, 2), delimited(b"\xff\xfe"))),
        envelope("v1", "Pod", tag(50, 3)),
        envelope("v1", "Pod", b"\xff" * 12),
    ],
)
def test_garbage_is_rejected(body: bytes) -> None:
    with pytest.raises(ProtobufError):
        decode_object(body)


def test_kinds_without_numbers_have_no_protobuf() -> None:
    gvk = GroupVersionKind("cdi.k8s.io", "v1alpha1", "ResourceClaim")
    assert not has_protobuf(gvk)
    with pytest.raises(UnknownKindError):
        encode_object({"apiVersion": gvk.api_version, "kind": gvk.kind})
    with pytest.raises(UnknownKindError):
        decode_object(envelope("example.com/v1", "Gadget"))


def test_every_field_of_a_numbered_type_has_a_number() -> None:
    # TypeMeta is in the envelope, and these fields exist in our JSON only.
    own = {("io.k8s.api.core.v1.PodResourceClaim", "template"), ("io.k8s.api.core.v1.PodResourceClaim", "optional")}
    missing = {
        (struct.name, field.name)
        for gvk in load.kinds()
        if has_protobuf(gvk)
        for struct in reachable(load.kind_type(gvk))
        for field in struct.fields.values()
        if not field.number and field.name not in ("apiVersion", "kind")
    }
    assert {item for item in missing if ".cdi." not in item[0]} == own


def reachable(root: Any) -> list[Any]:
    found, stack = {root.name: root}, [root]
    while stack:
        for field in stack.pop().fields.values():
            kind = field.type
            while hasattr(kind, "element"):
                kind = kind.element
            if hasattr(kind, "fields") and kind.name not in found:
                found[kind.name] = kind
                stack.append(kind)
    return list(found.values())
