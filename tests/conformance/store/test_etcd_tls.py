"""An etcd that speaks TLS and wants client certificates."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dray.store.etcd import EtcdStore, TLSFiles
from dray.store.interface import StoreUnavailableError

BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)


class Process(Protocol):
    endpoint: str

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Authority:
    """Signs certificates for the test, written as PEM files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = self._subject("authority")
        self.certificate = self._write("authority", self._sign("authority", self._key, authority=True))

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate for loopback and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._write(name, self._sign(name, key, authority=False)), self._write(f"{name}-key", pem)

    @staticmethod
    def _subject(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> bytes:
        loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._subject(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(BEGIN)
            .not_valid_after(END)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(loopback, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, content: bytes) -> Path:
        path = self._directory / f"{name}.pem"
        path.write_bytes(content)
        return path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def secure_etcd(etcd: Process, authority: Authority, tmp_path: Path) -> Iterator[Process]:
    certificate, key = authority.issue("server")
    options = ["--client-cert-auth", f"--trusted-ca-file={authority.certificate}"]
    options += [f"--cert-file={certificate}", f"--key-file={key}"]
    process: Process = type(etcd)(tmp_path / "data", scheme="https", options=options)  # type: ignore[call-arg]
    process.start()
    yield process
    process.stop()


async def test_a_client_with_a_certificate_is_served(secure_etcd: Process, authority: Authority) -> None:
    certificate, key = authority.issue("client")
    tls = TLSFiles(authority.certificate, certificate, key)
    store = await EtcdStore.connect([f"https://{secure_etcd.endpoint}"], prefix="/tls", tls=tls)
    entry = await store.create("/registry/a", b"1")
    assert await store.get("/registry/a") == entry
    await store.close()


async def test_a_client_without_a_certificate_is_not(
    secure_etcd: Process, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.store.etcd.REQUEST_SECONDS", 2.0)
    with pytest.raises(StoreUnavailableError):
        await EtcdStore.connect([secure_etcd.endpoint], prefix="/tls", tls=TLSFiles(authority.certificate))
