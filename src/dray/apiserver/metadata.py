"""What the server itself decides about an object's metadata, on create and on update."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Final

from dray.api.document import Document, key_of
from dray.api.errors import APIError, BadRequestError, ConflictError, InvalidError
from dray.api.field_errors import Path, invalid
from dray.api.timestamps import format_time
from dray.apiserver.endpoint import Endpoint

# Letters and digits that cannot form words or be mistaken for one another.
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_GENERATED_NAME_LENGTH_MAX: Final = 63
# Set by the server alone; what a creator sends in them is dropped.
_SERVER_FIELDS: Final = ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds")
# Carried over from the stored object whatever an update says.
_KEPT_FIELDS: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_UUID_BITS: Final = 128


class VersionOnCreateError(APIError):
    """A new object may not come with a resourceVersion; worded, without a reason, as kube-apiserver does."""

    code = 500
    reason = ""

    def __init__(self) -> None:
        super().__init__("resourceVersion should not be set on objects to be created")


def generated_name(prefix: str, source: random.Random) -> str:
    """Append a random suffix to a `generateName`."""
    name = prefix[: _GENERATED_NAME_LENGTH_MAX - _SUFFIX_LENGTH]
    # One number for all letters: drawing each by itself takes three times as long.
    number = source.randrange(len(_SUFFIX_ALPHABET) ** _SUFFIX_LENGTH)
    for _ in range(_SUFFIX_LENGTH):
        number, letter = divmod(number, len(_SUFFIX_ALPHABET))
        name += _SUFFIX_ALPHABET[letter]
    return name


def random_uid(source: random.Random) -> str:
    """A random (version 4) UUID."""
    bits = source.getrandbits(_UUID_BITS)
    bits = bits & ~(0xF << 76) | (4 << 76)
    bits = bits & ~(0x3 << 62) | (2 << 62)
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def prepare_new(
    document: Document, endpoint: Endpoint, namespace: str, name: str, now: datetime, source: random.Random
) -> None:
    """Give a new object its identity; `name` is that of the URL, when it has one."""
    metadata: Document = document.get("metadata") or {}
    document["metadata"] = metadata
    if metadata.get("resourceVersion"):
        raise VersionOnCreateError
    metadata.pop("resourceVersion", None)
    check_place(metadata, endpoint, namespace, name)
    if name:
        metadata["name"] = name
    for field in _SERVER_FIELDS:
        metadata.pop(field, None)
    metadata["uid"] = random_uid(source)
    metadata["creationTimestamp"] = format_time(now)
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"], source)


def check_place(metadata: Document, endpoint: Endpoint, namespace: str, name: str) -> None:
    """The object's namespace and name must agree with the URL's; the namespace is filled in."""
    if endpoint.definition.namespaced:
        if metadata.get("namespace") not in (None, "", namespace):
            raise BadRequestError(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        metadata["namespace"] = namespace
    if name and metadata.get("name") not in (None, "", name):
        raise BadRequestError(
            f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
        )


def check_update(new: Document, old: Document, endpoint: Endpoint, *, unconditional: bool) -> None:
    """The update must be about the object that is there, and based on its newest version when it says so."""
    metadata, stored = new["metadata"], old["metadata"]
    uid = metadata.get("uid")
    if uid and uid != stored["uid"]:
        key = f"/registry/{endpoint.resource.resource}/{key_of(old)}"
        raise ConflictError(
            endpoint.resource,
            stored["name"],
            f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored['uid']}",
        )
    version = metadata.get("resourceVersion")
    if not version and not unconditional:
        complaint = invalid(Path("metadata.resourceVersion"), 0, "must be specified for an update")
        raise InvalidError(endpoint.resource.group, endpoint.resource.resource, stored["name"], [complaint])
    if version and version != "0" and version != stored["resourceVersion"]:
        raise ConflictError(endpoint.resource, stored["name"])


def prepare_changed(new: Document, old: Document) -> None:
    """Carry over what an update may not touch."""
    metadata, stored = new["metadata"], old["metadata"]
    for field in _KEPT_FIELDS:
        if field in stored:
            metadata[field] = stored[field]
        else:
            metadata.pop(field, None)
    metadata.pop("selfLink", None)
    metadata["resourceVersion"] = stored["resourceVersion"]
    if "generation" in stored:
        metadata["generation"] = stored["generation"]
    if not metadata.get("generateName") and stored.get("generateName"):
        metadata["generateName"] = stored["generateName"]
