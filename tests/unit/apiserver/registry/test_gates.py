"""The tables of gated fields agree with the schema and with the feature gates."""

from __future__ import annotations

from copy import deepcopy

import pytest

from dray.api.document import Document, GroupVersion, GroupVersionKind
from dray.api.features import FeatureGates
from dray.api.gate_table import GATES
from dray.api.schema import load
from dray.api.schema.model import ListOf, MapOf, StructType, Type
from dray.apiserver.registry.gated_fields import (
    CLAIM_FIELDS,
    CLASS_FIELDS,
    CRON_JOB_FIELDS,
    JOB_FIELDS,
    POD_FIELDS,
    POD_GROUP_FIELDS,
    SLICE_FIELDS,
    TEMPLATE_FIELDS,
    WORKLOAD_FIELDS,
    GatedFields,
    drop_disabled_fields,
    drop_disabled_status_fields,
)

DRA, SCHEDULING = GroupVersion("resource.k8s.io", "v1"), GroupVersion("scheduling.k8s.io", "v1beta1")
APPS, BATCH = GroupVersion("apps", "v1"), GroupVersion("batch", "v1")
KINDS = {
    DRA.kind("ResourceClaim"): CLAIM_FIELDS,
    DRA.kind("ResourceSlice"): SLICE_FIELDS,
    DRA.kind("DeviceClass"): CLASS_FIELDS,
    GroupVersion("", "v1").kind("Pod"): POD_FIELDS,
    APPS.kind("Deployment"): TEMPLATE_FIELDS,
    BATCH.kind("Job"): JOB_FIELDS,
    BATCH.kind("CronJob"): CRON_JOB_FIELDS,
    SCHEDULING.kind("PodGroup"): POD_GROUP_FIELDS,
    SCHEDULING.kind("Workload"): WORKLOAD_FIELDS,
}
ROWS = [pytest.param(gvk, feature, id=f"{gvk.kind}-{feature.gate}") for gvk, rows in KINDS.items() for feature in rows]
OFF = FeatureGates.parse("DRAConsumableCapacity=false")


def holder_type(gvk: GroupVersionKind, segments: tuple[str, ...]) -> StructType:
    found: Type | None = load.kind_type(gvk)
    for segment in segments:
        if segment in ("[]", "{}"):
            assert isinstance(found, ListOf if segment == "[]" else MapOf)
            found = found.element
        else:
            assert isinstance(found, StructType)
            found = found.fields[segment].type
    assert isinstance(found, StructType)
    return found


@pytest.mark.parametrize(("gvk", "feature"), ROWS)
def test_gated_fields_exist(gvk: GroupVersionKind, feature: GatedFields) -> None:
    assert feature.gate in GATES
    for paths in feature.spec + feature.status:
        assert set(paths.names) <= set(holder_type(gvk, paths.segments).fields)


def claim(**request: object) -> Document:
    return {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **request}}]}}}


def test_fields_of_disabled_features_are_dropped_on_create() -> None:
    obj = claim(adminAccess=True, capacity={"requests": {"memory": "1Gi"}})
    drop_disabled_fields(CLAIM_FIELDS, obj, None, OFF)
    assert obj == claim(adminAccess=True)


def test_fields_in_use_are_kept_on_update() -> None:
    obj = claim(capacity={"requests": {"memory": "1Gi"}}, derivedAttributes=[{"name": "a/b"}])
    drop_disabled_fields(CLAIM_FIELDS, obj, claim(capacity={"requests": {"memory": "2Gi"}}), OFF)
    assert obj == claim(capacity={"requests": {"memory": "1Gi"}})


def test_status_fields_are_kept_when_the_spec_uses_the_feature() -> None:
    status = {"allocation": {"devices": {"results": [{"request": "gpu", "shareID": "a", "skipNodeOperations": ["*"]}]}}}
    capacity = {"requests": {"memory": "1Gi"}}
    obj = {**claim(capacity=capacity), "status": deepcopy(status)}
    drop_disabled_status_fields(CLAIM_FIELDS, obj, claim(capacity=capacity), OFF)
    assert obj["status"] == {"allocation": {"devices": {"results": [{"request": "gpu", "shareID": "a"}]}}}


VALUES: tuple[dict[str, object], ...] = ({}, {"capacity": None}, {"capacity": {}}, {"capacity": {"requests": {}}})
SHARES: tuple[dict[str, object], ...] = ({}, {"shareID": None}, {"shareID": "a"}, {"skipNodeOperations": ["*"]})


def plain(obj: Document, old: Document | None, *, status: bool) -> Document:
    """What is left of the object, by the rule itself."""
    result = deepcopy(obj)
    for feature in CLAIM_FIELDS:
        own = feature.status if status else feature.spec
        others = feature.spec + feature.status if status else feature.spec
        used = old is not None and any(paths.is_any_set(old) for paths in others)
        if OFF.enabled(feature.gate) or used:
            continue
        for paths in own:
            for holder in paths.holders(result):
                for name in paths.names:
                    holder.pop(name, None)
    return result


@pytest.mark.parametrize("status", [False, True])
def test_the_stored_object_decides_only_about_fields_that_are_there(*, status: bool) -> None:
    objects = [
        {**claim(**request), "status": {"allocation": {"devices": {"results": [{"request": "gpu", **result}]}}}}
        for request in VALUES
        for result in SHARES
    ]
    drop = drop_disabled_status_fields if status else drop_disabled_fields
    for old in objects:
        for obj in objects:
            expected = plain(obj, old, status=status)
            changed = deepcopy(obj)
            drop(CLAIM_FIELDS, changed, old, OFF)
            assert changed == expected
