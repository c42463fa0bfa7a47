"""An authenticated user who sends hostile requests to an API server in the same process."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from dray.api.document import Document
from dray.api.errors import APIError
from dray.apiserver.call import Call, DocumentResult, ListResult, ObjectResult, Pacer
from dray.apiserver.encoding import encode_document_result, encode_object_result
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.http import Listener
from dray.apiserver.list_encoding import ListEncoder
from dray.apiserver.negotiation import JSON, Representation, negotiate
from dray.apiserver.request import UserInfo
from dray.apiserver.routes import parse_query, parse_request
from dray.apiserver.server import APIServer
from dray.runtime.http.requests import Request
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server

JSON_TYPE = "application/json"
YAML_TYPE = "application/yaml"
PROTOBUF_TYPE = "application/vnd.kubernetes.protobuf"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

# No request may take the server's only thread for longer; CPU time, since machines are shared.
CPU_SECONDS_MAX = 4.0

_ROOT = UserInfo("mallory", groups=("system:masters", "system:authenticated"))
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered, and the CPU time that it took."""

    code: int
    reason: str
    message: str
    body: bytes
    cpu_seconds: float


class TrustingListener(Listener):
    """Believes the name in the Authorization header."""

    def _authenticate(self, request: Request) -> UserInfo:
        return UserInfo(request.headers["authorization"], groups=("system:authenticated",))


class Attacker:
    """Sends requests with the rights of an administrator; any exception but an answer is a crash."""

    def __init__(self, server: APIServer) -> None:
        self._server = server

    def endpoints(self) -> Iterable[Endpoint]:
        """Return what the server serves."""
        return self._server.catalog.endpoints()

    async def send(
        self,
        method: str,
        target: str,
        body: bytes | Document | None = None,
        media: str = "",
        accept: str = "",
        pacer: Pacer | None = None,
    ) -> Answer:
        """Send one request, to its encoded answer; the pacer is that of a request which takes turns."""
        path, _, text = target.partition("?")
        query = parse_query(text)
        info = parse_request(method, path, query)
        call = Call(
            info=info,
            query=query,
            user=_ROOT,
            body=body,
            content_type=media or JSON_TYPE,
            user_agent="mallory/1",
            pacer=pacer,
        )
        wanted = negotiate(accept, listing=not info.name) if accept else JSON
        if "pretty" in query:
            wanted = Representation(wanted.media, wanted.transform, wanted.api_version, pretty=True)
        started = time.process_time()
        code, reason, message, encoded = 200, "", "", b""
        try:
            result = await self._server.execute(call)
            if isinstance(result, ObjectResult):
                code, encoded = result.status, encode_object_result(result, wanted, include="Metadata", now=_NOW)
            elif isinstance(result, DocumentResult):
                code, encoded = result.status, encode_document_result(result, wanted, include="Metadata", now=_NOW)
            elif isinstance(result, ListResult):
                encoder = ListEncoder(result, wanted, include="Metadata", now=_NOW)
                for _ in encoder.steps():
                    if pacer is not None and pacer.is_due():
                        await pacer.pause()
                encoded = encoder.body()
        except APIError as error:
            code, reason, message = error.code, error.reason, error.message
        return Answer(code, reason, message, encoded, time.process_time() - started)


@asynccontextmanager
async def attacked_server() -> AsyncIterator[Attacker]:
    """A server with the namespace `default` and the ConfigMap `victim` in it."""
    async with in_process_server(SystemClock(), random.Random(1), "default") as local:
        attacker = Attacker(local._server)
        victim = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "victim"}, "data": {"key": "value"}}
        assert (await attacker.send("POST", CONFIG_MAPS, victim)).code == 201
        yield attacker


def assert_refused(answer: Answer, code: int, *words: str) -> None:
    """The answer is this refusal, says why, and came in time."""
    assert answer.code == code, answer
    for word in words:
        assert word in answer.message, answer
    assert answer.cpu_seconds < CPU_SECONDS_MAX
