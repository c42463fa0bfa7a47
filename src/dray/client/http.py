"""The transport to a server over HTTP or HTTPS, with the access of any kubeconfig."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote as quote_path
from urllib.parse import urlencode

import aiohttp
import orjson
from yarl import URL

from dray import __version__
from dray.api.document import Document
from dray.api.errors import APIError, ServiceUnavailableError, UnauthorizedError, error_from_status
from dray.client.answers import is_retriable
from dray.client.files import Credentials, tls_context
from dray.client.kubeconfig import Access, Credential, KubeconfigError
from dray.client.rest import Call, RestClient
from dray.lib.clock import Clock

_log = logging.getLogger(__name__)

METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}
READS: Final = frozenset({"get", "list"})
REQUEST_TIMEOUT_SECONDS: Final = 60.0
CONNECT_TIMEOUT_SECONDS: Final = 10.0
# A server ends a watch when asked to; only a dead connection keeps it longer.
WATCH_GRACE_SECONDS: Final = 30.0
WATCH_DEFAULT_SECONDS: Final = 3600.0
# Reads are tried this often; with the waits below a restarting server is given a second or two.
ATTEMPTS_MAX: Final = 5
RETRY_FIRST_SECONDS: Final = 0.1
RETRY_AFTER_MAX_SECONDS: Final = 10.0

_TOO_MANY_REQUESTS: Final = 429
_UNAUTHORIZED: Final = 401
_FAILURES: Final = 400
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Gone",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_JSON: Final = "application/json"
_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


class HttpTransport:
    """Implements `dray.client.rest.Transport`; connections are pooled and made when first needed."""

    def __init__(
        self,
        access: Access,
        clock: Clock,
        *,
        user_agent: str = f"dray/{__version__}",
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        self._access = access
        self._clock = clock
        self._user_agent = user_agent
        self._on_warning = on_warning or _log_warning
        self._credentials = Credentials(access, clock)
        self._session: aiohttp.ClientSession | None = None
        # The client certificate the session's connections present.
        self._presented: tuple[bytes, bytes] = (b"", b"")
        self._closed = False

    async def send(self, call: Call) -> Document:
        """One request and its JSON answer; reads are retried."""
        body = _encode(call.body)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._send_once(call, body)
            except APIError as error:
                wait = _retry_wait(call.verb, error, attempt)
                if error.code == _UNAUTHORIZED and attempt == 1 and self._credentials.refused():
                    continue
                if wait is None:
                    raise
                await self._clock.sleep(wait)

    async def stream(self, call: Call) -> AsyncGenerator[tuple[str, Document], None]:
        """The events of a watch, a line each, however long."""
        asked = float(call.query.get("timeoutSeconds") or WATCH_DEFAULT_SECONDS)
        async with self._open(call, None, asked + WATCH_GRACE_SECONDS) as response:
            try:
                await self._check(response)
            except UnauthorizedError:
                # The caller will try again, then with what the file or plugin says by then.
                self._credentials.refused()
                raise
            async for line in _lines(response):
                event = orjson.loads(line)
                yield event["type"], event["object"]

    async def stream_bytes(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """A path's answer as it comes, e.g. a Pod's log."""
        async with self._open(Call("get", path=path, query=query), None, None) as response:
            await self._check(response)
            async for chunk in response.content.iter_any():
                yield chunk

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send_once(self, call: Call, body: bytes | None) -> Document:
        async with self._open(call, body, REQUEST_TIMEOUT_SECONDS) as response:
            data = await self._check(response) or await response.read()
        try:
            answer: Document = orjson.loads(data) if data else {}
        except orjson.JSONDecodeError as error:
            raise ServiceUnavailableError(f"{self._access.server}: answer is not JSON: {error}") from error
        return answer

    @asynccontextmanager
    async def _open(
        self, call: Call, body: bytes | None, timeout_seconds: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            credential = await self._credentials.current()
            session = await self._session_for(credential)
        except (KubeconfigError, OSError) as error:
            raise UnauthorizedError(f"getting credentials: {error}") from error
        try:
            async with session.request(
                METHODS[call.verb],
                self._url(call),
                data=body,
                headers=self._headers(call, credential, has_body=body is not None),
                timeout=aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_TIMEOUT_SECONDS),
                proxy=self._access.proxy_url or None,
                server_hostname=self._access.tls_server_name or None,
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError) as error:
            # A timeout of the session is an OSError too: either way there was no answer.
            text = str(error) or type(error).__name__
            raise ServiceUnavailableError(f"{METHODS[call.verb]} {self._access.server}: {text}") from error

    async def _session_for(self, credential: Credential) -> aiohttp.ClientSession:
        """The session; a new one when a plugin brought a new certificate."""
        if self._closed:
            raise ServiceUnavailableError("the client is closed")
        presented = (credential.certificate_data, credential.key_data)
        if self._session is None or presented != self._presented:
            old, self._presented = self._session, presented
            # Watches each keep a connection of their own: no limit.
            context = tls_context(self._access, credential)
            connector = aiohttp.TCPConnector(limit=0, ssl=context if context is not None else True)
            # API servers know no cookies, and looking for some takes a twentieth of a request's time.
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar, auto_decompress=True)
            if old is not None:
                await old.close()
        return self._session

    def _url(self, call: Call) -> URL:
        resource = call.resource
        path = resource.path(call.namespace, call.name, call.subresource) if resource is not None else call.path
        query = f"?{urlencode(call.query)}" if call.query else ""
        return URL(f"{self._access.server}{quote_path(path)}{query}", encoded=True)

    def _headers(self, call: Call, credential: Credential, *, has_body: bool) -> list[tuple[str, str]]:
        headers = [("Accept", _accept(call)), ("User-Agent", self._user_agent)]
        if has_body:
            headers.append(("Content-Type", call.content_type))
        if credential.token:
            headers.append(("Authorization", f"Bearer {credential.token}"))
        elif self._access.username:
            pair = f"{self._access.username}:{self._access.password}".encode()
            headers.append(("Authorization", f"Basic {base64.b64encode(pair).decode()}"))
        if self._access.impersonate_user:
            headers.append(("Impersonate-User", self._access.impersonate_user))
        if self._access.impersonate_uid:
            headers.append(("Impersonate-Uid", self._access.impersonate_uid))
        headers.extend(("Impersonate-Group", group) for group in self._access.impersonate_groups)
        return headers

    async def _check(self, response: aiohttp.ClientResponse) -> bytes:
        """Raise the error an answer reports."""
        for header in response.headers.getall("Warning", ()):
            for text in _WARNING.findall(header):
                self._on_warning(text.replace('\\"', '"').replace("\\\\", "\\"))
        if response.status < _FAILURES:
            return b""
        raise read_failure(response.status, await response.read(), response.headers.get("Retry-After", ""))


def read_failure(code: int, body: bytes, retry_after: str) -> APIError:
    """The error of a failed answer, whatever its body is."""
    status: Any = None
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        text = body.decode(errors="replace").strip()[:1024] or "the server gave no reason"
        status = {"code": code, "reason": _REASONS.get(code, ""), "message": text}
    error = error_from_status(status)
    if retry_after.isdigit() and error.retry_after_seconds is None:
        error.retry_after_seconds = int(retry_after)
    return error


def _retry_wait(verb: str, error: APIError, attempt: int) -> float | None:
    """How long to wait before trying again; None when that is up to the caller."""
    if attempt >= ATTEMPTS_MAX:
        return None
    # A request refused with 429 was not carried out, so even writes may be repeated; a broken one may have been.
    if error.code != _TOO_MANY_REQUESTS and not (verb in READS and is_retriable(error)):
        return None
    if error.retry_after_seconds is not None:
        return min(float(error.retry_after_seconds), RETRY_AFTER_MAX_SECONDS)
    return RETRY_FIRST_SECONDS * 2.0 ** (attempt - 1)


def _accept(call: Call) -> str:
    if call.resource is None or not call.resource.metadata_only or call.verb not in ("get", "list", "watch"):
        return _JSON
    kind = "PartialObjectMetadataList" if call.verb == "list" else "PartialObjectMetadata"
    return f"{_JSON};as={kind};g=meta.k8s.io;v=v1,{_JSON}"


def _encode(body: Any) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return orjson.dumps(body)


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Split on newlines without a bound on their distance: the library's own reader has one."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line


def _log_warning(text: str) -> None:
    _log.warning("server warns: %s", text)


def http_client(access: Access, clock: Clock, *, user_agent: str = f"dray/{__version__}") -> RestClient:
    """A client of the server an access names."""
    return RestClient(HttpTransport(access, clock, user_agent=user_agent))
