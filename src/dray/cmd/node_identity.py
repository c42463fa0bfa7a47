"""Who a node agent is: its access to the API server, and the certificate it serves logs with."""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.certificates import KeyPair
from dray.apiserver.authentication.files import PKI, ensure_node_client, ensure_pki, write_kubeconfig
from dray.client.files import load_access
from dray.client.kubeconfig import Access
from dray.cmd.settings import NodeSettings
from dray.runtime.settings import SettingsError


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """What the agent shows to others."""

    access: Access
    # PEM of those whose certificates it accepts.
    authority: bytes
    serving: KeyPair
    # SHA-256 of the serving certificate, when no one else vouches for it.
    fingerprint: str = ""


def find_identity(settings: NodeSettings, name: str, names: Sequence[str], now: datetime) -> NodeIdentity:
    """From a kubeconfig, or from the cluster whose data directory is on this machine."""
    if settings.kubeconfig:
        access = load_access(os.environ, path=settings.kubeconfig)
        authority = _authority(settings, access)
        if settings.tls_cert_file:
            files = (Path(settings.tls_cert_file), Path(settings.tls_private_key_file))
            pair = KeyPair(files[0].read_bytes(), files[1].read_bytes())
        else:
            pair = self_signed(names, now)
        return NodeIdentity(access, authority, pair, fingerprint_of(pair.certificate))
    data_dir = Path(settings.data_dir).resolve()
    if not (data_dir / "pki" / "ca.key").exists() or not (data_dir / "kubeconfig").exists():
        raise SettingsError(f"--kubeconfig is needed: there is no cluster in {data_dir}")
    pki = ensure_pki(data_dir, hostname=socket.gethostname(), now=now)
    server = load_access({}, path=str(data_dir / "kubeconfig")).server
    return local_identity(pki, server, name, names, now)


def local_identity(pki: PKI, server_url: str, name: str, names: Sequence[str], now: datetime) -> NodeIdentity:
    """Made with the cluster's own authority."""
    client = ensure_node_client(pki, name, now)
    path = pki.directory.parent / f"node-{name}.kubeconfig"
    write_kubeconfig(
        path,
        server_url=server_url,
        authority=pki.authority.certificate,
        certificate=client.certificate,
        key=client.key,
    )
    access = load_access({}, path=str(path))
    serving = certificates.new_server(pki.authority, names, now)
    return NodeIdentity(access, pki.authority.certificate, serving)


def self_signed(names: Sequence[str], now: datetime) -> KeyPair:
    """A certificate that only its fingerprint vouches for."""
    authority = certificates.new_authority(certificates.new_private_key(), now)
    return certificates.new_server(authority, names, now)


def fingerprint_of(certificate: bytes) -> str:
    """SHA-256 of a PEM certificate."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode())).hexdigest()


def serving_context(identity: NodeIdentity) -> ssl.SSLContext:
    """TLS for the log endpoint: no one gets in without a certificate of the cluster."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.authority.decode())
    # The ssl module only reads files; these do not outlive the call.
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        key.touch(mode=0o600)
        certificate.write_bytes(identity.serving.certificate)
        key.write_bytes(identity.serving.key)
        context.load_cert_chain(certificate, key)
    return context


def _authority(settings: NodeSettings, access: Access) -> bytes:
    if settings.client_ca_file:
        return Path(settings.client_ca_file).read_bytes()
    if access.authority_data:
        return access.authority_data
    if access.authority_file:
        return Path(access.authority_file).read_bytes()
    raise SettingsError("--client-ca-file is needed: the kubeconfig names no certificate authority")
