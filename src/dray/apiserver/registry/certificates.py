"""Certificate signing requests, which approvers decide on and signers fulfil."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.timestamps import format_time
from dray.api.validation.certificates_v1 import (
    CLIENT_ADDRESS,
    DECISIONS,
    validate_signing_request,
    validate_signing_request_update,
)
from dray.apiserver.registry.columns import AGE, NAME, human_duration, text_cell
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    Subresource,
    WriteContext,
    restore,
)


class SigningRequestStrategy(Strategy):
    """Strategy of requests; they carry who asked, and never change."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Record the requestor, and reset the status."""
        spec: Document = obj.setdefault("spec", {})
        for field in ("username", "uid", "groups", "extra"):
            spec.pop(field, None)
        user = context.user
        spec["username"] = user.name
        if user.uid:
            spec["uid"] = user.uid
        if user.groups:
            spec["groups"] = list(user.groups)
        extra = {key: list(values) for key, values in user.extra.items() if key != CLIENT_ADDRESS}
        if context.client_address:
            extra[CLIENT_ADDRESS] = [context.client_address]
        if extra:
            spec["extra"] = extra
        obj["status"] = {}

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the request."""
        return validate_signing_request(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore everything but metadata."""
        restore(obj, old, "spec", "status")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the request."""
        return validate_signing_request_update(obj, old)


class ApprovalStrategy(SigningRequestStrategy):
    """Strategy of approval: the conditions, those other than Approved and Denied as well."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore everything but the metadata and the conditions."""
        given = (obj.get("status") or {}).get("conditions") or ()
        restore(obj, old, "spec")
        obj["status"] = _with_conditions(old.get("status") or {}, given, old, context.now)


class SigningRequestStatusStrategy(SigningRequestStrategy):
    """Strategy of status: the certificate, and the conditions other than Approved and Denied."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the spec and the decision."""
        restore(obj, old, "spec")
        decided = [item for item in _conditions(old) if item.get("type") in DECISIONS]
        given = [item for item in _conditions(obj) if item.get("type") not in DECISIONS]
        obj["status"] = _with_conditions(obj.get("status") or {}, [*decided, *given], old, context.now)


def _conditions(request: Document) -> Sequence[Document]:
    return (request.get("status") or {}).get("conditions") or ()


def _with_conditions(status: Document, conditions: Sequence[Document], old: Document, now: datetime) -> Document:
    """Return a status with these conditions, whose times are set if they have none."""
    others = {name: value for name, value in status.items() if name != "conditions"}
    timed = [_with_times(item, _conditions(old), now) for item in conditions]
    return {**others, "conditions": timed} if timed else others


def _with_times(condition: Document, stored: Sequence[Document], now: datetime) -> Document:
    made, text = dict(condition), format_time(now)
    before = next((item for item in stored if item.get("type") == made.get("type")), None)
    if not made.get("lastUpdateTime"):
        made["lastUpdateTime"] = text
    if not made.get("lastTransitionTime"):
        same = before is not None and before.get("status") == made.get("status")
        made["lastTransitionTime"] = (before or {}).get("lastTransitionTime") or text if same else text
    return made


def _condition(request: Document, now: datetime) -> str:
    status = request.get("status") or {}
    kinds = [item.get("type") for item in status.get("conditions") or ()]
    shown = [kind for kind in ("Approved", "Denied", "Failed") if kind in kinds] or ["Pending"]
    return ",".join(shown + (["Issued"] if status.get("certificate") else []))


def _duration(request: Document, now: datetime) -> str:
    seconds = (request.get("spec") or {}).get("expirationSeconds")
    return "<none>" if seconds is None else human_duration(timedelta(seconds=seconds))


SIGNING_REQUESTS: Final = ResourceDefinition(
    group="certificates.k8s.io",
    resource="certificatesigningrequests",
    singular="certificatesigningrequest",
    kind="CertificateSigningRequest",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=SigningRequestStrategy(),
    status_strategy=SigningRequestStatusStrategy(),
    subresources=(Subresource("approval", strategy=ApprovalStrategy()),),
    short_names=("csr",),
    columns=(
        NAME,
        AGE,
        Column("SignerName", "string", "Who is asked.", text_cell("spec", "signerName")),
        Column("Requestor", "string", "Who asks.", text_cell("spec", "username")),
        Column("RequestedDuration", "string", "The lifetime that is asked for.", _duration),
        Column("Condition", "string", "The state of the request.", _condition),
    ),
    selectable_fields={"spec.signerName": lambda request: (request.get("spec") or {}).get("signerName") or ""},
)

DEFINITIONS: Final = (SIGNING_REQUESTS,)
