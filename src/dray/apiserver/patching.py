"""Applies the four patch types to a served document. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
import orjson

from dray.api.document import Document, copy_document
from dray.api.errors import APIError, BadRequestError, InvalidError, PatchFailedError
from dray.api.field_errors import Path, invalid
from dray.api.parse import ParseError, parse_json, parse_yaml
from dray.api.raw_numbers import fragment
from dray.api.shorthands import expand
from dray.api.strict import DecodeError, check_changed_fields
from dray.api.strict_order import as_warnings, by_levels, json_patch_errors
from dray.api.structural.pruning import normalize_metadata
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import WriteOptions
from dray.apiserver.ownership import reset_fields
from dray.apiserver.patch import go_text, json_patch, merge_patch, strategic
from dray.apiserver.patch.managed_fields.apply import apply as apply_managed
from dray.apiserver.patch.managed_fields.apply import object_text
from dray.apiserver.patch.managed_fields.update import FieldWrite
from dray.lib import processor_time

JSON_PATCH: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
PATCH_TYPES: Final = (JSON_PATCH, MERGE, STRATEGIC, APPLY)


class PatchRequest(msgspec.Struct, frozen=True):
    """A PATCH request."""

    endpoint: Endpoint
    type: str
    body: bytes | Document | list[Document]
    options: WriteOptions
    manager: str
    subresource: str
    warnings: list[str]

    @property
    def raw(self) -> bytes:
        """The encoded body; in-process clients send it decoded."""
        return self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)


def apply_patch(request: PatchRequest, document: Document | None, now: datetime) -> Document:
    """Return the patched document in the endpoint's version; `document` is None only for an apply that creates."""
    if request.type == APPLY:
        return _apply(request, document, now)
    assert document is not None
    processor_time.check()
    patched = _patched(request, document)
    processor_time.check()
    if not isinstance(patched.get("metadata"), dict):
        patched["metadata"] = {}
    _check(request, patched, document)
    return patched


def _patched(request: PatchRequest, document: Document) -> Document:
    if request.type == JSON_PATCH:
        return json_patch.apply(document, json_patch.decode(request.raw))
    if request.type == MERGE:
        return merge_patch.apply(document, merge_patch.decode(request.raw))
    # Custom resources have no strategic patches.
    patch = expand(strategic.decode(request.raw), request.endpoint.struct)
    return strategic.apply(document, patch, request.endpoint.struct)


def _check(request: PatchRequest, patched: Document, stored: Document) -> None:
    """Check the patched object against its schema; errors are reported as `fieldValidation` says."""
    validation = request.options.field_validation
    shown = _shown(request, patched) if validation == "Strict" else ""
    try:
        unknown = _normalize(request, patched, stored)
    except DecodeError as error:
        raise _invalid_patch(shown or _shown(request, patched), str(error)) from error
    if validation == "Ignore":
        return
    duplicates = _patch_errors(request)
    if not (unknown or duplicates):
        return
    if validation == "Strict":
        whole = shown if unknown else request.raw.decode(errors="replace")
        raise _invalid_patch(whole, f"strict decoding error: {', '.join(duplicates + _ordered(request, unknown))}")
    texts = as_warnings(duplicates + _ordered(request, unknown))
    # A patch is applied again after a lost race.
    request.warnings.extend(text for text in texts if text not in request.warnings)


def _normalize(request: PatchRequest, patched: Document, stored: Document | None) -> list[str]:
    """Bring the patched object into the form of stored ones; return the errors of its unknown fields."""
    endpoint = request.endpoint
    if stored is not None and endpoint.defaults_spec_alone and request.subresource == "status":
        # A spec that the patch leaves alone is not written. Other writes drop what a release has retired.
        return check_changed_fields(patched, stored, endpoint.struct)
    return endpoint.normalize(patched)


def _patch_errors(request: PatchRequest) -> list[str]:
    """Return the repeated keys of the patch, and the unknown members of its operations."""
    if not isinstance(request.body, bytes):
        return []
    patch, duplicates = parse_json(request.body)
    if request.type != JSON_PATCH:
        return duplicates
    known = all(operation is None or operation.keys() <= json_patch.MEMBERS for operation in patch or ())
    return [] if known and not duplicates else json_patch_errors(request.body)


def _ordered(request: PatchRequest, unknown: list[str]) -> list[str]:
    if request.endpoint.custom:
        return unknown
    return sorted(unknown) if request.type == STRATEGIC else by_levels(unknown)


def _shown(request: PatchRequest, patched: Document) -> str:
    """Return the value that an error quotes: the patched object, or for a strategic patch the patch itself."""
    if request.type == STRATEGIC:
        return go_text.plain(strategic.decode(request.raw))
    return orjson.dumps(patched, default=fragment).decode()


def _invalid_patch(value: str, detail: str) -> APIError:
    return InvalidError("", "", "", [invalid(Path("patch"), value, detail)])


def _apply(request: PatchRequest, document: Document | None, now: datetime) -> Document:
    applied, duplicates = _applied(request)
    endpoint = request.endpoint
    write = FieldWrite(
        struct=endpoint.struct,
        manager=request.manager,
        api_version=endpoint.api_version,
        now=now,
        subresource=request.subresource,
        reset=reset_fields(endpoint, request.subresource),
        convert=endpoint.convert_served,
    )
    if not endpoint.custom:
        applied = expand(applied, endpoint.struct)
    result = apply_managed(document, applied, write, force=request.options.force, kind=endpoint.definition.kind)
    # Only now: the manager owns the fields as it sent them, those with null or another zero value included.
    try:
        if endpoint.custom:
            # It has no unknown fields; null where it is no value is refused by validation.
            normalize_metadata(result)
        else:
            _normalize(request, result, _with_own_fields(document, result))
    except DecodeError as error:
        raise PatchFailedError(f"failed to convert new object ({object_text(applied)}): {error}") from error
    _report_duplicates(request, duplicates)
    return result


def _with_own_fields(stored: Document | None, result: Document) -> Document | None:
    """Return the stored object, with the metadata of an apply that has changed nothing else there than managedFields.

    Those are the server's own, so that the metadata need not be checked again.
    """
    if stored is None:
        return None
    before, after = stored["metadata"], result["metadata"]
    is_kept = all(name == "managedFields" or before.get(name) is value for name, value in after.items())
    return stored | {"metadata": after} if is_kept else stored


def _applied(request: PatchRequest) -> tuple[Document, Sequence[str]]:
    if isinstance(request.body, dict):
        # It is the in-process client's own, and applied again after a conflict. Defaults and admission change parts of
        # the result that come from it, except in a status.
        return request.body if request.subresource == "status" else copy_document(request.body), ()
    try:
        value, duplicates = parse_yaml(request.raw)
    except ParseError as error:
        raise BadRequestError(f"error decoding YAML: {error}") from error
    if not isinstance(value, dict):
        raise BadRequestError(f"error decoding YAML: json: cannot unmarshal {_json_type(value)} into Go value")
    return value, duplicates


def _report_duplicates(request: PatchRequest, duplicates: Sequence[str]) -> None:
    if not duplicates or request.options.field_validation == "Ignore":
        return
    if request.options.field_validation == "Strict":
        text = ", ".join(duplicates)
        raise BadRequestError(f"error strict decoding YAML: error converting YAML to JSON: {text}")
    request.warnings.extend(text for text in as_warnings(duplicates) if text not in request.warnings)


def _json_type(value: Any) -> str:
    return {list: "array", str: "string", bool: "bool"}.get(type(value), "number")
