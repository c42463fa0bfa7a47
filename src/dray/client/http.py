"""The transport to a server over HTTP or HTTPS, with the access of any kubeconfig."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote as quote_path
from urllib.parse import urlencode

import orjson

from dray import __version__
from dray.api.document import Document
from dray.api.errors import APIError, ServiceUnavailableError, UnauthorizedError, error_from_status
from dray.client.credentials import ClientCertificate, Credentials, tls_context
from dray.client.interface import WatchBatch
from dray.client.kubeconfig import Access, Credential, KubeconfigError
from dray.client.older_versions import OlderVersions
from dray.client.responses import is_retriable
from dray.client.rest import Call, RestClient
from dray.lib.clock import Clock
from dray.runtime.http.bodies import Lines
from dray.runtime.http.client import HttpClient
from dray.runtime.http.connection import ClientResponse
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import ClientClosedError, ConnectError, HttpError, ResponseTimeoutError
from dray.runtime.http.proxy import parse_proxy
from dray.runtime.http.urls import REDIRECTS, Address, basic, parse_url, redirected
from dray.runtime.logs import fields

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
# As often as Go's client.
REDIRECTS_MAX: Final = 10
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
    """Implements `dray.client.rest.Transport`; connections are pooled and made when first needed.

    When the server cannot be reached or does not respond in time, the next one of the access is used from then on. A
    request that was not sent goes to the next server at once; whether another is repeated is decided as ever.
    """

    def __init__(
        self,
        access: Access,
        clock: Clock,
        *,
        user_agent: str = f"dray/{__version__}",
        on_warning: Callable[[str], None] | None = None,
        certificate: ClientCertificate | None = None,
    ) -> None:
        self._access = access
        self._clock = clock
        self._user_agent = user_agent
        self._on_warning = on_warning or _log_warning
        self._credentials = Credentials(access, clock, certificate)
        self._client: HttpClient | None = None
        self._address: Address | None = None
        self._servers = (access.server, *access.fallback_servers)
        # The position of the server that is used now.
        self._current = 0
        # Whether that server has responded, so that fail-over is logged once if none does.
        self._has_responded = False
        # The client certificate that the connections present.
        self._presented: tuple[bytes, bytes] = (b"", b"")
        self._closed = False

    @property
    def _server(self) -> str:
        return self._servers[self._current]

    async def send(self, call: Call) -> Document:
        """One request and its JSON response; reads are retried."""
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

    async def stream(self, call: Call) -> AsyncGenerator[WatchBatch, None]:
        """The events of a watch, a line each, however long; those that came in one piece together."""
        asked = float(call.query.get("timeoutSeconds") or WATCH_DEFAULT_SECONDS)
        lines = Lines()
        with await self._ask(call, None, asked + WATCH_GRACE_SECONDS) as response:
            try:
                await self._check(call, response)
            except UnauthorizedError:
                # The caller will try again, then with what the file or plugin says by then.
                self._credentials.refused()
                raise
            yield ()
            while piece := await self._more(call, response):
                try:
                    events = [orjson.loads(line) for line in lines.feed(piece)]
                    batch = [(event["type"], event["object"]) for event in events]
                except (orjson.JSONDecodeError, LookupError, TypeError) as error:
                    raise ServiceUnavailableError(f"{self._server}: the response is not a watch") from error
                if batch:
                    yield batch

    async def stream_bytes(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """A path's response as it comes, e.g. a Pod's log."""
        call = Call("get", path=path, query=query)
        with await self._ask(call, None, None) as response:
            await self._check(call, response)
            while piece := await self._more(call, response):
                yield piece

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _send_once(self, call: Call, body: bytes | None) -> Document:
        with await self._ask(call, body, call.timeout_seconds or REQUEST_TIMEOUT_SECONDS) as response:
            await self._check(call, response)
            data = await self._read(call, response)
        try:
            found: Document = orjson.loads(data) if data else {}
        except orjson.JSONDecodeError as error:
            raise ServiceUnavailableError(f"{self._server}: response is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise ServiceUnavailableError(f"{self._server}: response is not an object")
        return found

    async def _ask(self, call: Call, body: bytes | None, timeout_seconds: float | None) -> ClientResponse:
        """Send a request and wait for the head of its response; each server is tried at most once."""
        for left in reversed(range(len(self._servers))):
            used = self._current
            try:
                return await self._ask_current(call, body, timeout_seconds)
            except ConnectError as error:
                self._fail_over(used, error)
                if not left:
                    raise self._unavailable(call, error, used) from error
            except ResponseTimeoutError as error:
                self._fail_over(used, error)
                raise self._unavailable(call, error, used) from error
            except (HttpError, ValueError) as error:
                raise self._unavailable(call, error, used) from error
        raise AssertionError("there is no server")

    async def _ask_current(self, call: Call, body: bytes | None, timeout_seconds: float | None) -> ClientResponse:
        try:
            credential = await self._credentials.current()
            client, address = await self._client_for(credential)
        except (KubeconfigError, OSError) as error:
            raise UnauthorizedError(f"getting credentials: {error}") from error
        method, target = METHODS[call.verb], self._target(address, call)
        headers = self._headers(call, credential, address, has_body=body is not None)
        for _ in range(REDIRECTS_MAX):
            response = await client.send(method, target, headers, body, timeout_seconds)
            self._has_responded = True
            if response.status not in REDIRECTS:
                return response
            with response:
                target = _follow(address, method, target, response)
        raise HttpError(f"stopped after {REDIRECTS_MAX} redirects")

    def _fail_over(self, used: int, error: HttpError) -> None:
        """Use the next server, unless another request has found out already."""
        if used != self._current or len(self._servers) == 1:
            return
        self._current = (used + 1) % len(self._servers)
        old, self._client = self._client, None
        if old is not None:
            # Watches on it would wait for a server that does not respond.
            old.abort()
        level = logging.WARNING if self._has_responded else logging.DEBUG
        self._has_responded = False
        _log.log(
            level,
            "the API server cannot be used, the next one is tried",
            extra=fields(server=self._servers[used], next=self._servers[self._current], error=str(error)),
        )

    def _unavailable(self, call: Call, error: Exception, server: int | None = None) -> ServiceUnavailableError:
        """No response, or only a part of one."""
        if isinstance(error, ClientClosedError):
            return ServiceUnavailableError(str(error))
        asked = self._server if server is None else self._servers[server]
        return ServiceUnavailableError(f"{METHODS[call.verb]} {asked}: {error}")

    async def _client_for(self, credential: Credential) -> tuple[HttpClient, Address]:
        """The connections; new ones when the client certificate has been replaced."""
        if self._closed:
            raise ServiceUnavailableError("the client is closed")
        presented = (credential.certificate_data, credential.key_data)
        if self._client is None or self._address is None or presented != self._presented:
            old, address = self._client, self._parse_server()
            tls = tls_context(self._access, credential)
            proxy = parse_proxy(self._access.proxy_url) if self._access.proxy_url else None
            route = Route(address.origin, tls, server_name=self._access.tls_server_name, proxy=proxy)
            self._client, self._address, self._presented = HttpClient(route), address, presented
            if old is not None:
                await old.close()
        return self._client, self._address

    def _parse_server(self) -> Address:
        address = parse_url(self._server)
        # Paths are put behind it, and begin with a slash.
        return replace(address, target=address.target.rstrip("/"))

    def _target(self, address: Address, call: Call) -> str:
        resource = call.resource
        path = resource.path(call.namespace, call.name, call.subresource) if resource is not None else call.path
        query = f"?{urlencode(call.query)}" if call.query else ""
        return f"{address.target}{quote_path(path)}{query}"

    def _headers(
        self, call: Call, credential: Credential, address: Address, *, has_body: bool
    ) -> list[tuple[str, str]]:
        headers = [("Accept", _accept(call)), ("Accept-Encoding", "gzip"), ("User-Agent", self._user_agent)]
        if has_body:
            headers.append(("Content-Type", call.content_type))
        if credential.token:
            headers.append(("Authorization", f"Bearer {credential.token}"))
        elif self._access.username:
            headers.append(("Authorization", basic(self._access.username, self._access.password)))
        elif address.authorization:
            headers.append(("Authorization", address.authorization))
        if self._access.impersonate_user:
            headers.append(("Impersonate-User", self._access.impersonate_user))
        if self._access.impersonate_uid:
            headers.append(("Impersonate-Uid", self._access.impersonate_uid))
        headers.extend(("Impersonate-Group", group) for group in self._access.impersonate_groups)
        return headers

    async def _check(self, call: Call, response: ClientResponse) -> None:
        """Raise the error a response reports."""
        for header in response.headers("Warning"):
            for text in _WARNING.findall(header):
                self._on_warning(text.replace('\\"', '"').replace("\\\\", "\\"))
        if response.status >= _FAILURES:
            raise read_failure(response.status, await self._read(call, response), response.header("Retry-After"))

    async def _read(self, call: Call, response: ClientResponse) -> bytes:
        try:
            return await response.read()
        except HttpError as error:
            raise self._unavailable(call, error) from error

    async def _more(self, call: Call, response: ClientResponse) -> bytes:
        try:
            return await response.more()
        except HttpError as error:
            raise self._unavailable(call, error) from error


def read_failure(code: int, body: bytes, retry_after: str) -> APIError:
    """The error of a failed response, whatever its body is."""
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


def _follow(address: Address, method: str, target: str, response: ClientResponse) -> str:
    """Where to ask instead; credentials are for one server, and only a read is repeated as it was."""
    to = redirected(address.origin.url + target, response.status, response.header("Location"))
    there = parse_url(to)
    if there.origin != address.origin or method != "GET":
        raise HttpError(f"redirected to {to}: is the server's address right?")
    return there.target


def _accept(call: Call) -> str:
    if call.resource is None or not call.resource.metadata_only or call.verb not in ("get", "list", "watch"):
        return _JSON
    kind = "PartialObjectMetadataList" if call.verb == "list" else "PartialObjectMetadata"
    return f"{_JSON};as={kind};g=meta.k8s.io;v=v1,{_JSON}"


def _encode(body: Any) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return orjson.dumps(body)


def _log_warning(text: str) -> None:
    _log.warning("server warns: %s", text)


def http_client(
    access: Access,
    clock: Clock,
    *,
    user_agent: str = f"dray/{__version__}",
    certificate: ClientCertificate | None = None,
) -> RestClient:
    """A client of the server an access names; the certificate, if given, is presented in place of the access's."""
    return RestClient(OlderVersions(HttpTransport(access, clock, user_agent=user_agent, certificate=certificate)))
