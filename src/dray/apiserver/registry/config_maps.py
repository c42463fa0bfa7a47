"""ConfigMaps."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_configuration import validate_config_map, validate_config_map_update
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext


class ConfigMapStrategy(Strategy):
    """Keys, size, and immutability where it is wished."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Keys and size."""
        return validate_config_map(obj)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Keys, size, and nothing of an immutable one."""
        return validate_config_map_update(obj, old)


def _data(config_map: Document, now: datetime) -> int:
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
    columns=(NAME, Column("Data", "string", "How many entries there are.", _data), AGE),
)

DEFINITIONS: Final = (CONFIG_MAPS,)
