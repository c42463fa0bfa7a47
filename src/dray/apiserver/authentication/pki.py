"""The cluster's keys, certificates and kubeconfigs on disk.

Every file is written atomically. A private key that others can read is rejected. All functions are idempotent: valid
files are kept, files that are missing, corrupt or about to expire are replaced, and the authority is never replaced.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import logging
import os
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import yaml

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.certificates import CertificateError, Identity, KeyPair
from dray.apiserver.authentication.static_tokens import StaticTokens, parse_token_file

SERVER_NAMES: Final = (
    "localhost",
    "127.0.0.1",
    "::1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
COMPONENTS: Final = {
    "admin": certificates.ADMIN,
    "scheduler": certificates.SCHEDULER,
    "controller-manager": certificates.CONTROLLER_MANAGER,
}
# The authorities: their files and their names.
_CLUSTER: Final = ("ca", "dray")
_KUBELET_SERVING: Final = ("kubelet-serving-ca", "dray-kubelet-serving")
_LOG: Final = logging.getLogger("dray.apiserver.authentication")
_PRIVATE_FILE: Final = 0o600
_PUBLIC_FILE: Final = 0o644
_PRIVATE_DIRECTORY: Final = 0o700
_OTHERS: Final = 0o077


class InsecureKeyError(CertificateError):
    """A private key is readable by other users."""


@dataclass(frozen=True, slots=True)
class PKI:
    """The cluster's keys, as stored on disk."""

    directory: Path
    authority: KeyPair
    # Signs the serving certificates of nodes. Only the API server trusts it, and only for nodes.
    kubelet_serving: KeyPair
    server: KeyPair
    # By component name: admin, scheduler, controller-manager.
    clients: dict[str, KeyPair]
    # PEM; signs service account tokens.
    token_key: bytes


def ensure_pki(data_dir: Path, *, hostname: str, extra_names: Iterable[str] = (), now: datetime) -> PKI:
    """Load the cluster's keys, creating those that are missing or due for renewal."""
    directory = data_dir / "pki"
    with _locked(directory):
        authority = _ensure_authority(directory, *_CLUSTER, now)
        names = tuple(dict.fromkeys([*SERVER_NAMES, *([hostname] if hostname else []), *extra_names]))
        pki = PKI(
            directory=directory,
            authority=authority,
            kubelet_serving=_ensure_authority(directory, *_KUBELET_SERVING, now),
            server=_ensure_server(directory, authority, names, now),
            clients={
                name: _ensure_client(directory, name, authority, identity, now) for name, identity in COMPONENTS.items()
            },
            token_key=_ensure_token_key(directory),
        )
        _sync_directory(directory)
    return pki


def ensure_kubelet_serving(directory: Path, now: datetime) -> KeyPair:
    """Load or create the authority for serving certificates of nodes."""
    with _locked(directory):
        return _ensure_authority(directory, *_KUBELET_SERVING, now)


def ensure_node_client(pki: PKI, node_name: str, now: datetime) -> KeyPair:
    """Load or create the client certificate of one node's agent."""
    if "/" in node_name or node_name in {"", ".", ".."}:
        raise CertificateError(f"{node_name!r} is not a node name")
    with _locked(pki.directory):
        identity = certificates.node_identity(node_name)
        pair = _ensure_client(pki.directory, f"node-{node_name}", pki.authority, identity, now)
        _sync_directory(pki.directory)
    return pair


@dataclass(frozen=True, slots=True)
class KubeletTLS:
    """The TLS contexts for requests to nodes; both present the API server's client certificate."""

    # For nodes with a certificate of the authority for serving certificates of nodes.
    certified: ssl.SSLContext
    # For nodes with a known certificate fingerprint, which the caller must compare.
    pinned: ssl.SSLContext


def kubelet_tls(pki: PKI, now: datetime) -> KubeletTLS:
    """Load or create the API server's client certificate for requests to nodes."""
    with _locked(pki.directory):
        _ensure_client(pki.directory, "apiserver-kubelet-client", pki.authority, certificates.KUBELET_CLIENT, now)
        _sync_directory(pki.directory)
    certified = ssl.create_default_context(cadata=pki.kubelet_serving.certificate.decode())
    pinned = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    pinned.check_hostname = False
    pinned.verify_mode = ssl.CERT_NONE
    stem = pki.directory / "apiserver-kubelet-client"
    for context in (certified, pinned):
        context.load_cert_chain(stem.with_suffix(".crt"), stem.with_suffix(".key"))
    return KubeletTLS(certified, pinned)


