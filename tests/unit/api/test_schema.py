"""The loaded schema: shared types, merge rules, and no descriptions from Kubernetes."""

from __future__ import annotations

import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import dray.api.schema
from dray.api.document import GroupVersionKind
from dray.api.schema import load
from dray.api.schema.model import ListOf, ListType, MapOf, Scalar, StructType

CORE = "io.k8s.api.core.v1"
DATA = Path(dray.api.schema.__file__).parent / "data"


def test_every_kind_loads_and_is_shared() -> None:
    kinds = list(load.kinds())
    assert len(kinds) > 80
    for gvk in kinds:
        struct_type = load.kind_type(gvk)
        assert struct_type is not None
        assert load.kind_type(gvk) is struct_type
        assert load.struct(struct_type.name) is struct_type


SERVED = [
    ("", "v1", "Namespace Node Pod Event ConfigMap Secret ServiceAccount ResourceQuota Binding PodList"),
    ("apps", "v1", "Deployment ReplicaSet DaemonSet DaemonSetList"),
    ("batch", "v1", "Job"),
    ("coordination.k8s.io", "v1", "Lease"),
    ("events.k8s.io", "v1", "Event"),
    ("rbac.authorization.k8s.io", "v1", "Role ClusterRole RoleBinding ClusterRoleBinding"),
    ("authentication.k8s.io", "v1", "TokenReview SelfSubjectReview TokenRequest"),
    (
        "authorization.k8s.io",
        "v1",
        "SubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview LocalSubjectAccessReview",
    ),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
    ("scheduling.k8s.io", "v1", "PriorityClass"),
    ("policy", "v1", "Eviction"),
    ("autoscaling", "v1", "Scale"),
    ("resource.k8s.io", "v1", "DeviceClass ResourceClaim ResourceSlice ResourceSliceList DeviceTaintRule"),
    ("resource.k8s.io", "v1beta2", "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice DeviceTaintRule"),
    ("resource.k8s.io", "v1beta1", "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice"),
    ("resource.k8s.io", "v1alpha3", "DeviceTaintRule ResourcePoolStatusRequest"),
    pytest.param(
        "cdi.k8s.io", "v1alpha1", "ResourceClass ResourceClaim ResourceClaimList", marks=pytest.mark.behaviour("CL-01")
    ),
    ("", "v1", "DeleteOptions Status WatchEvent PartialObjectMetadata PartialObjectMetadataList Table List"),
    ("any.example.com", "v7", "DeleteOptions"),
]


@pytest.mark.parametrize(("group", "version", "kinds"), SERVED)
def test_kinds_are_known(group: str, version: str, kinds: str) -> None:
    for kind in kinds.split():
        assert load.kind_type(GroupVersionKind(group, version, kind)) is not None


def test_unknown_kinds_are_not() -> None:
    assert load.kind_type(GroupVersionKind("", "v1", "Wheelbarrow")) is None
    with pytest.raises(KeyError):
        load.struct(f"{CORE}.Nothing")


def test_types_may_be_recursive() -> None:
    props = load.struct("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps")
    properties = props.fields["properties"].type
    assert isinstance(properties, MapOf)
    assert properties.element is props


def test_merge_rules() -> None:
    spec = load.struct(f"{CORE}.PodSpec")
    containers = spec.fields["containers"]
    assert containers.required
    assert containers.patch_strategies == ("merge",)
    assert containers.patch_merge_key == "name"
    assert isinstance(containers.type, ListOf)
    assert (containers.type.list_type, containers.type.map_keys) == (ListType.MAP, ("name",))
    assert spec.fields["volumes"].patch_strategies == ("merge", "retainKeys")
    assert spec.fields["tolerations"].type == ListOf(load.struct(f"{CORE}.Toleration"))
    assert spec.fields["nodeSelector"].type == MapOf(Scalar.STRING, atomic=True)
    assert load.struct(f"{CORE}.LocalObjectReference").atomic
    assert load.struct(f"{CORE}.ContainerPort").fields["protocol"].default == "TCP"
    finalizers = load.object_meta().fields["finalizers"].type
    assert isinstance(finalizers, ListOf)
    assert finalizers.list_type is ListType.SET


def reachable() -> list[StructType]:
    found: dict[str, StructType] = {}
    stack = [struct_type for gvk in load.kinds() if (struct_type := load.kind_type(gvk))]
    while stack:
        struct_type = stack.pop()
        if struct_type.name not in found:
            found[struct_type.name] = struct_type
            for field in struct_type.fields.values():
                kind = field.type
                while isinstance(kind, ListOf | MapOf):
                    kind = kind.element
                if isinstance(kind, StructType):
                    stack.append(kind)
    return list(found.values())


def test_map_keys_are_scalar_fields_of_their_items() -> None:
    lists = [
        field.type
        for struct_type in reachable()
        for field in struct_type.fields.values()
        if isinstance(field.type, ListOf) and field.type.list_type is ListType.MAP
    ]
    assert len(lists) > 30
    for kind in lists:
        assert kind.map_keys
        assert isinstance(kind.element, StructType)
        for key in kind.map_keys:
            assert isinstance(kind.element.fields[key].type, Scalar)


def test_pointers_are_optional_scalars() -> None:
    pointers = [field for struct_type in reachable() for field in struct_type.fields.values() if field.pointer]
    assert len(pointers) > 100
    for field in pointers:
        assert isinstance(field.type, Scalar)
        assert not field.required


@pytest.mark.behaviour("CL-02", "CL-08", "CL-10", "CL-11", "CL-12")
def test_the_classic_types_have_the_fields_of_their_design() -> None:
    prefix = "io.k8s.api.cdi.v1alpha1"
    expected = {
        "ResourceClass": "apiVersion kind metadata driverName parameters",
        "ResourceClaimSpec": "resourceClassName parameters allocationMode",
        "ResourceClaimStatus": "phase driverName scheduling attributes userLimit reservedFor conditions",
        "SchedulerSchedulingStatus": "selectedNode potentialNodes",
        "DriverSchedulingStatus": "unsuitableNodes availableOnNodes",
    }
    for name, fields in expected.items():
        assert list(load.struct(f"{prefix}.{name}").fields) == fields.split()
        assert set(load.field_descriptions(f"{prefix}.{name}")) == set(fields.split())
        assert load.description(f"{prefix}.{name}")


def test_generated_data_has_no_prose() -> None:
    for path in DATA.glob("*.json"):
        if path.stem not in ("cdi_v1alpha1", "metrics_v1beta1", "overlay"):
            assert not list(texts(json.loads(path.read_text()))), path


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) and " " in value else []


def test_data_is_packaged() -> None:
    assert pkgutil.get_data("dray.api.schema", "data/kinds.json")
    assert load.digest() == load.digest()
