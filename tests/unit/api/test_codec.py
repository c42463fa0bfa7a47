"""Conversion of typed structures and documents: all names, required fields, no shared parts."""

from __future__ import annotations

import importlib
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
import pytest

from dray.api.codec import decode, from_document, to_document
from dray.api.schema import load
from dray.api.schema.model import Scalar
from dray.api.types import Message, core_v1, meta_v1, resource_v1

MODULES = (
    "meta_v1",
    "core_v1",
    "resource_v1",
    "apps_v1",
    "batch_v1",
    "coordination_v1",
    "events_v1",
    "scheduling_v1",
    "rbac_v1",
    "cdi_v1alpha1",
)


def classes(module: str) -> list[type[Message]]:
    found = vars(importlib.import_module(f"dray.api.types.{module}")).values()
    return [item for item in found if isinstance(item, type) and issubclass(item, Message) and item is not Message]


@pytest.mark.parametrize("module", MODULES)
def test_every_class_has_the_names_of_its_schema(module: str) -> None:
    assert classes(module)
    for cls in classes(module):
        # Resolving the annotations shows that every type named in them exists.
        names = {field.encode_name for field in msgspec.structs.fields(cls)}
        assert names == set(load.struct(cls.schema_name).fields) - {"managedFields"}, cls


def test_who_owns_fields_is_no_part_of_a_structure() -> None:
    entry = {"manager": "m", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}
    claim = from_document(resource_v1.ResourceClaim, {"metadata": {"name": "c", "managedFields": [entry]}})
    assert to_document(claim) == {"metadata": {"name": "c"}}


def test_a_document_round_trips() -> None:
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "b"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {
            "hostPID": True,
            "containers": [{"name": "c", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}}}],
            "resourceClaims": [
                {"name": "r", "template": {"spec": {"resourceClassName": "x", "parameters": {"y": [1]}}}}
            ],
            "terminationGracePeriodSeconds": 0,
        },
        "status": {"podIPs": [{"ip": "10.0.0.1"}]},
    }
    pod = from_document(core_v1.Pod, document)
    assert pod.metadata.creation_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert pod.spec.host_pid
    assert pod.spec.containers[0].resources.limits == {"cpu": "1"}
    assert pod.status.pod_ips[0].ip == "10.0.0.1"
    assert to_document(pod) == document
    assert decode(core_v1.Pod, orjson.dumps(document)) == pod


def test_required_fields_are_always_written() -> None:
    status = core_v1.ContainerStatus(name="c")
    assert to_document(status) == {"name": "c", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    pod = core_v1.Pod(status=core_v1.PodStatus(container_statuses=(status,)))
    assert to_document(pod) == {"status": {"containerStatuses": [to_document(status)]}}


def test_what_is_missing_has_a_default() -> None:
    claim = from_document(resource_v1.ResourceClaim, {})
    assert claim.metadata == meta_v1.ObjectMeta()
    assert claim.spec.devices.requests == ()
    assert claim.status.allocation is None
    assert to_document(claim) == {}


def test_awkward_names() -> None:
    attribute = from_document(resource_v1.DeviceAttribute, {"int": 0, "bool": False})
    assert (attribute.int_, attribute.bool_, attribute.string) == (0, False, None)
    assert to_document(attribute) == {"int": 0, "bool": False}
    assert from_document(meta_v1.ListMeta, {"continue": "x"}).continue_ == "x"


def test_structures_are_frozen() -> None:
    with pytest.raises(AttributeError):
        core_v1.Pod().kind = "Pod"  # type: ignore[misc]


@pytest.mark.parametrize("module", MODULES)
def test_each_module_can_be_imported_first(module: str) -> None:
    code = (
        f"import dray.api.types.{module} as m, msgspec\n"
        "for c in vars(m).values():\n"
        "    if isinstance(c, type) and issubclass(c, m.Message): msgspec.structs.fields(c)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scalars_of_a_class_have_the_types_of_the_schema() -> None:
    wanted = {Scalar.STRING: str, Scalar.BOOL: bool, Scalar.INT32: int, Scalar.INT64: int, Scalar.TIME: datetime}
    for cls in classes("core_v1"):
        struct_type = load.struct(cls.schema_name)
        for field in msgspec.structs.fields(cls):
            kind = struct_type.fields[field.encode_name].type
            if isinstance(kind, Scalar) and kind in wanted:
                assert field.type in (wanted[kind], wanted[kind] | None), (cls, field.name)
