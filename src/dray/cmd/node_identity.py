"""The identity of a node agent: its access to the API server, and its serving certificate."""

from __future__ import annotations

import hashlib
import os
import ssl
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from dray.client.kubeconfig import Access
from dray.cmd.settings import NodeSettings
from dray.runtime.settings import SettingsError


@dataclass(frozen=True, slots=True)
class Serving:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The credentials of the agent."""

    access: Access
    # PEM of the CA of client certificates.
    authority: bytes
    serving: Serving
    # SHA-256 of the serving certificate, if it is self-signed.
    fingerprint: str = ""
    # The file that the access comes from.
    kubeconfig: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of the child process."""

    identity: NodeIdentity | None = None
    failure: str = ""


def find_identity(settings: NodeSettings, name: str, names: Sequence[str], now: datetime) -> NodeIdentity:
    """Return the identity from a kubeconfig, or from the local cluster's data directory.

    A child process creates it, unless the cryptography libraries are loaded: they take a sixth of the agent's memory,
    and are needed once.
    """
    if "cryptography" in sys.modules:
        return _make(settings, name, names, now)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(writing, settings, name, names, now)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    answer = msgspec.msgpack.decode(content, type=_Answer) if content else _Answer()
    if answer.identity is None:
        raise SettingsError(answer.failure or "the node's keys could not be made")
    return answer.identity


def _make(settings: NodeSettings, name: str, names: Sequence[str], now: datetime) -> NodeIdentity:
    from dray.cmd.node_keys import make_identity

    return make_identity(settings, name, names, now)


def _answer(writing: int, *question: Any) -> None:
    """In the child: send the identity or the failure, and exit."""
    try:
        try:
            answer = _Answer(_make(*question))
        except Exception as error:  # noqa: BLE001 - raised again in the parent
            answer = _Answer(failure=str(error))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(answer))
    finally:
        # Exit handlers of the parent must not run here.
        os._exit(0)


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 fingerprint of a PEM certificate."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode())).hexdigest()


def serving_context(identity: NodeIdentity) -> ssl.SSLContext:
    """Return the TLS context of the HTTPS server; a client has a certificate of the cluster, or sends a token."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=identity.authority.decode())
    load_serving(context, identity.serving)
    return context


def load_serving(context: ssl.SSLContext, serving: Serving) -> None:
    """Present a certificate on connections that begin from now on."""
    # The ssl module reads only files; these are removed at once.
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        key.touch(mode=0o600)
        certificate.write_bytes(serving.certificate)
        key.write_bytes(serving.key)
        context.load_cert_chain(certificate, key)
