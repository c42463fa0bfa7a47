"""CertificateSigningRequests."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, not_supported, required
from dray.api.names import dns1123_subdomain

_SPEC: Final = Path("spec")
_CONDITIONS: Final = Path("status.conditions")
_EXPIRATION_SECONDS_MIN: Final = 600
_USAGES: Final = (
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
)
_REQUEST: Final = re.compile(rb"-----BEGIN (?:NEW )?CERTIFICATE REQUEST-----")
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----")
_NOT_A_REQUEST: Final = "PEM block type must be CERTIFICATE REQUEST"
DECISIONS: Final = ("Approved", "Denied")
# In `spec.extra`, which only the API server writes: the address that the requestor's connection came from.
CLIENT_ADDRESS: Final = "dray.dev/client-address"


def decode_pem(text: str | None) -> bytes:
    """Return the bytes of a field; empty if it is not valid base64."""
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        return b""


def validate_signing_request(request: Document) -> FieldErrors:
    """Validate a request: PEM, usages, signer and lifetime."""
    spec = request.get("spec") or {}
    errors: FieldErrors = []
    if not _REQUEST.search(decode_pem(spec.get("request"))):
        errors.append(invalid(_SPEC.child("request"), spec.get("request"), _NOT_A_REQUEST))
    usages, path = spec.get("usages") or (), _SPEC.child("usages")
    if not usages:
        errors.append(required(path, "usages must be specified"))
    seen: set[str] = set()
    for i, usage in enumerate(usages):
        if usage not in _USAGES:
            errors.append(not_supported(path.index(i), usage, _USAGES))
        elif usage in seen:
            errors.append(duplicate(path.index(i), usage))
        seen.add(usage)
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < _EXPIRATION_SECONDS_MIN:
        text = "may not specify a duration less than 600 seconds (10 minutes)"
        errors.append(invalid(_SPEC.child("expirationSeconds"), seconds, text))
    errors += _validate_signer(spec.get("signerName") or "", _SPEC.child("signerName"))
    return errors + _validate_conditions((request.get("status") or {}).get("conditions") or ())


def _validate_signer(name: str, path: Path) -> FieldErrors:
    if not name:
        return [required(path)]
    domain, slash, rest = name.partition("/")
    if not slash or "/" in rest:
        return [invalid(path, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")]
    errors = [invalid(path, domain, problem) for problem in dns1123_subdomain(domain)]
    if "." not in domain:
        errors.append(invalid(path, domain, "should be a domain with at least two segments separated by dots"))
    return errors + [invalid(path, part, problem) for part in rest.split(".") for problem in dns1123_subdomain(part)]


def _validate_conditions(conditions: Sequence[Document]) -> FieldErrors:
    errors: FieldErrors = []
    seen: set[str] = set()
    for i, condition in enumerate(conditions):
        kind, path = condition.get("type") or "", _CONDITIONS.index(i)
        if not kind:
            errors.append(required(path.child("type")))
        if kind in seen:
            errors.append(duplicate(path.child("type"), kind))
        seen.add(kind)
        status = condition.get("status") or ""
        if not status:
            errors.append(required(path.child("status")))
        elif kind in (*DECISIONS, "Failed") and status != "True":
            errors.append(not_supported(path.child("status"), status, ("True",)))
    if seen.issuperset(DECISIONS):
        text = "Approved and Denied conditions are mutually exclusive"
        errors.append(invalid(_CONDITIONS, "Denied", text))
    return errors


def validate_signing_request_update(new: Document, old: Document) -> FieldErrors:
    """Validate a changed request: a decision and a certificate stay once they are set."""
    errors = validate_signing_request(new)
    status, before = new.get("status") or {}, old.get("status") or {}
    kinds = {item.get("type") for item in status.get("conditions") or ()}
    for condition in before.get("conditions") or ():
        kind = condition.get("type")
        if kind in (*DECISIONS, "Failed") and kind not in kinds:
            errors.append(forbidden(_CONDITIONS, f'updates may not remove a condition of type "{kind}"'))
    certificate, stored = status.get("certificate"), before.get("certificate")
    path = Path("status.certificate")
    if stored and certificate != stored:
        errors.append(
            forbidden(path, "updates may not set certificate content if existing certificate content is present")
        )
    elif certificate and not _CERTIFICATE.search(decode_pem(certificate)):
        errors.append(invalid(path, "<certificate data>", "must contain at least one CERTIFICATE PEM block"))
    return errors
