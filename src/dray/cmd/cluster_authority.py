"""The cluster's certificate authorities, for the controller that signs certificate requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.x509.oid import NameOID

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.certificates import CertificateError, KeyPair
from dray.controllers.certificates.plan import API_CLIENT, KUBELET_CLIENT, KUBELET_SERVING, Subject


def authorities_by_signer(clients: KeyPair | None, kubelet_serving: KeyPair | None) -> dict[str, KeyPair]:
    """Return the keys of the signers, without those of signers that have none."""
    pairs = {API_CLIENT: clients, KUBELET_CLIENT: clients, KUBELET_SERVING: kubelet_serving}
    return {signer: pair for signer, pair in pairs.items() if pair is not None}


class ClusterAuthority:
    """Implements `CertificateAuthority` with keys in memory, by signer."""

    def __init__(self, authorities: Mapping[str, KeyPair]) -> None:
        self._authorities = authorities

    @property
    def signers(self) -> Collection[str]:
        """The signers that have a key."""
        return self._authorities.keys()

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

    def sign(self, signer: str, request: bytes, usages: Collection[str], seconds: float, now: datetime) -> bytes:
        """Return a certificate in PEM."""
        lifetime = timedelta(seconds=seconds)
        return certificates.sign_request(self._authorities[signer], self._load(request), usages, lifetime, now)

    def expires(self, certificate: bytes) -> datetime:
        """Return when a certificate ends; raises ValueError."""
        return certificates.expires(certificate)

    def _load(self, request: bytes) -> x509.CertificateSigningRequest:
        try:
            return certificates.load_request(request)
        except CertificateError as error:
            raise ValueError(str(error)) from error
