"""Creation and inspection of the cluster's certificates: one authority, and the leaf certificates it signs.

Works on PEM bytes in memory; `pki` stores them on disk. The time is an argument.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFETIME: Final = timedelta(days=3650)
LEAF_LIFETIME: Final = timedelta(days=365)
# A leaf certificate with less than this left is renewed at the next start.
RENEW_BEFORE: Final = timedelta(days=30)
# The tolerated clock skew between machines of a cluster.
CLOCK_SKEW: Final = timedelta(minutes=5)
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192
# A certificate gets all names of its request, and is sent with every connection.
REQUEST_BYTES_MAX: Final = 64 * 1024
# Errors of the parser that are no ValueErrors.
_MALFORMED: Final = (x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType)
_CURVES: Final = ("secp256r1", "secp384r1", "secp521r1")
_USAGES: Final = {"client auth": ExtendedKeyUsageOID.CLIENT_AUTH, "server auth": ExtendedKeyUsageOID.SERVER_AUTH}


class CertificateError(Exception):
    """An invalid certificate or key."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a client certificate: the common name and the organizations."""

    user: str
    groups: tuple[str, ...] = ()


API_SERVER: Final = Identity("kube-apiserver")
ADMIN: Final = Identity("kubernetes-admin", ("system:masters",))
SCHEDULER: Final = Identity("system:kube-scheduler")
CONTROLLER_MANAGER: Final = Identity("system:kube-controller-manager")
# The API server's identity for requests to nodes.
KUBELET_CLIENT: Final = Identity("kube-apiserver-kubelet-client")


def node_identity(node_name: str) -> Identity:
    """Return the identity of a node's agent."""
    return Identity(f"system:node:{node_name}", ("system:nodes",))


def new_private_key() -> bytes:
    """Return a new ECDSA P-256 key; much faster to generate than RSA."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Load a private key of a supported type."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"not a private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError("not an ECDSA P-256 key")
    return key


def new_authority(key: bytes, now: datetime, name: str = "dray") -> KeyPair:
    """Return a self-signed authority for the key."""
    private = load_private_key(key)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, private.public_key(), now, AUTHORITY_LIFETIME)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return KeyPair(_sign(builder, private), key)


def new_server(
    authority: KeyPair,
    names: Sequence[str],
    now: datetime,
    identity: Identity = API_SERVER,
    lifetime: timedelta = LEAF_LIFETIME,
) -> KeyPair:
    """Return a serving certificate for host names and addresses."""
    sans = x509.SubjectAlternativeName([_general_name(name) for name in names])
    return _new_leaf(authority, identity, ExtendedKeyUsageOID.SERVER_AUTH, now, sans, lifetime)


def new_client(authority: KeyPair, identity: Identity, now: datetime) -> KeyPair:
    """Return a client certificate for the identity."""
    return _new_leaf(authority, identity, ExtendedKeyUsageOID.CLIENT_AUTH, now)


def is_pair(pair: KeyPair) -> bool:
    """Report whether certificate and key match; a crash between two writes can leave a mismatch."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        return _public_bytes(certificate.public_key()) == _public_bytes(load_private_key(pair.key).public_key())
    except (ValueError, CertificateError):
        return False


def is_current(pair: KeyPair, authority: KeyPair, now: datetime) -> bool:
    """Report whether the leaf certificate is intact, signed by this authority and not due for renewal."""
    if not is_pair(pair):
        return False
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEW_BEFORE


def expires(certificate: bytes) -> datetime:
    """Return the expiry of a PEM certificate."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """Return from when until when a PEM certificate is valid."""
    loaded = x509.load_pem_x509_certificate(certificate)
    return loaded.not_valid_before_utc, loaded.not_valid_after_utc


def server_names(certificate: bytes) -> frozenset[str]:
    """Return the host names and addresses of a serving certificate."""
    loaded = x509.load_pem_x509_certificate(certificate)
    try:
        sans = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = [str(address) for address in sans.get_values_for_type(x509.IPAddress)]
    return frozenset([*sans.get_values_for_type(x509.DNSName), *addresses])


def identity_of(certificate: x509.Certificate) -> Identity | None:
    """Return the identity of a certificate; None without a common name."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if not names or not names[-1].value:
        return None
    groups = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return Identity(str(names[-1].value), tuple(str(group.value) for group in groups))


