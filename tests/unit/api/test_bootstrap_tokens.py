"""Bootstrap tokens: their form, their Secrets, and signatures."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.api.bootstrap_tokens import (
    NODE_GROUP,
    StoredToken,
    Token,
    is_signed,
    make_secret,
    parse_token,
    read_secret,
    sign,
    signatures,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = Token("abcdef", "0123456789abcdef")


def changed(**fields: Any) -> Any:
    secret = make_secret(TOKEN, NOW, "")
    secret["data"] |= {
        key.replace("_", "-"): base64.b64encode(value.encode()).decode() for key, value in fields.items()
    }
    return secret


@pytest.mark.behaviour("CS-06")
def test_a_secret_and_back() -> None:
    stored = read_secret(make_secret(TOKEN, NOW, "for tests"))
    assert stored == StoredToken(
        TOKEN, NOW, authenticates=True, signs=True, groups=(NODE_GROUP,), description="for tests"
    )
    assert stored.is_expired(NOW)
    assert not stored.is_expired(NOW - timedelta(seconds=1))
    forever = read_secret(make_secret(TOKEN, None, ""))
    assert forever is not None
    assert not forever.is_expired(NOW + timedelta(days=10_000))


@pytest.mark.behaviour("CS-06")
@pytest.mark.parametrize(
    "secret",
    [
        {**make_secret(TOKEN, None, ""), "type": "Opaque"},
        {**make_secret(TOKEN, None, ""), "metadata": {"name": "bootstrap-token-abcdef", "namespace": "default"}},
        {**make_secret(TOKEN, None, ""), "metadata": {"name": "bootstrap-token-other1", "namespace": "kube-system"}},
        changed(token_secret="short"),
        changed(expiration="tomorrow"),
        changed(auth_extra_groups="system:masters"),
        {**make_secret(TOKEN, None, ""), "data": {"token-id": "not base64!"}},
        {},
    ],
)
def test_secrets_that_are_no_tokens(secret: Any) -> None:
    assert read_secret(secret) is None


@pytest.mark.parametrize(
    "text", ["", "abcdef", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef\n", "abcdef.0123456789abcde"]
)
def test_texts_that_are_no_tokens(text: str) -> None:
    assert parse_token(text) is None


@pytest.mark.behaviour("CS-07")
def test_a_signature_is_that_of_one_token_and_content() -> None:
    signature = sign("content", TOKEN)
    header, middle, _ = signature.split(".")
    assert middle == ""
    assert base64.urlsafe_b64decode(header + "==") == b'{"alg":"HS256","kid":"abcdef"}'
    assert is_signed("content", signature, TOKEN)
    assert not is_signed("other", signature, TOKEN)
    assert not is_signed("content", signature, TOKEN._replace(secret="f" * 16))
    assert not is_signed("content", "ü", TOKEN)


@pytest.mark.behaviour("CS-07")
def test_only_valid_tokens_that_sign_do() -> None:
    good = StoredToken(TOKEN, None, authenticates=True, signs=True, groups=())
    tokens = {"abcdef": good, "silent": good._replace(signs=False), "expire": good._replace(expires=NOW)}
    assert [key for key, _ in signatures("content", tokens, NOW)] == ["jws-kubeconfig-abcdef"]
