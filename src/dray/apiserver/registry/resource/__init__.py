"""The resources of resource.k8s.io, one module per resource."""

from __future__ import annotations

from typing import Final

from dray.apiserver.registry.resource.claim import CLAIMS, TEMPLATES
from dray.apiserver.registry.resource.device_class import CLASSES
from dray.apiserver.registry.resource.pool_status import POOL_STATUS_REQUESTS
from dray.apiserver.registry.resource.resource_slice import SLICES
from dray.apiserver.registry.resource.taint_rule import TAINT_RULES
from dray.apiserver.registry.strategy import ResourceDefinition

DEFINITIONS: Final[tuple[ResourceDefinition, ...]] = (
    CLASSES,
    TAINT_RULES,
    CLAIMS,
    TEMPLATES,
    POOL_STATUS_REQUESTS,
    SLICES,
)