def write_kubeconfig(path: Path, *, server_url: str, authority: bytes, certificate: bytes, key: bytes) -> None:
    """Write a kubeconfig with embedded credentials."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "dray", "cluster": {"server": server_url, "certificate-authority-data": _encode(authority)}}
        ],
        "users": [
            {
                "name": "dray",
                "user": {"client-certificate-data": _encode(certificate), "client-key-data": _encode(key)},
            }
        ],
        "contexts": [{"name": "dray", "context": {"cluster": "dray", "user": "dray"}}],
        "current-context": "dray",
    }
    _write(path, yaml.safe_dump(document, sort_keys=False).encode(), _PRIVATE_FILE)
    _sync_directory(path.parent)


def server_context(pki: PKI) -> ssl.SSLContext:
    """Return the TLS context of the API server: client certificates are optional, but always verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(cadata=pki.authority.certificate.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    load_server_certificate(context, pki)
    return context


def load_server_certificate(context: ssl.SSLContext, pki: PKI) -> None:
    """Use the certificate on disk for new connections, to renew it without a restart."""
    context.load_cert_chain(pki.directory / "apiserver.crt", pki.directory / "apiserver.key")


def read_token_file(path: Path) -> StaticTokens:
    """Read a static token file; one that others can read is accepted with a warning, as in kube-apiserver."""
    try:
        content = _read_private(path)
    except InsecureKeyError as error:
        _LOG.warning("%s", error)
        content = path.read_bytes()
    return parse_token_file(content.decode(), str(path))


def _ensure_authority(directory: Path, file: str, name: str, now: datetime) -> KeyPair:
    key_path, certificate_path = directory / f"{file}.key", directory / f"{file}.crt"
    if certificate_path.exists() and not key_path.exists():
        raise CertificateError(f"{certificate_path} is there but {key_path} is not; restore the key from a backup")
    if not key_path.exists():
        _write(key_path, certificates.new_private_key(), _PRIVATE_FILE)
    key = _read_private(key_path)
    if not certificate_path.exists():
        _write(certificate_path, certificates.new_authority(key, now, name).certificate, _PUBLIC_FILE)
    pair = KeyPair(certificate_path.read_bytes(), key)
    if not certificates.is_pair(pair):
        raise CertificateError(f"{certificate_path} and {key_path} do not belong together; restore them from a backup")
    if certificates.expires(pair.certificate) <= now:
        raise CertificateError(f"{certificate_path} has expired; remove {directory} to make a new authority")
    return pair


def _ensure_server(directory: Path, authority: KeyPair, names: tuple[str, ...], now: datetime) -> KeyPair:
    pair = _read_pair(directory, "apiserver")
    is_current = pair is not None and certificates.is_current(pair, authority, now)
    # A new host name or extra name requires a new certificate.
    if pair is not None and is_current and certificates.server_names(pair.certificate) >= set(names):
        return pair
    return _write_pair(directory, "apiserver", certificates.new_server(authority, names, now))


def _ensure_client(directory: Path, name: str, authority: KeyPair, identity: Identity, now: datetime) -> KeyPair:
    pair = _read_pair(directory, name)
    if pair is not None and certificates.is_current(pair, authority, now):
        return pair
    return _write_pair(directory, name, certificates.new_client(authority, identity, now))


def _ensure_token_key(directory: Path) -> bytes:
    path = directory / "sa.key"
    if not path.exists():
        _write(path, certificates.new_private_key(), _PRIVATE_FILE)
    key = _read_private(path)
    certificates.load_private_key(key)
    return key


def _read_pair(directory: Path, name: str) -> KeyPair | None:
    key_path, certificate_path = directory / f"{name}.key", directory / f"{name}.crt"
    if not key_path.exists() or not certificate_path.exists():
        return None
    return KeyPair(certificate_path.read_bytes(), _read_private(key_path))


def _write_pair(directory: Path, name: str, pair: KeyPair) -> KeyPair:
    # A crash between the two leaves a mismatched pair, which the next start replaces.
    _write(directory / f"{name}.key", pair.key, _PRIVATE_FILE)
    _write(directory / f"{name}.crt", pair.certificate, _PUBLIC_FILE)
    return pair


def _read_private(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if mode & _OTHERS:
            raise InsecureKeyError(f"{path} can be read or written by others (mode {mode:04o}); run: chmod 600 {path}")
        return file.read()


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write atomically: a temporary file, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory, so that two processes do not create the same files."""
    directory.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_DIRECTORY)
    directory.chmod(_PRIVATE_DIRECTORY)
    with (directory / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()