# --- Signing requests. ---


def new_request(key: bytes, identity: Identity, names: Sequence[str] = ()) -> bytes:
    """Return a certificate signing request for the key, with the host names and addresses of a server."""
    private = load_private_key(key)
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(identity))
    if names:
        sans = x509.SubjectAlternativeName([_general_name(name) for name in names])
        builder = builder.add_extension(sans, critical=False)
    return builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def load_request(pem: bytes) -> x509.CertificateSigningRequest:
    """Load a signing request and check its extensions, key and signature; raises `CertificateError`."""
    if len(pem) > REQUEST_BYTES_MAX:
        raise CertificateError(f"a certificate signing request must have at most {REQUEST_BYTES_MAX} bytes")
    try:
        request = x509.load_pem_x509_csr(pem)
        _ = request.extensions
        _check_subject(request.subject)
        _check_key(request.public_key())
        is_valid = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, *_MALFORMED) as error:
        raise CertificateError(f"not a certificate signing request: {error}") from error
    if not is_valid:
        raise CertificateError("the signature of the certificate signing request is wrong")
    return request


def _check_subject(subject: x509.Name) -> None:
    """Refuse several common names: readers of the certificate could take another one for the user's than its signer."""
    if len(subject.get_attributes_for_oid(NameOID.COMMON_NAME)) > 1:
        raise CertificateError("a certificate signing request must have one common name")


def _check_key(key: object) -> None:
    """Refuse keys that are weak, and those with which a signature takes long to verify."""
    if isinstance(key, rsa.RSAPublicKey):
        if not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
            raise CertificateError(f"RSA keys must have {RSA_BITS_MIN} to {RSA_BITS_MAX} bits, not {key.key_size}")
    elif not isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey):
        raise CertificateError("the key must be an RSA, ECDSA or Ed25519 key")
    elif isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name not in _CURVES:
        raise CertificateError(f"the curve of ECDSA keys must be one of {', '.join(_CURVES)}, not {key.curve.name}")


def sign_request(
    authority: KeyPair,
    request: x509.CertificateSigningRequest,
    usages: Collection[str],
    lifetime: timedelta,
    now: datetime,
) -> bytes:
    """Return a certificate for the subject, names and key of a request; it does not outlive the authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = load_private_key(authority.key)
    public_key = request.public_key()
    end = min(now + lifetime, issuer.not_valid_after_utc)
    builder = _builder(request.subject, issuer.subject, public_key, now, end - now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    extended = [_USAGES[usage] for usage in usages if usage in _USAGES]
    if extended:
        builder = builder.add_extension(x509.ExtendedKeyUsage(extended), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
    )
    for extension in request.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            builder = builder.add_extension(extension.value, critical=False)
    return _sign(builder, issuer_key)


def public_key_info(certificate: bytes) -> bytes:
    """Return the SubjectPublicKeyInfo (DER) of a PEM certificate."""
    return _public_bytes(x509.load_pem_x509_certificate(certificate).public_key())


def _new_leaf(
    authority: KeyPair,
    identity: Identity,
    usage: x509.ObjectIdentifier,
    now: datetime,
    sans: x509.SubjectAlternativeName | None = None,
    lifetime: timedelta = LEAF_LIFETIME,
) -> KeyPair:
    key = new_private_key()
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = load_private_key(authority.key)
    builder = _builder(_subject(identity), issuer.subject, load_private_key(key).public_key(), now, lifetime)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
    )
    if sans is not None:
        builder = builder.add_extension(sans, critical=False)
    return KeyPair(_sign(builder, issuer_key), key)


def _subject(identity: Identity) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in identity.groups]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, identity.user)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: Any, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes")
    encoded: bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return encoded
