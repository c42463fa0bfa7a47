"""Calls webhooks over HTTPS, by URL or through a Service, with connections that are kept."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections.abc import Callable
from typing import Final

from dray.apiserver.admission.webhook_review import ANSWER_BYTES_MAX
from dray.apiserver.admission.webhooks import WebhookTarget
from dray.apiserver.service_resolver import ServiceResolver, ServiceUnresolvedError
from dray.runtime.http.client import HttpClient
from dray.runtime.http.dialing import Route
from dray.runtime.http.errors import ConnectError, HttpError, NoResponseError, ResponseTimeoutError
from dray.runtime.http.urls import Origin, parse_url

# Servers whose connections are kept; those of the least recently used one are closed.
CLIENTS_MAX: Final = 200
_FAILURE_MIN: Final = 400
_SERVER_FAILURE_MIN: Final = 500
_NOT_FOUND: Final = 404
_SHOWN_BYTES_MAX: Final = 2048
_HEADERS: Final = (
    ("Content-Type", "application/json"),
    ("Accept", "application/json"),
    ("User-Agent", "kube-apiserver-admission"),
)

_ClientKey = tuple[str, int, str, str]


class WebhookCallError(Exception):
    """A webhook could not be called, or its server refused the request."""


class WebhookClient:
    """Sends reviews to webhooks."""

    def __init__(self, resolver: ServiceResolver, open_client: Callable[..., HttpClient] = HttpClient) -> None:
        self._resolver = resolver
        self._open_client = open_client
        # Least recently used first.
        self._clients: dict[_ClientKey, HttpClient] = {}
        self._closing: set[HttpClient] = set()

    async def close(self) -> None:
        """Close all connections."""
        for client in (*self._clients.values(), *self._closing):
            await client.close()
        self._clients.clear()

    async def call(self, target: WebhookTarget, timeout_seconds: int, body: bytes) -> bytes:
        """Return the answer's body; raises `WebhookCallError` with Kubernetes' text."""
        shown = _shown_url(target)
        query = f"?timeout={timeout_seconds}s"
        try:
            async with asyncio.timeout(timeout_seconds):
                client = await self._client(target)
                response = await client.send("POST", _path(target) + query, _HEADERS, body)
                with response:
                    answer = await response.read(ANSWER_BYTES_MAX + 1)
                status = response.status
        except TimeoutError:
            raise WebhookCallError(f'Post "{shown}{query}": context deadline exceeded') from None
        except (ServiceUnresolvedError, ssl.SSLError, ValueError) as error:
            raise WebhookCallError(f'Post "{shown}{query}": {error}') from None
        except HttpError as error:
            raise WebhookCallError(f'Post "{shown}{query}": {_reason(error, _server_name(target))}') from None
        if status >= _FAILURE_MIN:
            raise WebhookCallError(_refusal(status, answer))
        if len(answer) > ANSWER_BYTES_MAX:
            raise WebhookCallError(f'Post "{shown}{query}": http: response body too large')
        return answer

    async def _client(self, target: WebhookTarget) -> HttpClient:
        name = _server_name(target)
        if target.url:
            origin = parse_url(target.url).origin
            host, port, header = origin.host, origin.port, ""
        else:
            host, port = await self._resolver.resolve(target.namespace, target.service, target.port)
            header = f"{name}:{target.port}"
        key = (host, port, name, target.ca_bundle)
        client = self._clients.pop(key, None)
        if client is None:
            route = Route(Origin("https", host, port), _tls(target.ca_bundle), server_name=name)
            client = self._open_client(route, host=header)
        self._clients[key] = client
        await self._evict()
        return client

    async def _evict(self) -> None:
        while len(self._clients) > CLIENTS_MAX:
            oldest = self._clients.pop(next(iter(self._clients)))
            self._closing.add(oldest)
            try:
                await oldest.close()
            finally:
                self._closing.discard(oldest)


def _server_name(target: WebhookTarget) -> str:
    """Return the name that the certificate of a webhook must have."""
    return parse_url(target.url).origin.host if target.url else f"{target.service}.{target.namespace}.svc"


def _path(target: WebhookTarget) -> str:
    if target.url:
        return parse_url(target.url).target.partition("?")[0]
    return f"/{target.path.lstrip('/')}"


def _shown_url(target: WebhookTarget) -> str:
    if target.url:
        return target.url
    path = target.path.lstrip("/")
    return f"https://{target.service}.{target.namespace}.svc:{target.port}/{path}"


def _tls(ca_bundle: str) -> ssl.SSLContext:
    if not ca_bundle:
        return ssl.create_default_context()
    try:
        pem = base64.b64decode(ca_bundle, validate=True).decode()
        context = ssl.create_default_context(cadata=pem)
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError, ValueError):
        raise WebhookCallError("unable to load root certificates: unable to parse bytes as PEM block") from None
    # Authorities of webhooks are often written by hand, without the extensions that a strict check wants.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _reason(error: HttpError, name: str) -> str:
    """Return an error of the connection in the words of Go."""
    text = str(error)
    if isinstance(error, ResponseTimeoutError) or "timed out" in text:
        return "context deadline exceeded"
    if isinstance(error, NoResponseError):
        return "EOF"
    if not isinstance(error, ConnectError):
        return text
    if "certificate verify failed" in text:
        return f"tls: failed to verify certificate: {_x509(text, name)}"
    return f"dial tcp {error.address}: connect: {text}" if "refused" in text else text


def _x509(text: str, name: str) -> str:
    lowered = text.lower()
    if "expired" in lowered or "not yet valid" in lowered:
        return "x509: certificate has expired or is not yet valid"
    if "mismatch" in lowered or "not valid for" in lowered:
        return f"x509: certificate is not valid for any names, but wanted to match {name}"
    return "x509: certificate signed by unknown authority"


def _refusal(status: int, body: bytes) -> str:
    shown = body[:_SHOWN_BYTES_MAX].decode(errors="replace").strip()
    if status == _NOT_FOUND:
        return "the server could not find the requested resource"
    if status >= _SERVER_FAILURE_MIN:
        return f'an error on the server ("{shown or "unknown"}") has prevented the request from succeeding'
    return (
        f"the server rejected our request for an unknown reason ({shown})"
        if shown
        else ("the server rejected our request for an unknown reason")
    )
