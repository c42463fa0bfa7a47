"""Service account tokens: issuing and verification. Tokens are signed, expire, and may be bound to objects.

Objects are read through a `Lookup`; the time and new ids are arguments.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dray.api import field_errors
from dray.api.document import Document, GroupResource, GroupVersionKind, NamespacedName
from dray.api.errors import BadRequestError, ConflictError, InvalidError, NotFoundError
from dray.api.field_errors import FieldError, Path
from dray.apiserver.authentication.certificates import load_private_key
from dray.apiserver.authentication.static_tokens import token_digest
from dray.apiserver.request import UserInfo, with_authenticated_group

DEFAULT_ISSUER: Final = "https://kubernetes.default.svc"
ALGORITHM: Final = "ES256"
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){2}")
EXPIRATION_SECONDS_DEFAULT: Final = 3600
EXPIRATION_SECONDS_MIN: Final = 600
EXPIRATION_SECONDS_MAX: Final = 1 << 32
# Kubernetes has no default maximum; ours is a year, like that of client certificates.
LIFETIME_SECONDS_DEFAULT_MAX: Final = 365 * 24 * 3600
# Grace period after the deletion time of a bound object before its tokens become invalid.
DELETION_LEEWAY: Final = timedelta(seconds=60)
# One entry is about 2 KiB; enough for every service account of a large cluster.
CACHE_SIZE_MAX: Final = 8192

CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_NODE_UID: Final = "authentication.kubernetes.io/node-uid"

# Finds an object by its resource (plural) and key; None when there is none. Must not block.
Lookup: TypeAlias = Callable[[str, NamespacedName], Document | None]

_UID_CHANGED: Final = (
    "the UID in the bound object reference ({uid}) does not match the UID in record. "
    "The object might have been deleted and then recreated"
)


class TokenError(Exception):
    """An invalid token of this issuer; the message is the reason."""


class ForeignTokenError(TokenError):
    """A token of another issuer."""


@dataclass(frozen=True, slots=True)
class BoundObject:
    """An object that must still exist, with the same uid, for a token to be valid."""

    resource: str
    key: NamespacedName
    uid: str


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The claims of a token with a valid signature; whether it is valid now is checked at each use."""

    user: UserInfo
    audiences: tuple[str, ...]
    expires: datetime
    not_before: datetime
    bound: tuple[BoundObject, ...]


