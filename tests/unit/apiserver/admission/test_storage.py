"""The default class of volume claims, and the finalizers of volumes and claims."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dray.api.document import Document, GroupResource
from dray.api.persistent_volumes import CLASS_ANNOTATION, DEFAULT_CLASS
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation
from dray.apiserver.admission.storage import CLAIMS, DefaultStorageClass, StorageObjectInUseProtection
from dray.apiserver.object_cache import STORAGE_CLASSES, ObjectCache
from dray.apiserver.options import WriteOptions
from dray.apiserver.request import UserInfo


def admit(plugin: AdmissionPlugin, new: Document, resource: GroupResource = CLAIMS) -> Document:
    attributes = AdmissionAttributes(
        Operation.CREATE, UserInfo("alice"), "", resource, "v1", "", "", "c", new, None, WriteOptions(), []
    )
    assert plugin.handles(resource, "", Operation.CREATE)
    assert not plugin.handles(resource, "", Operation.UPDATE)
    asyncio.run(plugin.admit(attributes))
    return new


def storage_class(name: str, created: str, default: str = "true") -> Document:
    return {"metadata": {"name": name, "creationTimestamp": created, "annotations": {DEFAULT_CLASS: default}}}


@pytest.mark.behaviour("ST-40")
@pytest.mark.parametrize(
    ("classes", "claim", "expected"),
    [
        ([], {}, None),
        ([storage_class("no", "2026-01-01T00:00:00Z", "false")], {}, None),
        ([storage_class("old", "2026-01-01T00:00:00Z"), storage_class("new", "2026-01-02T00:00:00Z")], {}, "new"),
        ([storage_class("b", "2026-01-01T00:00:00Z"), storage_class("a", "2026-01-01T00:00:00Z")], {}, "a"),
        ([storage_class("a", "2026-01-01T00:00:00Z")], {"spec": {"storageClassName": ""}}, ""),
        ([storage_class("a", "2026-01-01T00:00:00Z")], {"spec": {"storageClassName": "own"}}, "own"),
        ([storage_class("a", "2026-01-01T00:00:00Z")], {"metadata": {"annotations": {CLASS_ANNOTATION: "x"}}}, None),
    ],
)
def test_a_claim_without_a_class_gets_the_default_one(classes: Any, claim: Document, expected: str | None) -> None:
    cache = ObjectCache()
    for item in classes:
        cache.apply(STORAGE_CLASSES, item, deleted=False)
    admitted = admit(DefaultStorageClass(cache), {"metadata": {}, "spec": {}} | claim)
    assert admitted["spec"].get("storageClassName") == expected


@pytest.mark.behaviour("ST-45")
@pytest.mark.parametrize(
    ("resource", "finalizer"),
    [
        ("persistentvolumeclaims", "kubernetes.io/pvc-protection"),
        ("persistentvolumes", "kubernetes.io/pv-protection"),
    ],
)
def test_volumes_and_claims_get_a_finalizer_once(resource: str, finalizer: str) -> None:
    for given in ([], ["other"], [finalizer]):
        new: Document = {"metadata": {"finalizers": list(given)} if given else {}}
        admitted = admit(StorageObjectInUseProtection(), new, GroupResource("", resource))
        assert admitted["metadata"]["finalizers"] == [*(name for name in given if name != finalizer), finalizer]
