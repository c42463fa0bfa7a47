"""Keys on disk: created once, private, renewed in time; and a TLS handshake with them."""

from __future__ import annotations

import base64
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication import pki as pki_files
from dray.apiserver.authentication.certificates import CertificateError, KeyPair
from dray.apiserver.authentication.pki import PKI, InsecureKeyError
from dray.apiserver.authentication.static_tokens import token_digest
from tests.tls_handshake import handshake

# The TLS library uses the real time, so these tests create certificates for today.
NOW = datetime.now(UTC)  # noqa: TID251


def ensure(path: Path, now: datetime = NOW, **options: tuple[str, ...]) -> PKI:
    return pki_files.ensure_pki(path, hostname="node-1.example", now=now, **options)


def contents(path: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in (path / "pki").iterdir()}


def test_the_first_start_makes_everything_and_the_next_keeps_it(tmp_path: Path) -> None:
    first = ensure(tmp_path)
    before = contents(tmp_path)
    assert set(before) - {".lock"} == {
        "ca.crt", "ca.key", "apiserver.crt", "apiserver.key", "admin.crt", "admin.key", "scheduler.crt",
        "scheduler.key", "controller-manager.crt", "controller-manager.key", "sa.key", "kubelet-serving-ca.crt",
            "kubelet-serving-ca.key",
    }  # fmt: skip
    assert ensure(tmp_path) == first
    assert contents(tmp_path) == before


def test_keys_and_directory_are_private(tmp_path: Path) -> None:
    ensure(tmp_path)
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700
    for key in (tmp_path / "pki").glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, key