@dataclass(slots=True)
class ServiceAccountTokens:
    """Issues and verifies the cluster's service account tokens."""

    key: bytes
    lookup: Lookup
    new_id: Callable[[], str]
    issuer: str = DEFAULT_ISSUER
    # The audiences of the API server; the issuer when empty.
    audiences: tuple[str, ...] = ()
    lifetime_seconds_max: int = LIFETIME_SECONDS_DEFAULT_MAX
    _private: ec.EllipticCurvePrivateKey = field(init=False)
    _public: ec.EllipticCurvePublicKey = field(init=False)
    _key_id: str = field(init=False)
    # Verified signatures by the token's digest, oldest first.
    _verified: dict[bytes, VerifiedToken] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._private = load_private_key(self.key)
        self._public = self._private.public_key()
        self._key_id = _key_id_of(self._public)
        self.audiences = self.audiences or (self.issuer,)

    def issue_token(
        self, service_account: Document, spec: Document, now: datetime, bound_object: Document | None = None
    ) -> tuple[str, datetime]:
        """Sign a token for a TokenRequest's spec; the expiration is what was granted, which may be less.

        `bound_object` is the object that the spec binds the token to, if it is newer than what `lookup` finds.
        """
        seconds = _requested_seconds(spec)
        seconds = min(seconds, self.lifetime_seconds_max)
        issued = int(now.timestamp())
        metadata = service_account["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        about: Document = {"namespace": namespace, "serviceaccount": {"name": name, "uid": metadata["uid"]}}
        about.update(self._bound_claims(service_account, spec.get("boundObjectRef"), bound_object))
        claims = {
            "aud": self.audiences_for(spec),
            "exp": issued + seconds,
            "iat": issued,
            "iss": self.issuer,
            "jti": self.new_id(),
            "kubernetes.io": dict(sorted(about.items())),
            "nbf": issued,
            "sub": user_name(namespace, name),
        }
        # Imported lazily: it imports an HTTP client.
        import jwt

        token = jwt.encode(claims, self._private, ALGORITHM, headers={"kid": self._key_id})
        return token, datetime.fromtimestamp(issued + seconds, UTC)

    def audiences_for(self, spec: Document) -> list[str]:
        """Return the audiences of a TokenRequest; the API server's own by default."""
        return list(spec.get("audiences") or self.audiences)

    def verify(self, token: str, audiences: Sequence[str], now: datetime) -> tuple[UserInfo, tuple[str, ...]]:
        """Return the token's user and matching audiences; raises `TokenError`."""
        digest = token_digest(token)
        verified = self._verified.get(digest)
        if verified is None:
            verified = self._check_signature(token)
            self._cache_signature(digest, verified)
        accepted = tuple(audience for audience in verified.audiences if audience in audiences)
        if not accepted:
            own, target = _quoted(verified.audiences), _quoted(audiences)
            raise TokenError(f"token audiences {own} is invalid for the target audiences {target}")
        if now >= verified.expires:
            self._verified.pop(digest, None)
            raise TokenError("service account token has expired")
        if now < verified.not_before:
            raise TokenError("service account token is not valid yet")
        for bound in verified.bound:
            self._check_bound(bound, now)
        return verified.user, accepted

    def public_keys(self) -> Document:
        """Return the JSON web key set for verification of our tokens."""
        numbers = self._public.public_numbers()
        key = {
            "use": "sig",
            "kty": "EC",
            "kid": self._key_id,
            "crv": "P-256",
            "alg": ALGORITHM,
            "x": _base64url(numbers.x.to_bytes(32, "big")),
            "y": _base64url(numbers.y.to_bytes(32, "big")),
        }
        return {"keys": [key]}

    def discovery_document(self, server_url: str) -> Document:
        """Return the OpenID discovery document of the issuer."""
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{server_url.rstrip('/')}/openid/v1/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        }

    def _check_signature(self, token: str) -> VerifiedToken:
        # Imported lazily, as in issue_token.
        import jwt

        if not _COMPACT.fullmatch(token):
            # The library also accepts padding, and ignores what is no letter of the alphabet.
            raise ForeignTokenError("malformed token")
        try:
            header = jwt.get_unverified_header(token)
            if header.get("kid") != self._key_id:
                raise ForeignTokenError("unknown signing key")
            # Times and audiences are checked at each use, since this result is cached.
            claims = jwt.decode(
                token,
                self._public,
                algorithms=[ALGORITHM],
                issuer=self.issuer,
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                    "require": ["aud", "exp", "nbf", "iss", "sub"],
                },
            )
        except jwt.PyJWTError as error:
            raise ForeignTokenError(str(error)) from error
        return _verified(claims)

    def _cache_signature(self, digest: bytes, verified: VerifiedToken) -> None:
        if len(self._verified) >= CACHE_SIZE_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = verified

    def _check_bound(self, bound: BoundObject, now: datetime) -> None:
        found = self.lookup(bound.resource, bound.key)
        metadata: Mapping[str, Any] = (found or {}).get("metadata") or {}
        if metadata.get("uid") != bound.uid:
            raise TokenError("service account token has been invalidated")
        deleted = metadata.get("deletionTimestamp")
        if deleted and datetime.fromisoformat(deleted) + DELETION_LEEWAY < now:
            raise TokenError("service account token has been invalidated")

    def _bound_claims(
        self, service_account: Document, reference: Document | None, bound_object: Document | None
    ) -> Document:
        if not reference:
            return {}
        kind = GroupVersionKind("", reference.get("apiVersion", ""), reference.get("kind", ""))
        known = _BINDABLE.get((kind.version, kind.kind))
        if known is None:
            raise BadRequestError(f"cannot bind token to object of type {kind}")
        namespace = "" if kind.kind == "Node" else service_account["metadata"]["namespace"]
        key = NamespacedName(namespace, reference.get("name", ""))
        target = _bound_target(known, key, reference, bound_object or self.lookup(known, key))
        claims: Document = {kind.kind.lower(): _object_claim(target)}
        if kind.kind == "Pod":
            claims.update(self._node_claim(service_account, target))
        return claims

    def _node_claim(self, service_account: Document, pod: Document) -> Document:
        name = service_account["metadata"]["name"]
        spec = pod.get("spec") or {}
        if spec.get("serviceAccountName") != name:
            raise BadRequestError(
                f'cannot bind token for serviceaccount "{name}" to pod running with different serviceaccount name.'
            )
        node_name = spec.get("nodeName")
        if not node_name:
            return {}
        node = self.lookup("nodes", NamespacedName("", node_name))
        return {"node": _object_claim(node) if node is not None else {"name": node_name}}


