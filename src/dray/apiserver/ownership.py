"""Updates `metadata.managedFields` on writes that are not server-side applies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupResource
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.patch.managed_fields.field_set import NOTHING, FieldSet
from dray.apiserver.patch.managed_fields.update import FieldWrite, equal_except_times, update_managed_fields

_STATUS: Final = FieldSet.of(("f:status",))
_SPEC: Final = FieldSet.of(("f:spec",))
_SPEC_AND_METADATA: Final = FieldSet.of(("f:metadata",), ("f:spec",))
# What the status endpoints of some kinds ignore besides the spec.
_STATUS_ENDPOINTS: Final[Mapping[GroupResource, FieldSet]] = {
    GroupResource("", "pods"): FieldSet.of(
        ("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:ownerReferences"), ("f:spec",)
    ),
    GroupResource("apps", "deployments"): FieldSet.of(("f:metadata", "f:labels"), ("f:spec",)),
    GroupResource("apiextensions.k8s.io", "customresourcedefinitions"): _SPEC_AND_METADATA,
    GroupResource("cdi.k8s.io", "resourceclaims"): _SPEC_AND_METADATA,
    GroupResource("flowcontrol.apiserver.k8s.io", "flowschemas"): _SPEC_AND_METADATA,
    GroupResource("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"): _SPEC_AND_METADATA,
    GroupResource("resource.k8s.io", "devicetaintrules"): _SPEC_AND_METADATA,
    GroupResource("resource.k8s.io", "resourceclaims"): _SPEC_AND_METADATA,
    GroupResource("storage.k8s.io", "volumeattachments"): _SPEC_AND_METADATA,
}


def reset_fields(endpoint: Endpoint, subresource: str) -> FieldSet:
    """Return the fields that an endpoint ignores, and which therefore nobody owns who sends them there."""
    if endpoint.definition.status_strategy is None or subresource not in ("", "status"):
        return NOTHING
    if not subresource:
        return _STATUS
    return _SPEC_AND_METADATA if endpoint.custom else _STATUS_ENDPOINTS.get(endpoint.resource, _SPEC)


def stamp_create(document: Document, endpoint: Endpoint, *, manager: str, now: datetime) -> None:
    """Record the manager of a create as owner of all fields it set."""
    entries = update_managed_fields(
        None,
        document,
        FieldWrite(
            struct=endpoint.struct,
            manager=manager,
            api_version=endpoint.api_version,
            now=now,
            reset=reset_fields(endpoint, ""),
        ),
    )
    _set(document, entries)


def stamp_update(
    hub: Document, old: Document, endpoint: Endpoint, *, manager: str, now: datetime, subresource: str
) -> None:
    """Record the manager of an update as owner of the fields it changed; both documents are in the hub version."""
    before, after = old, hub
    if not endpoint.is_storage_version:
        before, after = endpoint.from_hub_copy(old), endpoint.from_hub_copy(hub)
    entries = update_managed_fields(
        before,
        after,
        FieldWrite(
            struct=endpoint.struct,
            manager=manager,
            api_version=endpoint.api_version,
            now=now,
            subresource=subresource,
            # The ignored fields have been restored already.
            reset=NOTHING,
            convert=endpoint.convert_served,
        ),
    )
    _set(hub, entries)


def differs_in_times_only(new: Document, old: Document) -> bool:
    """Return whether two objects differ only in the timestamps of managedFields."""
    # Fast path: most changes differ in more than the metadata.
    if new | {"metadata": None} != old | {"metadata": None}:
        return False
    ours: Document = new["metadata"]
    theirs: Document = old["metadata"]
    if not equal_except_times(ours.get("managedFields"), theirs.get("managedFields")):
        return False
    return ours | {"managedFields": None} == theirs | {"managedFields": None}


def _set(document: Document, entries: list[Document] | None) -> None:
    if entries:
        document["metadata"]["managedFields"] = entries
    else:
        document["metadata"].pop("managedFields", None)
