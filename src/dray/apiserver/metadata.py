"""Fields of the metadata that the server sets, on create and on update. Pure."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any, Final

from dray.api.document import Document, key_of
from dray.api.errors import APIError, BadRequestError, ConflictError, InvalidError
from dray.api.field_errors import Path, invalid
from dray.api.timestamps import format_time
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import parse_revision

# Letters and digits that cannot form words or be mistaken for one another.
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_SUFFIX_COUNT: Final = len(_SUFFIX_ALPHABET) ** _SUFFIX_LENGTH
_SUFFIX_BITS: Final = _SUFFIX_COUNT.bit_length()
_GENERATED_NAME_LENGTH_MAX: Final = 63
# Set only by the server; dropped from objects to create.
_SERVER_FIELDS: Final = frozenset({"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"})
# An update keeps the stored values, whatever it says.
_KEPT_FIELDS: Final = ("creationTimestamp", "deletionTimestamp")
_VERSION_DIGITS_MAX: Final = 20
# Where kube-apiserver keeps objects whose keys do not begin with the name of their resource.
_STORED_UNDER: Final = {"endpoints": "services/endpoints", "services": "services/specs", "nodes": "minions"}
_UUID_BITS: Final = 128
_DUPLICATE_OWNERS: Final = (
    ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject "
    "such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
)


class VersionOnCreateError(APIError):
    """A create with a resourceVersion; kube-apiserver returns this message without a reason."""

    code = 500
    reason = ""

    def __init__(self) -> None:
        super().__init__("resourceVersion should not be set on objects to be created")


def generated_name(prefix: str, source: random.Random) -> str:
    """Append a random suffix to a `generateName`."""
    name = prefix[: _GENERATED_NAME_LENGTH_MAX - _SUFFIX_LENGTH]
    # One number for all letters: one per letter takes three times as long. It is drawn as `randrange` does.
    number = _SUFFIX_COUNT
    while number >= _SUFFIX_COUNT:
        number = source.getrandbits(_SUFFIX_BITS)
    for _ in range(_SUFFIX_LENGTH):
        number, letter = divmod(number, len(_SUFFIX_ALPHABET))
        name += _SUFFIX_ALPHABET[letter]
    return name


def random_uid(source: random.Random) -> str:
    """Return a random (version 4) UUID."""
    bits = source.getrandbits(_UUID_BITS)
    bits = bits & ~(0xF << 76) | (4 << 76)
    bits = bits & ~(0x3 << 62) | (2 << 62)
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def prepare_new(
    document: Document, endpoint: Endpoint, namespace: str, name: str, now: datetime, source: random.Random
) -> None:
    """Set the server's fields of a new object; `name` is the name in the URL, or empty."""
    metadata: Document = document.get("metadata") or {}
    document["metadata"] = metadata
    metadata.pop("resourceVersion", None)
    check_place(metadata, endpoint, namespace, name)
    if name:
        metadata["name"] = name
    drop_server_fields(metadata)
    metadata["uid"] = random_uid(source)
    metadata["creationTimestamp"] = format_time(now)
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"], source)


def check_no_version(version: str | None) -> None:
    """Raise VersionOnCreateError if a new object has a resourceVersion; 0 and what is none are ignored."""
    if version and version.isascii() and version.isdigit() and int(version[:_VERSION_DIGITS_MAX]) > 0:
        raise VersionOnCreateError


def drop_server_fields(metadata: Document) -> None:
    """Remove what a new object cannot have, also if a webhook has added it."""
    for field in _SERVER_FIELDS.intersection(metadata):
        del metadata[field]


def check_place(metadata: Document, endpoint: Endpoint, namespace: str, name: str) -> None:
    """Check namespace and name against the URL, and set the namespace."""
    if endpoint.definition.namespaced:
        if metadata.get("namespace") not in (None, "", namespace):
            raise BadRequestError(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        metadata["namespace"] = namespace
    else:
        metadata.pop("namespace", None)
    if name and metadata.get("name") not in (None, "", name):
        raise BadRequestError(
            f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
        )


def merge_duplicate_owners(metadata: Document, warnings: list[str]) -> None:
    """Keep each owner reference once, with a warning for those that were repeated."""
    references = metadata.get("ownerReferences") or ()
    if len(references) <= 1:
        return
    kept: dict[frozenset[tuple[str, Any]], Document] = {}
    repeated = [
        str(reference.get("uid") or "")
        for reference in references
        # All fields are scalars.
        if kept.setdefault(frozenset(reference.items()), reference) is not reference
    ]
    if not repeated:
        return
    metadata["ownerReferences"] = list(kept.values())
    text = f"{_DUPLICATE_OWNERS}{', '.join(repeated)}"
    if text not in warnings:
        warnings.append(text)


def check_uid(document: Document, endpoint: Endpoint, *, wanted: str | None, stored: str) -> None:
    """Raise ConflictError if an update is for another UID than the stored one, which is empty for no object."""
    if not wanted or wanted == stored:
        return
    resource = endpoint.resource.resource
    key = f"/registry/{_STORED_UNDER.get(resource, resource)}/{key_of(document)}"
    raise ConflictError(
        endpoint.resource,
        document["metadata"]["name"],
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {stored}",
    )


def check_update(new: Document, old: Document, endpoint: Endpoint, *, unconditional: bool, uid_decides: bool) -> None:
    """Raise ConflictError unless the UID, if it decides, and resourceVersion of an update match the stored object."""
    metadata, stored = new["metadata"], old["metadata"]
    uid = metadata.get("uid")
    if uid_decides and uid != stored["uid"]:
        check_uid(old, endpoint, wanted=uid, stored=stored["uid"])
    version = metadata.get("resourceVersion")
    if not version and not unconditional:
        complaint = invalid(Path("metadata.resourceVersion"), 0, "must be specified for an update")
        raise InvalidError(endpoint.resource.group, endpoint.resource.resource, stored["name"], [complaint])
    if version and version != "0" and version != stored["resourceVersion"]:
        parse_revision(version)
        raise ConflictError(endpoint.resource, stored["name"])


def prepare_changed(new: Document, old: Document) -> None:
    """Copy the fields that the server sets from the stored object; that others were not changed is validated."""
    metadata, stored = new["metadata"], old["metadata"]
    for field in _KEPT_FIELDS:
        if field in stored:
            metadata[field] = stored[field]
    if not metadata.get("uid"):
        metadata["uid"] = stored["uid"]
    if "deletionGracePeriodSeconds" in stored:
        metadata.setdefault("deletionGracePeriodSeconds", stored["deletionGracePeriodSeconds"])
    metadata.pop("selfLink", None)
    metadata["resourceVersion"] = stored["resourceVersion"]
    if "generation" in stored:
        metadata["generation"] = stored["generation"]
    else:
        metadata.pop("generation", None)
