"""Who a node agent is: its access to the API server, and the certificate it serves logs with."""

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
    """What the agent shows to others."""

    access: Access
    # PEM of those whose certificates it accepts.
    authority: bytes
    serving: Serving
    # SHA-256 of the serving certificate, when no one else vouches for it.
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the child says: an identity, or why there is none."""

    identity: NodeIdentity | None = None
    failure: str = ""


def find_identity(settings: NodeSettings, name: str, names: Sequence[str], now: datetime) -> NodeIdentity:
    """From a kubeconfig, or from the cluster whose data directory is on this machine.

    Made in a child, unless the libraries for that are here already: they are a sixth of an agent's memory, and are
    needed once.
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
    """In the child: send the identity, or why there is none, and end."""
    try:
        try:
            answer = _Answer(_make(*question))
        except Exception as error:  # noqa: BLE001 - it is raised again by who asked
            answer = _Answer(failure=str(error))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(answer))
    finally:
        # Nothing of the parent's must be ended here.
        os._exit(0)


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
