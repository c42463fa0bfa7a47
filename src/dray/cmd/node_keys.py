"""Creates the identity of a node; imports the large cryptography libraries."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.certificates import KeyPair, node_identity
from dray.apiserver.authentication.pki import (
    PKI,
    ensure_kubelet_serving,
    ensure_node_client,
    ensure_pki,
    write_kubeconfig,
)
from dray.client.credentials import load_access
from dray.client.kubeconfig import Access
from dray.cmd.node_identity import NodeIdentity, Serving, fingerprint_of
from dray.cmd.settings import NodeSettings
from dray.controllers.certificates.plan import SERVING_LIFETIME
from dray.runtime.settings import SettingsError


def make_identity(settings: NodeSettings, name: str, names: Sequence[str], now: datetime) -> NodeIdentity:
    """Return the identity from a kubeconfig, or from the local cluster's data directory."""
    if settings.kubeconfig:
        return _identity_of(settings, name, names, now)
    data_dir = Path(settings.data_dir).resolve()
    if not (data_dir / "pki" / "ca.key").exists() or not (data_dir / "kubeconfig").exists():
        raise SettingsError(f"--kubeconfig is needed: there is no cluster in {data_dir}")
    pki = ensure_pki(data_dir, hostname=socket.gethostname(), now=now)
    server = load_access({}, path=str(data_dir / "kubeconfig")).server
    return _local_identity(pki, server, name, names, now)


def local_serving(data_dir: Path, name: str, names: Sequence[str], now: datetime) -> Serving:
    """Return a new serving certificate for a node on the machine that has the cluster's keys."""
    return _signed(ensure_kubelet_serving(data_dir / "pki", now), name, names, now, SERVING_LIFETIME)


def _identity_of(settings: NodeSettings, name: str, names: Sequence[str], now: datetime) -> NodeIdentity:
    access = load_access(os.environ, path=settings.kubeconfig)
    authority = _authority(settings, access)
    if settings.tls_cert_file:
        files = (Path(settings.tls_cert_file), Path(settings.tls_private_key_file))
        serving = Serving(files[0].read_bytes(), files[1].read_bytes())
    else:
        serving = _self_signed(name, names, now)
    return NodeIdentity(access, authority, serving, fingerprint_of(serving.certificate), settings.kubeconfig)


def _local_identity(pki: PKI, server_url: str, name: str, names: Sequence[str], now: datetime) -> NodeIdentity:
    """Create the identity with the cluster's keys."""
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
    serving = _signed(pki.kubelet_serving, name, names, now, SERVING_LIFETIME)
    return NodeIdentity(access, pki.authority.certificate, serving, kubeconfig=str(path))


def _self_signed(name: str, names: Sequence[str], now: datetime) -> Serving:
    """Return a self-signed certificate, which is verified by its fingerprint."""
    authority = certificates.new_authority(certificates.new_private_key(), now)
    return _signed(authority, name, names, now, certificates.LEAF_LIFETIME)


def _signed(authority: KeyPair, name: str, names: Sequence[str], now: datetime, lifetime: timedelta) -> Serving:
    pair = certificates.new_server(authority, names, now, node_identity(name), lifetime)
    return Serving(pair.certificate, pair.key)


def _authority(settings: NodeSettings, access: Access) -> bytes:
    if settings.client_ca_file:
        return Path(settings.client_ca_file).read_bytes()
    if access.authority_data:
        return access.authority_data
    if access.authority_file:
        return Path(access.authority_file).read_bytes()
    raise SettingsError("--client-ca-file is needed: the kubeconfig names no certificate authority")
