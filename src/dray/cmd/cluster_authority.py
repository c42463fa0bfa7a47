"""The cluster's certificate authority, for the controller that signs certificate requests."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.x509.oid import NameOID

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.certificates import CertificateError, KeyPair
from dray.controllers.certificates.plan import Subject


class ClusterAuthority:
    """Implements `CertificateAuthority` with a key in memory."""

    def __init__(self, authority: KeyPair) -> None:
        self._authority = authority

    def subject(self, request: bytes) -> Subject:
        """Return what a request in PEM asks for; raises ValueError."""
        loaded = self._load(request)
        names = [str(item.value) for item in loaded.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        organizations = loaded.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        sans: x509.SubjectAlternativeName | list[x509.GeneralName] = []
        for extension in loaded.extensions:
            if isinstance(extension.value, x509.SubjectAlternativeName):
                sans = extension.value
        return Subject(
            names[-1] if names else "",
            tuple(str(item.value) for item in organizations),
            tuple(name.value for name in sans if isinstance(name, x509.DNSName)),
            tuple(str(name.value) for name in sans if isinstance(name, x509.IPAddress)),
            any(not isinstance(name, x509.DNSName | x509.IPAddress) for name in sans),
        )

    def sign(self, request: bytes, usages: Collection[str], seconds: float, now: datetime) -> bytes:
        """Return a certificate in PEM."""
        lifetime = timedelta(seconds=seconds)
        return certificates.sign_request(self._authority, self._load(request), usages, lifetime, now)

    def expires(self, certificate: bytes) -> datetime:
        """Return when a certificate ends; raises ValueError."""
        return certificates.expires(certificate)

    def _load(self, request: bytes) -> x509.CertificateSigningRequest:
        try:
            return certificates.load_request(request)
        except CertificateError as error:
            raise ValueError(str(error)) from error
