"""ResourcePoolStatusRequests: how full the pools of a driver are, answered once by a controller."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.resource_pool_status import (
    validate_pool_status_answer,
    validate_pool_status_request,
    validate_pool_status_request_update,
)
from dray.apiserver.registry.columns import NAME, since, text_cell
from dray.apiserver.registry.gated_fields import POOL_STATUS_FIELDS, drop_disabled_fields
from dray.apiserver.registry.resource.group import GROUP, restore_for_status
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext, restore

_NONE: Final = "-"
_COMPLETE: Final = "Complete"
_FAILED: Final = "Failed"


class PoolStatusRequestStrategy(Strategy):
    """Strategy of requests; the spec is immutable."""

    allow_unconditional_update = False

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Remove the status, and drop disabled fields."""
        obj.pop("status", None)
        context.warnings.extend(drop_disabled_fields(POOL_STATUS_FIELDS, obj, None, context.gates))

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the request."""
        return validate_pool_status_request(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status."""
        restore(obj, old, "status")
        drop_disabled_fields(POOL_STATUS_FIELDS, obj, old, context.gates)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Reject changes of the spec."""
        return validate_pool_status_request_update(obj, old)


class PoolStatusAnswerStrategy(Strategy):
    """Strategy of the status, which is written once."""

    allow_unconditional_update = False

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore spec and metadata."""
        restore_for_status(obj, old)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the answer."""
        return validate_pool_status_answer(obj, old)


# --- Table cells. ---


def _condition(request: Document, kind: str) -> Document | None:
    conditions = (request.get("status") or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind and item.get("status") == "True"), None)


def _sum(field: str) -> Callable[[Document, datetime], str]:
    def cell(request: Document, now: datetime) -> str:
        if _condition(request, _COMPLETE) is None:
            return _NONE
        return str(sum(pool.get(field) or 0 for pool in request["status"].get("pools") or ()))

    return cell


def _errors(request: Document, now: datetime) -> str:
    if _condition(request, _COMPLETE) is None:
        return _NONE
    return str(sum(bool(pool.get("validationError")) for pool in request["status"].get("pools") or ()))


def _pools(request: Document, now: datetime) -> str:
    if _condition(request, _COMPLETE) is None:
        return _NONE
    return str(request["status"].get("poolCount") or 0)


def _state(request: Document, now: datetime) -> str:
    if _condition(request, _FAILED) is not None:
        return _FAILED
    if _condition(request, _COMPLETE) is None:
        return "Pending"
    given, matching = len(request["status"].get("pools") or ()), request["status"].get("poolCount") or 0
    return _COMPLETE if given >= matching else f"{_COMPLETE} ({given}/{matching} pools)"


def _completed(request: Document, now: datetime) -> str:
    done = _condition(request, _COMPLETE) or _condition(request, _FAILED)
    return _NONE if done is None else since(done.get("lastTransitionTime"), now)


POOL_STATUS_REQUESTS: Final = ResourceDefinition(
    group=GROUP,
    resource="resourcepoolstatusrequests",
    singular="resourcepoolstatusrequest",
    kind="ResourcePoolStatusRequest",
    namespaced=False,
    versions=("v1alpha3",),
    storage_version="v1alpha3",
    strategy=PoolStatusRequestStrategy(),
    status_strategy=PoolStatusAnswerStrategy(),
    columns=(
        NAME,
        Column("Driver", "string", "The driver of the pools.", text_cell("spec", "driver")),
        Column("Total", "string", "Devices in all pools.", _sum("totalDevices")),
        Column("Available", "string", "Devices that can be allocated.", _sum("availableDevices")),
        Column("Allocated", "string", "Devices that claims have.", _sum("allocatedDevices")),
        Column("Unavailable", "string", "Devices with a taint.", _sum("unavailableDevices")),
        Column("Errors", "string", "Pools that could not be counted completely.", _errors),
        Column("Pools", "string", "Pools that match the request.", _pools),
        Column("Status", "string", "Whether the request is answered.", _state),
        Column("Completed", "string", "The time since the answer.", _completed),
    ),
)
