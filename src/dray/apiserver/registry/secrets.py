"""Secrets."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_configuration import validate_secret, validate_secret_update
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext


class SecretStrategy(Strategy):
    """Keys, size, and what the type demands."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Keys, size and type."""
        return validate_secret(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """The type may be left out of an update."""
        if not obj.get("type"):
            obj["type"] = old.get("type")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """The type is fixed, and so is the data of an immutable one."""
        return validate_secret_update(obj, old)


def _type(secret: Document) -> str:
    return secret.get("type") or ""


def _type_cell(secret: Document, now: datetime) -> str:
    return _type(secret)


def _data(secret: Document, now: datetime) -> int:
    return len(secret.get("data") or ())


SECRETS: Final = ResourceDefinition(
    group="",
    resource="secrets",
    singular="secret",
    kind="Secret",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=SecretStrategy(),
    columns=(
        NAME,
        Column("Type", "string", "What the secret is for.", _type_cell),
        Column("Data", "string", "How many entries there are.", _data),
        AGE,
    ),
    selectable_fields={"type": _type},
)

DEFINITIONS: Final = (SECRETS,)
