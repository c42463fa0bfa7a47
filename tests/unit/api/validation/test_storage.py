"""Persistent volumes, claims and storage classes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.validation.storage import (
    validate_persistent_volume,
    validate_persistent_volume_claim,
    validate_persistent_volume_claim_update,
    validate_persistent_volume_update,
    validate_storage_class,
    validate_storage_class_update,
)
from dray.apiserver.registry import builtin
from dray.apiserver.registry.storage import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from dray.apiserver.registry.strategy import ResourceDefinition

Document = dict[str, Any]
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


def defaulted(definition: ResourceDefinition, document: Document) -> Document:
    default = builtin.endpoint(definition, "v1").default
    assert default is not None
    default(document, NOW)
    return document


def claim(phase: str = "Pending", **spec: Any) -> Document:
    base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = {"metadata": {"name": "data"}, "spec": base | spec, "status": {"phase": phase}}
    return defaulted(PERSISTENT_VOLUME_CLAIMS, made)


def size(text: str) -> Document:
    return {"requests": {"storage": text}}


CLAIMS: dict[str, tuple[Document, list[str]]] = {
    "valid": ({}, []),
    "no mode": ({"accessModes": []}, ["spec.accessModes: Required value: at least 1 access mode is required"]),
    "mode": (
        {"accessModes": ["Fast"]},
        [
            'spec.accessModes: Unsupported value: "Fast": supported values: "ReadOnlyMany", "ReadWriteMany", '
            '"ReadWriteOnce", "ReadWriteOncePod"'
        ],
    ),
    "single pod": (
        {"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]},
        ["spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"],
    ),
    "no size": ({"resources": {}}, ["spec.resources[storage]: Required value"]),
    "zero": ({"resources": size("0")}, ['spec.resources[storage]: Invalid value: "0": must be greater than zero']),
    "volume mode": (
        {"volumeMode": "Tape"},
        ['spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesystem"'],
    ),
    "source": (
        {"dataSource": {"kind": "Volume", "name": "a"}, "dataSourceRef": {"apiGroup": "a.b", "kind": "C", "name": "d"}},
        [
            "spec.dataSource: Invalid value: \"Volume\": must be 'PersistentVolumeClaim' when referencing the default "
            "apiGroup"
        ],
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claim(name: str) -> None:
    spec, expected = CLAIMS[name]
    assert [str(error) for error in validate_persistent_volume_claim(claim(**spec))] == expected


def test_claims_are_bound_once_and_grow() -> None:
    fixed = (
        "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName "
        "for bound claims"
    )

    def errors(new: Document, old: Document) -> list[str]:
        return [str(error) for error in validate_persistent_volume_claim_update(new, old)]

    assert errors(claim(volumeName="pv1"), claim()) == []
    assert errors(claim(volumeName="pv2"), claim(volumeName="pv1")) == [fixed]
    assert errors(claim(resources=size("2Gi")), claim()) == [fixed]
    assert errors(claim("Bound", resources=size("2Gi")), claim("Bound")) == []
    bound = claim("Bound", resources=size("2Gi"))
    bound["status"]["capacity"] = {"storage": "2Gi"}
    assert errors(claim("Bound"), bound) == [
        "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
    ]


def test_columns_of_a_claim() -> None:
    made = claim("Bound", volumeName="pv1", storageClassName="fast")
    made["status"] |= {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    cells = [column.cell(made, NOW) for column in PERSISTENT_VOLUME_CLAIMS.columns]
    assert cells == ["data", "Bound", "pv1", "1Gi", "RWO", "fast", "<unset>", "<unknown>", "Filesystem"]


def volume(**spec: Any) -> Document:
    base = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"}}
    return defaulted(PERSISTENT_VOLUMES, {"metadata": {"name": "pv1"}, "spec": base | spec})


VOLUMES: dict[str, tuple[Document, list[str]]] = {
    "valid": ({}, []),
    "no modes": ({"accessModes": []}, ["spec.accessModes: Required value"]),
    "no capacity": ({"capacity": {}}, ["spec.capacity: Required value"]),
    "other capacity": (
        {"capacity": {"cpu": "1"}},
        ['spec.capacity: Unsupported value: {"cpu":"1"}: supported values: "storage"'],
    ),
    "no source": ({"hostPath": None}, ["spec: Required value: must specify a volume type"]),
    "two sources": (
        {"nfs": {"server": "a", "path": "/"}},
        ["spec.nfs: Forbidden: may not specify more than one volume type"],
    ),
    "local": (
        {"hostPath": None, "local": {"path": "/data"}},
        ["spec.nodeAffinity: Required value: Local volume requires node affinity"],
    ),
    "policy": (
        {"persistentVolumeReclaimPolicy": "Burn"},
        [
            'spec.persistentVolumeReclaimPolicy: Unsupported value: "Burn": supported values: "Delete", "Recycle", '
            '"Retain"'
        ],
    ),
    "csi": (
        {"hostPath": None, "csi": {"driver": "a"}},
        ["spec.csi.volumeHandle: Required value"],
    ),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_volume(name: str) -> None:
    spec, expected = VOLUMES[name]
    assert [str(error) for error in validate_persistent_volume(volume(**spec))] == expected


def test_the_source_of_a_volume_is_immutable() -> None:
    assert validate_persistent_volume_update(volume(storageClassName="a"), volume()) == []
    errors = validate_persistent_volume_update(volume(hostPath={"path": "/other"}), volume())
    assert [str(error) for error in errors] == [
        "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"
    ]
    cells = [
        column.cell(volume(claimRef={"namespace": "a", "name": "b"}), NOW) for column in PERSISTENT_VOLUMES.columns
    ]
    assert cells[:7] == ["pv1", "1Gi", "RWO", "Retain", "Pending", "a/b", ""]


def storage_class(**fields: Any) -> Document:
    return defaulted(STORAGE_CLASSES, {"metadata": {"name": "fast"}, "provisioner": "a.org/disk", **fields})


def test_storage_class() -> None:
    assert storage_class()["volumeBindingMode"] == "Immediate"
    assert validate_storage_class(storage_class()) == []
    assert [
        str(error) for error in validate_storage_class(storage_class(provisioner="", volumeBindingMode="Later"))
    ] == [
        "provisioner: Required value",
        'volumeBindingMode: Unsupported value: "Later": supported values: "Immediate", "WaitForFirstConsumer"',
    ]
    errors = validate_storage_class_update(
        storage_class(provisioner="a.org/tape", parameters={"a": "b"}), storage_class()
    )
    assert [str(error) for error in errors] == [
        "parameters: Forbidden: updates to parameters are forbidden.",
        "provisioner: Forbidden: updates to provisioner are forbidden.",
    ]
    default = storage_class()
    default["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    assert STORAGE_CLASSES.columns[0].cell(default, NOW) == "fast (default)"
