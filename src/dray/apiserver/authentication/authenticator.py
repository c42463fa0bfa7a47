"""Authentication of requests by client certificate, then by bearer token, else as anonymous."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from cryptography import x509

from dray.api.bootstrap_tokens import GROUP as BOOTSTRAPPERS
from dray.api.bootstrap_tokens import USER_PREFIX, StoredToken, parse_token
from dray.api.document import Document
from dray.api.errors import UnauthorizedError
from dray.apiserver.authentication.certificates import identity_of
from dray.apiserver.authentication.service_accounts import (
    CREDENTIAL_ID,
    ForeignTokenError,
    ServiceAccountTokens,
    TokenError,
)
from dray.apiserver.authentication.static_tokens import StaticTokens, token_digest
from dray.apiserver.request import ANONYMOUS, UserInfo, with_authenticated_group

INVALID_BEARER: Final = "invalid bearer token"
# A connection has one certificate for its lifetime; more than this many at once are not expected.
CERTIFICATE_CACHE_SIZE_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class _CertificateUser:
    user: UserInfo
    expires: datetime


@dataclass(slots=True)
class Authenticator:
    """Authenticates credentials."""

    service_accounts: ServiceAccountTokens
    static_tokens: StaticTokens = field(default_factory=dict)
    allow_anonymous: bool = True
    # Bootstrap tokens by their id.
    bootstrap_tokens: Mapping[str, StoredToken] = field(default_factory=dict)
    # By the DER of a certificate (None when it has no user name), oldest first.
    _certificate_users: dict[bytes, _CertificateUser | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.static_tokens = {key: with_authenticated_group(user) for key, user in self.static_tokens.items()}

    def authenticate(
        self,
        *,
        authorization_header: str | None,
        peer_certificate: bytes | None,
        now: datetime,
    ) -> UserInfo:
        """Return the authenticated user; the TLS layer must have verified the certificate."""
        if peer_certificate:
            user = self._from_certificate(peer_certificate, now)
            if user is not None:
                return user
        token = _bearer_token(authorization_header)
        if token:
            return self.authenticate_token(token, self.service_accounts.audiences, now)[0]
        if not self.allow_anonymous:
            raise UnauthorizedError
        return ANONYMOUS

    def authenticate_token(
        self, token: str, audiences: Sequence[str], now: datetime
    ) -> tuple[UserInfo, tuple[str, ...]]:
        """Return the token's user and audiences; raises `UnauthorizedError` with the reason as its cause."""
        static = self.static_tokens.get(token_digest(token))
        if static is not None:
            # Static tokens have no audience: they are valid for the API server's own.
            accepted = tuple(name for name in self.service_accounts.audiences if name in audiences)
            if not accepted:
                raise UnauthorizedError from ForeignTokenError(INVALID_BEARER)
            return static, accepted
        bootstrap = self._from_bootstrap_token(token, now)
        if bootstrap is not None:
            return bootstrap, self.service_accounts.audiences
        try:
            user, accepted = self.service_accounts.verify(token, audiences, now)
        except TokenError as error:
            raise UnauthorizedError from error
        return user, accepted

    def _from_bootstrap_token(self, text: str, now: datetime) -> UserInfo | None:
        token = parse_token(text)
        stored = self.bootstrap_tokens.get(token.id) if token is not None else None
        if token is None or stored is None or not stored.authenticates or stored.is_expired(now):
            return None
        if not hmac.compare_digest(token.secret.encode(), stored.token.secret.encode()):
            return None
        groups = (BOOTSTRAPPERS, *stored.groups)
        return with_authenticated_group(UserInfo(f"{USER_PREFIX}{token.id}", groups=groups))

    def token_review(self, spec: Document, now: datetime) -> Document:
        """Return the `status` of a TokenReview."""
        audiences = tuple(spec.get("audiences") or self.service_accounts.audiences)
        try:
            user, accepted = self.authenticate_token(spec.get("token") or "", audiences, now)
        except UnauthorizedError as error:
            return {"user": {}, "error": _review_error(error.__cause__)}
        return {"authenticated": True, "user": user_document(user), "audiences": list(accepted)}

    def _from_certificate(self, certificate: bytes, now: datetime) -> UserInfo | None:
        certificate_user = self._parse(certificate)
        if certificate_user is None:
            return None
        # The handshake checked this too, but a connection can outlive its certificate.
        if now >= certificate_user.expires:
            raise UnauthorizedError
        return certificate_user.user

    def _parse(self, certificate: bytes) -> _CertificateUser | None:
        if certificate in self._certificate_users:
            return self._certificate_users[certificate]
        if len(self._certificate_users) >= CERTIFICATE_CACHE_SIZE_MAX:
            del self._certificate_users[next(iter(self._certificate_users))]
        certificate_user = self._certificate_users[certificate] = _from_der(certificate)
        return certificate_user


def user_document(user: UserInfo) -> Document:
    """Return the user in the form of authentication.k8s.io; empty fields are omitted."""
    document: Document = {"username": user.name}
    if user.uid:
        document["uid"] = user.uid
    if user.groups:
        document["groups"] = list(user.groups)
    if user.extra:
        document["extra"] = {key: list(values) for key, values in user.extra.items()}
    return document


def _bearer_token(header: str | None) -> str:
    """Return the token of a bearer header, empty for other schemes."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _from_der(certificate: bytes) -> _CertificateUser | None:
    loaded = x509.load_der_x509_certificate(certificate)
    identity = identity_of(loaded)
    if identity is None:
        return None
    fingerprint = hashlib.sha256(certificate).hexdigest()
    user = UserInfo(identity.user, groups=identity.groups, extra={CREDENTIAL_ID: (f"X509SHA256={fingerprint}",)})
    return _CertificateUser(with_authenticated_group(user), loaded.not_valid_after_utc)


def _review_error(cause: BaseException | None) -> str:
    if cause is None or isinstance(cause, ForeignTokenError):
        return INVALID_BEARER
    return f"[{INVALID_BEARER}, {cause}]"
