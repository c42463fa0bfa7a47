"""ControllerRevisions: the revision history of workloads."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, required
from dray.api.validation.meta_v1 import validate_immutable, validate_not_negative
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext

_DATA: Final = Path("data")
_REVISION: Final = Path("revision")


class ControllerRevisionStrategy(Strategy):
    """Strategy of ControllerRevisions; the data is immutable."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Require data and a revision number that is not negative."""
        data, errors = obj.get("data"), []
        if not isinstance(data, dict):
            errors.append(required(_DATA, "data is mandatory" if data is None else "data must be a valid JSON object"))
        return errors + validate_not_negative(obj.get("revision"), _REVISION)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Reject changes of the data."""
        return self.validate_create(obj, context) + validate_immutable(obj.get("data"), old.get("data"), _DATA)


def _controller(revision: Document, now: datetime) -> str:
    for owner in (revision.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("controller"):
            group = (owner.get("apiVersion") or "").rpartition("/")[0]
            kind = (owner.get("kind") or "").lower()
            return f"{kind}.{group}/{owner.get('name')}" if group else f"{kind}/{owner.get('name')}"
    return "<none>"


def _revision(revision: Document, now: datetime) -> int:
    return revision.get("revision") or 0


CONTROLLER_REVISIONS: Final = ResourceDefinition(
    group="apps",
    resource="controllerrevisions",
    singular="controllerrevision",
    kind="ControllerRevision",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=ControllerRevisionStrategy(),
    columns=(
        NAME,
        Column("Controller", "string", "The controller of the revision.", _controller),
        Column("Revision", "string", "The revision number.", _revision),
        AGE,
    ),
)

DEFINITIONS: Final = (CONTROLLER_REVISIONS,)
