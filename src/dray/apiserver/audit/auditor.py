"""Records requests as the audit policy says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from dray.api.document import Document
from dray.api.protobuf import ProtobufError, decode_object
from dray.apiserver.audit.events import AuditRecord
from dray.apiserver.audit.log import AuditLog
from dray.apiserver.audit.policy import AuditPolicy, Level
from dray.apiserver.call import Call, DocumentResult, ListResult, ObjectResult, Result
from dray.apiserver.decoding import media_type
from dray.apiserver.encoding import list_document, served_document
from dray.apiserver.metadata import random_uid
from dray.apiserver.negotiation import Media
from dray.lib.clock import Clock

AUDIT_ID: Final = "audit-id"
# Requests whose body names the object; at the level Metadata too, it completes the reference.
_WHOLE_OBJECTS: Final = frozenset({"create", "update"})
# An identifier of the client's own is kept if it can stand in a header and a log.
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,64}")


class Auditor:
    """Decides which requests are recorded, and writes their events."""

    def __init__(self, policy: AuditPolicy, log: AuditLog, clock: Clock, random_source: Any) -> None:
        self._policy = policy
        self.log: Final = log
        self._clock = clock
        self._random = random_source

    def audit_id(self, headers: Mapping[str, str]) -> str:
        """Return the identifier of a request: the client's, or a new one."""
        given = headers.get(AUDIT_ID, "")
        return given if _IDENTIFIER.fullmatch(given) else random_uid(self._random)

    async def receive(self, call: Call, headers: Mapping[str, str], *, target: str, peer: str) -> str:
        """Begin to record an authenticated request, if the policy says so; return its identifier."""
        identifier = self.audit_id(headers)
        decision = self._policy.decide(call.user, call.info)
        if decision.level is Level.NONE:
            return identifier
        record = AuditRecord(identifier, decision, self._clock.now())
        record.uri = target
        forwarded = [part.strip() for part in headers.get("x-forwarded-for", "").split(",") if part.strip()]
        record.source_ips = [*forwarded, *([peer] if peer and peer not in forwarded else [])]
        call.audit = record
        info = call.info
        if info.resource and (decision.level >= Level.REQUEST or info.verb in _WHOLE_OBJECTS):
            record.request_object = _body(call)
        await self._emit(record, call, "RequestReceived")
        return identifier

    async def start(self, call: Call, code: int) -> None:
        """Record that the answer of a long-running request begins."""
        if isinstance(call.audit, AuditRecord):
            await self._emit(call.audit, call, "ResponseStarted", code=code)

    def keep(self, call: Call, result: Result) -> None:
        """Keep the result of a request for its last event, if that has it."""
        record = call.audit
        if not isinstance(record, AuditRecord) or record.level < Level.REQUEST_RESPONSE:
            return
        if isinstance(result, ObjectResult):
            record.response_object = served_document(result.endpoint, result.entry)
        elif isinstance(result, DocumentResult):
            record.response_object = result.document
        elif isinstance(result, ListResult):
            documents = [served_document(result.endpoint, entry) for entry in result.entries]
            record.response_object = list_document(result.endpoint, documents, result.metadata())

    async def complete(self, call: Call, code: int, status: Document | None = None, *, panic: bool = False) -> None:
        """Record the end of a request."""
        record = call.audit
        if isinstance(record, AuditRecord):
            if status is not None and record.level >= Level.REQUEST_RESPONSE:
                record.response_object = status
            await self._emit(record, call, "Panic" if panic else "ResponseComplete", code=code, status=status)

    async def _emit(
        self, record: AuditRecord, call: Call, stage: str, *, code: int = 0, status: Document | None = None
    ) -> None:
        if stage not in record.decision.omit_stages:
            await self.log.add(record.event(call, stage, self._clock.now(), code=code, status=status))


def _body(call: Call) -> Any:
    body = call.body
    if not isinstance(body, bytes) or not body:
        return body or None
    media = media_type(call.content_type)
    try:
        if media == Media.PROTOBUF:
            return decode_object(body)[1]
        return orjson.loads(body) if "json" in media or not media else body.decode(errors="replace")
    except (orjson.JSONDecodeError, ProtobufError):
        return None
