"""Service accounts."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_namespace import validate_kube_finalizers
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import ResourceDefinition, Strategy, WriteContext


class ServiceAccountStrategy(Strategy):
    """An identity for pods; there is little to get wrong."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Finalizers have proper names."""
        return validate_kube_finalizers(obj)


SERVICE_ACCOUNTS: Final = ResourceDefinition(
    group="",
    resource="serviceaccounts",
    singular="serviceaccount",
    kind="ServiceAccount",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=ServiceAccountStrategy(),
    subresources=("token",),
    short_names=("sa",),
    columns=(NAME, AGE),
)

DEFINITIONS: Final = (SERVICE_ACCOUNTS,)
