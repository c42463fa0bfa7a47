"""The authority, its leaf certificates, and their renewal."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.certificates import CertificateError, Identity, KeyPair

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def authority() -> KeyPair:
    return certificates.new_authority(certificates.new_private_key(), NOW)


def test_a_client_certificate_speaks_for_its_identity() -> None:
    identity = Identity("alice", ("devs", "ops"))
    pair = certificates.new_client(authority(), identity, NOW)
    loaded = x509.load_pem_x509_certificate(pair.certificate)
    assert certificates.identity_of(loaded) == identity
    usage = loaded.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_server_certificate_covers_its_names() -> None:
    pair = certificates.new_server(authority(), ["localhost", "127.0.0.1", "::1"], NOW)
    assert certificates.server_names(pair.certificate) == {"localhost", "127.0.0.1", "::1"}


def test_a_certificate_without_a_common_name_has_no_user() -> None:
    pair = certificates.new_client(authority(), Identity("x"), NOW)
    loaded = x509.load_pem_x509_certificate(pair.certificate)
    assert certificates.identity_of(loaded) == Identity("x")
    assert certificates.server_names(pair.certificate) == frozenset()


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(timedelta(), True, id="new"),
        pytest.param(timedelta(days=334), True, id="31 days left"),
        pytest.param(timedelta(days=336), False, id="29 days left"),
        pytest.param(timedelta(days=400), False, id="expired"),
        pytest.param(timedelta(days=-1), False, id="not yet valid"),
    ],
)
def test_a_leaf_is_renewed_in_its_last_thirty_days(after: timedelta, expected: bool) -> None:
    root = authority()
    pair = certificates.new_client(root, certificates.ADMIN, NOW)
    assert certificates.is_current(pair, root, NOW + after) is expected


def test_a_leaf_of_another_authority_or_with_another_key_is_not_current() -> None:
    root = authority()
    pair = certificates.new_client(root, certificates.ADMIN, NOW)
    assert not certificates.is_current(pair, authority(), NOW)
    assert not certificates.is_current(dataclasses.replace(pair, key=certificates.new_private_key()), root, NOW)
    assert not certificates.is_current(KeyPair(b"torn", pair.key), root, NOW)
    assert not certificates.is_current(KeyPair(pair.certificate, b"torn"), root, NOW)


def test_only_our_kind_of_key_is_read() -> None:
    with pytest.raises(CertificateError, match="not a private key"):
        certificates.load_private_key(b"nonsense")
