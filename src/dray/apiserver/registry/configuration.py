"""ConfigMaps, Secrets and ServiceAccounts."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupVersionKind
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_configuration import (
    validate_config_map,
    validate_config_map_update,
    validate_secret,
    validate_secret_update,
)
from dray.api.validation.core_v1_namespace import validate_kube_finalizers
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    Subresource,
    WriteContext,
)


class ConfigMapStrategy(Strategy):
    """Strategy of ConfigMaps."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate keys and size."""
        return validate_config_map(obj)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate keys, size and immutability."""
        return validate_config_map_update(obj, old)


def _config_map_data(config_map: Document, now: datetime) -> int:
    return len(config_map.get("data") or ()) + len(config_map.get("binaryData") or ())


CONFIG_MAPS: Final = ResourceDefinition(
    group="",
    resource="configmaps",
    singular="configmap",
    kind="ConfigMap",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=ConfigMapStrategy(),
    short_names=("cm",),
    columns=(NAME, Column("Data", "string", "The number of entries.", _config_map_data), AGE),
)


class SecretStrategy(Strategy):
    """Strategy of Secrets."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate keys, size and type."""
        return validate_secret(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the type if the update omits it."""
        if not obj.get("type"):
            obj["type"] = old.get("type")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the data, the immutable type, and the data of an immutable Secret."""
        return validate_secret_update(obj, old)


def _type(secret: Document) -> str:
    return secret.get("type") or ""


def _type_cell(secret: Document, now: datetime) -> str:
    return _type(secret)


def _secret_data(secret: Document, now: datetime) -> int:
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
        Column("Type", "string", "The type of the secret.", _type_cell),
        Column("Data", "string", "The number of entries.", _secret_data),
        AGE,
    ),
    selectable_fields={"type": _type},
)


class ServiceAccountStrategy(Strategy):
    """Strategy of service accounts; of their secrets, only the names are stored."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reduce the references to secrets to their names."""
        if obj.get("secrets"):
            obj["secrets"] = [{"name": secret["name"]} if secret.get("name") else {} for secret in obj["secrets"]]

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Reduce the references to secrets to their names."""
        self.prepare_for_create(obj, context)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the finalizers."""
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
    subresources=(Subresource("token", GroupVersionKind("authentication.k8s.io", "v1", "TokenRequest"), ("create",)),),
    short_names=("sa",),
    columns=(NAME, AGE),
)

DEFINITIONS: Final = (CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS)
