"""Audit events (audit.k8s.io/v1 Event) of one request."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from dray.api.document import Document
from dray.api.timestamps import format_micro_time
from dray.apiserver.audit.policy import API_VERSION, LEVEL_NAMES, Decision, Level
from dray.apiserver.authentication.authenticator import user_document
from dray.apiserver.call import Call

_SUCCESS_MAX: Final = 399


class AuditRecord(dict[str, str]):
    """What is known of one audited request; as a dictionary, its annotations."""

    def __init__(self, audit_id: str, decision: Decision, received: datetime) -> None:
        super().__init__()
        self.audit_id: Final = audit_id
        self.decision: Final = decision
        self.received: Final = received
        self.source_ips: list[str] = []
        self.uri = ""
        # The user who impersonates the caller, if any does.
        self.impersonator: Document | None = None
        self.request_object: Any = None
        self.response_object: Any = None

    @property
    def level(self) -> Level:
        """Return how much is recorded."""
        return self.decision.level

    def event(
        self, call: Call, stage: str, now: datetime, *, code: int = 0, status: Document | None = None
    ) -> Document:
        """Return the event of a stage."""
        info = call.info
        user = user_document(call.user)
        event: Document = {
            "kind": "Event",
            "apiVersion": API_VERSION,
            "level": LEVEL_NAMES[self.level],
            "auditID": self.audit_id,
            "stage": stage,
            "requestURI": self.uri,
            "verb": info.verb,
            "user": user if self.impersonator is None else self.impersonator,
        }
        if self.impersonator is not None:
            event["impersonatedUser"] = user
        event["sourceIPs"] = self.source_ips
        if call.user_agent:
            event["userAgent"] = call.user_agent
        if info.resource:
            # The body is read only after the request has been received.
            sent = self.request_object if stage != "RequestReceived" and info.verb != "patch" else None
            event["objectRef"] = _reference(call, sent)
        if code:
            event["responseStatus"] = _status(code, status)
        if stage != "RequestReceived":
            self._add_objects(event)
        event["requestReceivedTimestamp"] = format_micro_time(self.received)
        event["stageTimestamp"] = format_micro_time(now)
        if self and stage != "RequestReceived":
            event["annotations"] = dict(self)
        return event

    def _add_objects(self, event: Document) -> None:
        if self.level >= Level.REQUEST and self.request_object is not None:
            event["requestObject"] = self._shown(self.request_object)
        if self.level >= Level.REQUEST_RESPONSE and self.response_object is not None:
            event["responseObject"] = self._shown(self.response_object)

    def _shown(self, value: Any) -> Any:
        if not self.decision.omit_managed_fields or not isinstance(value, dict):
            return value
        if isinstance(value.get("items"), list):
            return value | {"items": [self._shown(item) for item in value["items"]]}
        metadata = value.get("metadata")
        if not isinstance(metadata, dict) or "managedFields" not in metadata:
            return value
        return value | {"metadata": {name: item for name, item in metadata.items() if name != "managedFields"}}


def _reference(call: Call, sent: Any) -> Document:
    """Return which object a request is about, completed by the object that was sent."""
    info = call.info
    metadata = sent.get("metadata") if isinstance(sent, dict) else None
    known = metadata if isinstance(metadata, dict) else {}
    fields = {
        "resource": info.resource,
        "namespace": info.namespace or known.get("namespace"),
        "name": info.name or known.get("name"),
        "uid": known.get("uid"),
        "apiGroup": info.group,
        "apiVersion": info.version,
        "resourceVersion": known.get("resourceVersion"),
        "subresource": info.subresource,
    }
    # A body that is not valid may have anything here.
    return {name: value for name, value in fields.items() if value and isinstance(value, str)}


def _status(code: int, status: Document | None) -> Document:
    shown: Document = {"metadata": {}, "code": code}
    if status is not None and code > _SUCCESS_MAX:
        shown |= {name: status[name] for name in ("status", "message", "reason", "details") if status.get(name)}
    return shown
