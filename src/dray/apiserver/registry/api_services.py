"""APIServices: those of other servers are stored; requests are not passed on to them, which their condition says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.timestamps import format_time
from dray.api.validation.apiregistration_v1 import validate_api_service
from dray.apiserver.registry.columns import AGE, NAME
from dray.apiserver.registry.generic import OWN_METADATA, GenericStatusStrategy
from dray.apiserver.registry.resource_metrics import GROUP as METRICS_GROUP
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext, restore

AVAILABLE: Final = "Available"
LOCAL: Final[Document] = {
    "type": AVAILABLE,
    "status": "True",
    "reason": "Local",
    "message": "Local APIServices are always available",
}
_SERVED_HERE: Final = LOCAL | {
    "message": "the API server serves this group version itself and does not call the service"
}


def condition(spec: Document) -> Document:
    """Return the condition of an APIService without its time."""
    service = spec.get("service")
    if service is None:
        return LOCAL
    if spec.get("group") == METRICS_GROUP:
        return _SERVED_HERE
    place = f"{service.get('namespace') or ''}/{service.get('name') or ''}"
    return {
        "type": AVAILABLE,
        "status": "False",
        "reason": "NotPassedOn",
        "message": f"this API server does not pass requests on to other API servers; service {place} is not called",
    }


class _APIServiceStrategy(Strategy):
    """Users own the spec; the condition follows from it."""

    name_rule = "path-segment"
    allow_unconditional_update = False

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        _set_condition(obj, context)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        return validate_api_service(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        restore(obj, old, "status")
        if condition(obj.get("spec") or {}) != condition(old.get("spec") or {}):
            _set_condition(obj, context)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        return validate_api_service(obj)

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        found = condition(obj["spec"])
        return () if found is LOCAL else (found["message"],)


def _set_condition(obj: Document, context: WriteContext) -> None:
    found = condition(obj.get("spec") or {})
    obj["status"] = {"conditions": [{"lastTransitionTime": format_time(context.now), **found}]}


def _service(obj: Document, _now: object) -> str:
    service = (obj.get("spec") or {}).get("service")
    return "Local" if service is None else f"{service.get('namespace')}/{service.get('name')}"


def _available(obj: Document, _now: object) -> str:
    for item in (obj.get("status") or {}).get("conditions") or ():
        if item.get("type") == AVAILABLE:
            return str(item["status"] if item["status"] == "True" else f"{item['status']} ({item.get('reason')})")
    return "Unknown"


API_SERVICES: Final = ResourceDefinition(
    group="apiregistration.k8s.io",
    resource="apiservices",
    singular="apiservice",
    kind="APIService",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=_APIServiceStrategy(),
    status_strategy=GenericStatusStrategy(restored_metadata=OWN_METADATA),
    categories=("api-extensions",),
    columns=(
        NAME,
        Column("Service", "string", "The reference to the service that hosts this API endpoint.", _service),
        Column("Available", "string", "Whether this service is available.", _available),
        AGE,
    ),
)

DEFINITIONS: Final = (API_SERVICES,)
