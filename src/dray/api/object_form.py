"""Whether a document has the form of its kind, for readers that do not decode it into typed structures. Pure.

A server stores nothing else, but its store may be older than it, or have been written by something else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.document import Document, copy_document
from dray.api.schema.model import StructType
from dray.api.strict import DecodeError, check_fields
from dray.api.types.meta_v1 import ObjectMeta


class FormError(ValueError):
    """A document that is no object of its kind."""


def formed(document: Any, struct: StructType | None) -> Document:
    """Return the document without nulls and the like, or as it is if the type does not know all of its fields.

    Without a type only the metadata has to be right. Raises `FormError` for a value of another type.
    """
    if not isinstance(document, dict):
        raise FormError("it is not an object")
    try:
        msgspec.convert(document.get("metadata"), ObjectMeta)
    except msgspec.ValidationError as error:
        raise FormError(f"metadata: {error}") from None
    if struct is None:
        return document
    normal = copy_document(document)
    try:
        unknown = check_fields(normal, struct)
    except DecodeError as error:
        raise FormError(str(error)) from None
    return document if unknown else normal