@pytest.mark.parametrize("name", ["ca.key", "apiserver.key", "admin.key", "sa.key"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_reach_is_rejected(tmp_path: Path, name: str, mode: int) -> None:
    ensure(tmp_path)
    key = tmp_path / "pki" / name
    key.chmod(mode)
    with pytest.raises(InsecureKeyError, match=rf"{name} can be read or written by others \(mode {mode:04o}\)"):
        ensure(tmp_path)


def test_leaf_certificates_are_renewed_and_the_authority_is_kept(tmp_path: Path) -> None:
    first = ensure(tmp_path)
    later = ensure(tmp_path, NOW + timedelta(days=350))
    assert later.authority == first.authority
    assert later.token_key == first.token_key
    assert later.server != first.server
    assert all(later.clients[name] != first.clients[name] for name in first.clients)


def test_a_new_name_renews_only_the_server_certificate(tmp_path: Path) -> None:
    first = ensure(tmp_path)
    assert certificates.server_names(first.server.certificate) == {*pki_files.SERVER_NAMES, "node-1.example"}
    second = ensure(tmp_path, extra_names=("10.0.0.1", "api.example"))
    assert certificates.server_names(second.server.certificate) >= {"10.0.0.1", "api.example"}
    assert second.clients == first.clients
    assert ensure(tmp_path, extra_names=("10.0.0.1",)).server == second.server


def test_a_torn_pair_is_made_anew(tmp_path: Path) -> None:
    first = ensure(tmp_path)
    (tmp_path / "pki" / "admin.key").write_bytes(certificates.new_private_key())
    (tmp_path / "pki" / "scheduler.crt").unlink()
    second = ensure(tmp_path)
    assert second.clients["admin"] != first.clients["admin"]
    assert second.clients["scheduler"] != first.clients["scheduler"]
    assert second.clients["controller-manager"] == first.clients["controller-manager"]


def test_an_authority_without_certificate_gets_one_but_without_key_is_an_error(tmp_path: Path) -> None:
    first = ensure(tmp_path)
    (tmp_path / "pki" / "ca.crt").unlink()
    assert ensure(tmp_path).authority.key == first.authority.key
    (tmp_path / "pki" / "ca.key").unlink()
    with pytest.raises(CertificateError, match=r"restore the key from a backup"):
        ensure(tmp_path)


def test_an_expired_or_mixed_up_authority_is_an_error(tmp_path: Path) -> None:
    ensure(tmp_path)
    with pytest.raises(CertificateError, match="has expired"):
        ensure(tmp_path, NOW + timedelta(days=3651))
    (tmp_path / "pki" / "ca.key").write_bytes(certificates.new_private_key())
    with pytest.raises(CertificateError, match="do not belong together"):
        ensure(tmp_path)


def test_node_certificates(tmp_path: Path) -> None:
    pki = ensure(tmp_path)
    pair = pki_files.ensure_node_client(pki, "n1", NOW)
    assert pki_files.ensure_node_client(pki, "n1", NOW) == pair
    assert (tmp_path / "pki" / "node-n1.key").exists()
    with pytest.raises(CertificateError):
        pki_files.ensure_node_client(pki, "../evil", NOW)


def test_the_kubeconfig_holds_everything(tmp_path: Path) -> None:
    pki = ensure(tmp_path)
    admin = pki.clients["admin"]
    path = tmp_path / "kubeconfig"
    pki_files.write_kubeconfig(
        path,
        server_url="https://127.0.0.1:6443",
        authority=pki.authority.certificate,
        certificate=admin.certificate,
        key=admin.key,
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config = yaml.safe_load(path.read_text())
    assert config["current-context"] == "dray"
    assert config["contexts"] == [{"name": "dray", "context": {"cluster": "dray", "user": "dray"}}]
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(config["users"][0]["user"]["client-key-data"]) == admin.key


def test_a_token_file_that_others_can_read_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text("secret,alice,1,devs\n")
    path.chmod(0o600)
    assert pki_files.read_token_file(path)[token_digest("secret")].name == "alice"
    assert not caplog.messages
    path.chmod(0o644)
    assert pki_files.read_token_file(path)[token_digest("secret")].name == "alice"
    assert any("chmod 600" in message for message in caplog.messages)


def client_context(pki: PKI, pair: KeyPair | None, directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pki.authority.certificate.decode())
    context.set_alpn_protocols(["h2", "http/1.1"])
    if pair is not None:
        (directory / "c.crt").write_bytes(pair.certificate)
        (directory / "c.key").write_bytes(pair.key)
        context.load_cert_chain(directory / "c.crt", directory / "c.key")
    return context


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "kubernetes.default.svc", "node-1.example"])
def test_the_server_presents_its_names_and_sees_the_client(tmp_path: Path, host: str) -> None:
    pki = ensure(tmp_path)
    client = client_context(pki, pki.clients["admin"], tmp_path)
    server_end, client_end = handshake(pki_files.server_context(pki), client, host)
    assert client_end.selected_alpn_protocol() == "http/1.1"
    presented: Any = server_end.getpeercert()
    subject = dict(pair for name in presented["subject"] for pair in name)
    assert subject == {"organizationName": "system:masters", "commonName": "kubernetes-admin"}


def test_a_client_certificate_is_optional(tmp_path: Path) -> None:
    pki = ensure(tmp_path)
    server_end, _ = handshake(pki_files.server_context(pki), client_context(pki, None, tmp_path), "localhost")
    assert server_end.getpeercert() is None


def strangers(pki: PKI) -> dict[str, KeyPair]:
    other = certificates.new_authority(certificates.new_private_key(), NOW)
    return {
        "another authority": certificates.new_client(other, certificates.ADMIN, NOW),
        "expired": certificates.new_client(pki.authority, certificates.ADMIN, NOW - timedelta(days=400)),
        "a serving certificate": pki.server,
    }


@pytest.mark.parametrize("who", ["another authority", "expired", "a serving certificate"])
def test_a_client_certificate_is_never_unchecked(tmp_path: Path, who: str) -> None:
    pki = ensure(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(pki_files.server_context(pki), client_context(pki, strangers(pki)[who], tmp_path), "localhost")


def test_old_protocols_are_rejected(tmp_path: Path) -> None:
    assert pki_files.server_context(ensure(tmp_path)).minimum_version is ssl.TLSVersion.TLSv1_2
