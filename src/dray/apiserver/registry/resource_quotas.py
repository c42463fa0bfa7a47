"""Resource quotas."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_quota import validate_quota, validate_quota_status, validate_quota_update
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext, restore


class ResourceQuotaStrategy(Strategy):
    """Strategy of quotas; administrators own the limits, the controller the usage."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the usage."""
        obj["status"] = {}

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate names, amounts and scopes."""
        return validate_quota(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the usage."""
        restore(obj, old, "status")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the quota; its scopes are immutable."""
        return validate_quota_update(obj, old)


class ResourceQuotaStatusStrategy(Strategy):
    """Strategy of the status."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the limits."""
        restore(obj, old, "spec")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate names and amounts."""
        return validate_quota_status(obj)


def _usage(*, limits: bool) -> Callable[[Document, datetime], str]:
    def cell(quota: Document, now: datetime) -> str:
        status = quota.get("status") or {}
        used = status.get("used") or {}
        return ", ".join(
            f"{name}: {used.get(name, '0')}/{hard}"
            for name, hard in sorted((status.get("hard") or {}).items())
            if name.startswith("limits") == limits
        )

    return cell


RESOURCE_QUOTAS: Final = ResourceDefinition(
    group="",
    resource="resourcequotas",
    singular="resourcequota",
    kind="ResourceQuota",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=ResourceQuotaStrategy(),
    status_strategy=ResourceQuotaStatusStrategy(),
    short_names=("quota",),
    columns=(
        NAME,
        Column("Request", "string", "Used / hard amounts, except limits.", _usage(limits=False)),
        Column("Limit", "string", "Used / hard amounts of limits.", _usage(limits=True)),
        AGE,
    ),
)

DEFINITIONS: Final = (RESOURCE_QUOTAS,)
