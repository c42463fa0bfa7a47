"""Bootstrap tokens, by which machines join a cluster: their Secrets, and signatures made with them. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from dray.api.document import Document, NamespacedName
from dray.api.timestamps import format_time, parse_time

NAMESPACE: Final = "kube-system"
NAME_PREFIX: Final = "bootstrap-token-"
SECRET_TYPE: Final = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type, not a secret
USER_PREFIX: Final = "system:bootstrap:"
GROUP: Final = "system:bootstrappers"
# The group of tokens that add nodes, by kubeadm's name, which tools know.
NODE_GROUP: Final = "system:bootstrappers:kubeadm:default-node-token"
CLUSTER_INFO: Final = NamespacedName("kube-public", "cluster-info")
SIGNATURE_PREFIX: Final = "jws-kubeconfig-"
KUBECONFIG: Final = "kubeconfig"
_TOKEN: Final = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_EXTRA_GROUP: Final = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")


class Token(NamedTuple):
    """A token: its public id and its secret."""

    id: str
    secret: str

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}"


def parse_token(text: str) -> Token | None:
    """Parse a token; None if the text is none."""
    found = _TOKEN.fullmatch(text)
    return Token(found[1], found[2]) if found else None


class StoredToken(NamedTuple):
    """A token as its Secret has it."""

    token: Token
    expires: datetime | None
    authenticates: bool
    signs: bool
    groups: tuple[str, ...]
    description: str = ""

    def is_expired(self, now: datetime) -> bool:
        """Return whether the token is not valid any more."""
        return self.expires is not None and now >= self.expires


def read_secret(secret: Document) -> StoredToken | None:
    """Return the token of a Secret; None unless name, type and content fit together."""
    metadata = secret.get("metadata") or {}
    if secret.get("type") != SECRET_TYPE or metadata.get("namespace") != NAMESPACE:
        return None
    data = {key: _decoded(value) for key, value in (secret.get("data") or {}).items()}
    token = parse_token(f"{data.get('token-id', '')}.{data.get('token-secret', '')}")
    if token is None or metadata.get("name") != NAME_PREFIX + token.id:
        return None
    groups = tuple(filter(None, data.get("auth-extra-groups", "").split(",")))
    expiration = data.get("expiration", "")
    try:
        expires = parse_time(expiration) if expiration else None
    except ValueError:
        return None
    if not all(_EXTRA_GROUP.fullmatch(group) for group in groups):
        return None
    return StoredToken(
        token,
        expires,
        data.get("usage-bootstrap-authentication") == "true",
        data.get("usage-bootstrap-signing") == "true",
        groups,
        data.get("description", ""),
    )


def _decoded(value: object) -> str:
    try:
        return base64.b64decode(str(value), validate=True).decode()
    except ValueError:
        return ""


def make_secret(token: Token, expires: datetime | None, description: str) -> Document:
    """Return the Secret of a token that adds nodes."""
    data = {
        "token-id": token.id,
        "token-secret": token.secret,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": NODE_GROUP,
    }
    if expires is not None:
        data["expiration"] = format_time(expires)
    if description:
        data["description"] = description
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SECRET_TYPE,
        "metadata": {"name": NAME_PREFIX + token.id, "namespace": NAMESPACE},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


# --- Signatures. ---


def sign(content: str, token: Token) -> str:
    """Return a detached JSON web signature of the content by the token (HS256)."""
    header = _encoded(json.dumps({"alg": "HS256", "kid": token.id}, separators=(",", ":")).encode())
    return f"{header}..{_encoded(_mac(f'{header}.{_encoded(content.encode())}', token))}"


def is_signed(content: str, signature: str, token: Token) -> bool:
    """Return whether the signature is the token's."""
    return hmac.compare_digest(sign(content, token).encode(), signature.encode("utf-8", "replace"))


def signatures(content: str, tokens: Mapping[str, StoredToken], now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the signatures of all valid tokens that sign, by their keys in the ConfigMap."""
    for identifier, stored in sorted(tokens.items()):
        if stored.signs and not stored.is_expired(now):
            yield f"{SIGNATURE_PREFIX}{identifier}", sign(content, stored.token)


def _mac(text: str, token: Token) -> bytes:
    return hmac.new(token.secret.encode(), text.encode(), hashlib.sha256).digest()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_key_hash(public_key: bytes) -> str:
    """Return the hash by which a joining machine recognizes the authority: of its SubjectPublicKeyInfo in DER."""
    return f"sha256:{hashlib.sha256(public_key).hexdigest()}"
