"""Managers of replicas in the parent and in its Scale."""

from __future__ import annotations

from typing import Any

from dray.api.document import Document
from dray.apiserver.patch.managed_fields.scale import parent_entries, scale_entries

PATHS = {"example.com/v1": ("f:spec", "f:n")}
TIME = "2026-11-15T21:37:26Z"


def entry(manager: str, operation: str, fields: dict[str, Any], **members: str) -> dict[str, Any]:
    made: dict[str, Any] = {"manager": manager, "operation": operation, "apiVersion": "example.com/v1"}
    if "apiVersion" in members:
        made["apiVersion"] = members.pop("apiVersion")
    if "time" in members:
        made["time"] = members.pop("time")
    return {**made, "fieldsType": "FieldsV1", "fieldsV1": fields, **members}


REPLICAS: Document = {"f:spec": {"f:replicas": {}}}
APPLIER = entry("x", "Apply", {"f:spec": {"f:n": {}}}, time=TIME)
UPDATER = entry("unknown", "Update", {"f:spec": {".": {}, "f:color": {}}}, time=TIME)


def test_the_scale_shows_who_has_the_replicas() -> None:
    assert scale_entries([APPLIER, UPDATER], PATHS) == [
        entry("x", "Apply", REPLICAS, apiVersion="autoscaling/v1", time=TIME)
    ]
    assert scale_entries([UPDATER], PATHS) is None
    assert scale_entries([APPLIER], {}) is None


def test_who_scales_takes_the_replicas() -> None:
    scaled = [entry("unknown", "Update", REPLICAS, apiVersion="autoscaling/v1", time=TIME, subresource="scale")]
    assert parent_entries([APPLIER, UPDATER], scaled, PATHS, "example.com/v1") == [
        entry("unknown", "Update", {"f:spec": {"f:n": {}}}, subresource="scale"),
        UPDATER,
    ]


def test_who_has_them_still_keeps_its_entry() -> None:
    both = entry("x", "Update", {"f:spec": {"f:color": {}, "f:n": {}}}, time=TIME)
    shown = scale_entries([both], PATHS)
    assert parent_entries([both], shown, PATHS, "example.com/v1") == [both]


def test_who_loses_them_keeps_the_rest() -> None:
    both = entry("x", "Update", {"f:spec": {"f:color": {}, "f:n": {}}}, time=TIME)
    other = entry("y", "Update", {"f:spec": {"f:n": {}}}, apiVersion="example.com/v0")
    assert parent_entries([both, other], None, PATHS, "example.com/v1") == [
        entry("x", "Update", {"f:spec": {"f:color": {}}}, time=TIME)
    ]
