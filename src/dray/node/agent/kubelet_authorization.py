"""Decides who may use the node's HTTPS server, as kubelet does with webhook authentication and authorization.

The API server's client and administrators are known by their certificates. Others are authenticated by a certificate of
the cluster or by a bearer token (TokenReview), and need a right on a subresource of the Node (SubjectAccessReview).
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.access_reviews import review_access, review_token
from dray.client.interface import Client
from dray.lib.clock import Clock
from dray.lib.expiring_cache import ExpiringCache
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Handler, Reply, text

# The API server's client.
CALLERS: Final = frozenset({"kube-apiserver-kubelet-client"})
ADMINISTRATORS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
# kubelet's defaults of authentication.webhook.cacheTTL and authorization.webhook.cache*TTL.
TOKEN_SECONDS: Final = 120.0
ALLOWED_SECONDS: Final = 300.0
DENIED_SECONDS: Final = 30.0
# Answers that are kept; the oldest is asked for again when there are more.
ANSWERS_MAX: Final = 1024
# Longer ones are refused unseen.
TOKEN_BYTES_MAX: Final = 16 * 1024
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# The first right that the caller has is enough.
_SUBRESOURCES: Final = (
    ("/stats", ("stats",)),
    ("/metrics", ("metrics",)),
    ("/logs", ("log",)),
    ("/checkpoint", ("checkpoint",)),
    ("/pods", ("pods", "proxy")),
    ("/runningpods", ("pods", "proxy")),
    ("/healthz", ("healthz", "proxy")),
    ("/configz", ("configz", "proxy")),
    ("/statusz", ("statusz", "proxy")),
)
_OTHERS: Final = ("proxy",)


@dataclass(frozen=True, slots=True)
class _NoUser:
    """A token that is not valid; kept as an answer, too."""


_INVALID: Final = _NoUser()


def subresources_of(path: str) -> tuple[str, ...]:
    """Return the subresources of the Node that allow a request to the path, the narrowest first."""
    for prefix, subresources in _SUBRESOURCES:
        if path == prefix or path.startswith(f"{prefix}/"):
            return subresources
    return _OTHERS


def certificate_user(certificate: Mapping[str, Any], now: datetime) -> Document | None:
    """Return the user of a verified client certificate, by the last of its common names; None without one."""
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    # As in Go and in the API server: whoever signs a certificate and whoever admits it must mean the same name.
    user = next((value for key, value in reversed(pairs) if key == "commonName"), "")
    # The handshake checked this too, but a connection can outlive its certificate.
    if not user or now.timestamp() >= ssl.cert_time_to_seconds(certificate["notAfter"]):
        return None
    return {"username": user, "groups": [*(value for key, value in pairs if key == "organizationName"), AUTHENTICATED]}


class KubeletAuthorizer:
    """Authenticates and authorizes requests; answers of the API server are kept for a while."""

    def __init__(self, client: Client, clock: Clock, node_name: str) -> None:
        self._client = client
        self._clock = clock
        self._node_name = node_name
        # By the digest of the token, so that no token stays in memory.
        self._users: ExpiringCache[bytes, Document | _NoUser] = ExpiringCache(ANSWERS_MAX)
        self._decisions: ExpiringCache[tuple[str, ...], bool] = ExpiringCache(ANSWERS_MAX)

    def checked(self, handler: Handler) -> Handler:
        """Return a handler that refuses requests which are not allowed."""

        async def check(request: Request) -> Reply:
            return await self._refusal(request) or await handler(request)

        return check

    async def _refusal(self, request: Request) -> Reply | None:
        user = certificate_user(request.certificate, self._clock.now())
        if user is not None and (user["username"] in CALLERS or ADMINISTRATORS in user["groups"]):
            return None
        try:
            user = user or await self._token_user(request.headers.get("authorization", ""))
        except APIError:
            user = None
        if user is None:
            return text("Unauthorized", 401)
        verb, subresources = _VERBS.get(request.method, "get"), subresources_of(request.target.partition("?")[0])
        name, about = user.get("username") or "", f"verb={verb}, resource=nodes"
        try:
            for subresource in subresources:
                if await self._allows(user, verb, subresource):
                    return None
        except APIError:
            return text(f"Authorization error (user={name}, {about}, subresource={subresource})", 500)
        return text(f"Forbidden (user={name}, {about}, subresource(s)=[{' '.join(subresources)}])\n", 403)

    async def _token_user(self, header: str) -> Document | None:
        scheme, _, token = header.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > TOKEN_BYTES_MAX:
            return None
        key, now = hashlib.sha256(token.encode()).digest(), self._clock.monotonic()
        known = self._users.get(key, now)
        if known is None:
            known = await review_token(self._client, token) or _INVALID
            self._users.put(key, known, now + TOKEN_SECONDS)
        return None if isinstance(known, _NoUser) else known

    async def _allows(self, user: Document, verb: str, subresource: str) -> bool:
        key = (repr(sorted(user.items())), verb, subresource)
        now = self._clock.monotonic()
        known = self._decisions.get(key, now)
        if known is not None:
            return known
        attributes = {
            "verb": verb,
            "version": "v1",
            "resource": "nodes",
            "subresource": subresource,
            "name": self._node_name,
        }
        allowed = await review_access(self._client, user, {"resourceAttributes": attributes})
        self._decisions.put(key, allowed, now + (ALLOWED_SECONDS if allowed else DENIED_SECONDS))
        return allowed
