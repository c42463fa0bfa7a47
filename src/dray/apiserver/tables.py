"""Builds Tables, which `kubectl get` prints. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.apiserver.endpoint import Endpoint

_INCLUDE = ("", "Metadata", "Object", "None")


def check_include_object(value: str) -> str:
    """Validate the `includeObject` parameter; the default is Metadata."""
    if value not in _INCLUDE:
        raise BadRequestError(
            f'Unable to convert to Table as requested: includeObject: Invalid value: "{value}": '
            "must be 'Metadata', 'Object', 'None', or empty"
        )
    return value or "Metadata"


def column_definitions(endpoint: Endpoint) -> list[Document]:
    """Return the column definitions of the resource."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in endpoint.definition.columns
    ]


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a Table."""

    api_version: str
    # `includeObject`.
    include: str
    # For ages.
    now: datetime


def table(
    endpoint: Endpoint,
    documents: Iterable[Document],
    options: TableOptions,
    *,
    list_metadata: Document,
    header: bool = True,
) -> Document:
    """Return a Table of served documents; in a watch only the first one has column definitions."""
    return {
        "kind": "Table",
        "apiVersion": options.api_version,
        "metadata": list_metadata,
        "columnDefinitions": column_definitions(endpoint) if header else None,
        "rows": [table_row(endpoint, document, options) for document in documents],
    }


def table_row(endpoint: Endpoint, document: Document, options: TableOptions) -> Document:
    """Return the row of a served document."""
    row: Document = {"cells": [column.cell(document, options.now) for column in endpoint.definition.columns]}
    if options.include == "Object":
        row["object"] = document
    elif options.include == "Metadata":
        row["object"] = partial_metadata(document, options.api_version)
    else:
        row["object"] = None
    return row


def partial_metadata(document: Document, api_version: str) -> Document:
    """Return a PartialObjectMetadata of the object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": document.get("metadata", {})}