def _bound_target(resource: str, key: NamespacedName, reference: Document, target: Document | None) -> Document:
    if target is None:
        raise NotFoundError(GroupResource("", resource), key.name)
    wanted = reference.get("uid") or ""
    if wanted and wanted != target["metadata"]["uid"]:
        raise ConflictError(GroupResource("", reference["kind"]), key.name, _UID_CHANGED.format(uid=wanted))
    return target


_BINDABLE: Final[Mapping[tuple[str, str], str]] = {
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("v1", "Node"): "nodes",
}


def user_name(namespace: str, name: str) -> str:
    """Return the user name of a service account."""
    return f"system:serviceaccount:{namespace}:{name}"


def user_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of every service account of the namespace."""
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")


def split_user_name(name: str) -> tuple[str, str] | None:
    """Return namespace and name of a service account's user name."""
    match name.split(":"):
        case ["system", "serviceaccount", namespace, account] if namespace and account:
            return namespace, account
    return None


def _requested_seconds(spec: Document) -> int:
    requested = spec.get("expirationSeconds")
    seconds = EXPIRATION_SECONDS_DEFAULT if requested is None else requested
    path = Path("spec").child("expirationSeconds")
    errors: list[FieldError] = []
    if seconds < EXPIRATION_SECONDS_MIN:
        errors.append(field_errors.invalid(path, seconds, "may not specify a duration less than 10 minutes"))
    if seconds > EXPIRATION_SECONDS_MAX:
        errors.append(field_errors.invalid(path, seconds, "may not specify a duration larger than 2^32 seconds"))
    if errors:
        raise InvalidError("authentication.k8s.io", "TokenRequest", "", errors)
    return int(seconds)


def _verified(claims: Mapping[str, Any]) -> VerifiedToken:
    about = claims.get("kubernetes.io")
    try:
        namespace = about["namespace"]  # type: ignore[index]  # checked by the except below
        account = about["serviceaccount"]  # type: ignore[index]
        name, uid = account["name"], account["uid"]
        expires, not_before = claims["exp"], claims["nbf"]
        audiences = claims["aud"]
        if claims["sub"] != user_name(namespace, name):
            raise TokenError("service account token claims are inconsistent")
        return VerifiedToken(
            user=with_authenticated_group(
                UserInfo(user_name(namespace, name), uid, user_groups(namespace), _extra(claims, about))
            ),
            audiences=(audiences,) if isinstance(audiences, str) else tuple(audiences),
            expires=datetime.fromtimestamp(expires, UTC),
            not_before=datetime.fromtimestamp(not_before, UTC),
            bound=tuple(_bound_objects(about)),
        )
    except (KeyError, TypeError) as error:
        raise TokenError("service account claims are incomplete") from error


def _extra(claims: Mapping[str, Any], about: Any) -> Mapping[str, tuple[str, ...]]:
    extra: dict[str, tuple[str, ...]] = {}
    if claims.get("jti"):
        extra[CREDENTIAL_ID] = (f"JTI={claims['jti']}",)
    for claim, name_key, uid_key in (("pod", _POD_NAME, _POD_UID), ("node", _NODE_NAME, _NODE_UID)):
        if reference := about.get(claim):
            extra[name_key] = (reference["name"],)
            if reference.get("uid"):
                extra[uid_key] = (reference["uid"],)
    return extra


def _bound_objects(about: Any) -> list[BoundObject]:
    namespace = about["namespace"]
    account = about["serviceaccount"]
    bound = [BoundObject("serviceaccounts", NamespacedName(namespace, account["name"]), account["uid"])]
    for claim, resource in (("pod", "pods"), ("secret", "secrets")):
        if reference := about.get(claim):
            bound.append(BoundObject(resource, NamespacedName(namespace, reference["name"]), reference["uid"]))
    # The node of a pod-bound token is informational; only a token bound to the node expires with it.
    node = about.get("node")
    if node and "pod" not in about:
        bound.append(BoundObject("nodes", NamespacedName("", node["name"]), node["uid"]))
    return bound


def _object_claim(document: Document) -> Document:
    metadata = document["metadata"]
    return {"name": metadata["name"], "uid": metadata["uid"]}


def _key_id_of(key: ec.EllipticCurvePublicKey) -> str:
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _base64url(hashlib.sha256(encoded).digest())


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _quoted(texts: Sequence[str]) -> str:
    return "[" + " ".join(field_errors.quote(text) for text in texts) + "]"
