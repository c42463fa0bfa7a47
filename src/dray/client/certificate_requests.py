"""Requests a certificate from the cluster, and waits until it is signed."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.client.interface import Client
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS
from dray.lib.clock import Clock

_LOOK_SECONDS: Final = 0.5


class CertificateRequestError(Exception):
    """The certificate was not signed; the message says why."""


async def obtain_certificate(
    client: Client, clock: Clock, request: bytes, signer: str, usages: Sequence[str], seconds_max: float
) -> bytes:
    """Return the certificate (PEM) for a signing request (PEM); raises `CertificateRequestError` or `APIError`."""
    body: Document = {
        "metadata": {"generateName": "node-csr-"},
        "spec": {"request": base64.b64encode(request).decode(), "signerName": signer, "usages": list(usages)},
    }
    name = (await client.create(CERTIFICATE_SIGNING_REQUESTS, body))["metadata"]["name"]
    deadline = clock.monotonic() + seconds_max
    while clock.monotonic() < deadline:
        status = (await client.get(CERTIFICATE_SIGNING_REQUESTS, name, "")).get("status") or {}
        if status.get("certificate"):
            return base64.b64decode(status["certificate"])
        for condition in status.get("conditions") or ():
            if condition.get("type") in ("Denied", "Failed"):
                raise CertificateRequestError(
                    f"certificate request {name}: {condition['type']}: {condition.get('message')}"
                )
        await clock.sleep(_LOOK_SECONDS)
    raise CertificateRequestError(
        f"nobody has signed the certificate request {name}: see `kubectl describe csr {name}`"
    )
