"""Certificate requests in forms that no honest program writes: odd alternative names, subjects, keys and encodings.

None gets a certificate by itself, and none keeps the controller busy.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Sequence
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtensionOID, NameOID

from dray.api.document import Document
from dray.apiserver.authentication import certificates
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS as REQUESTS
from dray.client.resources import NODES
from dray.controllers.certificates.plan import KUBELET_CLIENT, KUBELET_SERVING, conditions
from tests.certificate_cluster import (
    BOOTSTRAP_GROUPS,
    NODE_USER,
    SERVING_USAGES,
    Cluster,
    certificate_of,
    content_for,
    has_certificate,
    has_failed,
    run,
)

_ALLOWED = "192.0.2.7"
_NODES = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes")
_NODE = x509.NameAttribute(NameOID.COMMON_NAME, NODE_USER)


def common_name(text: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, text)


def signed(
    subject: Sequence[x509.NameAttribute[str] | x509.RelativeDistinguishedName], sans: bytes = b"", second: bytes = b""
) -> bytes:
    """A request with alternative names in DER; with a second extension of the same kind, which no builder makes."""
    parts = [
        item if isinstance(item, x509.RelativeDistinguishedName) else x509.RelativeDistinguishedName([item])
        for item in subject
    ]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(parts))
    if sans:
        builder = builder.add_extension(
            x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, sans), critical=False
        )
    if second:
        builder = builder.add_extension(
            x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.99"), second), critical=False
        )
    key = ed25519.Ed25519PrivateKey.generate()
    request = builder.sign(key, None)
    if not second:
        return request.public_bytes(serialization.Encoding.PEM)
    # The last arc of an identifier is its last byte, and such a signature always has 64 bytes.
    der = request.public_bytes(serialization.Encoding.DER)
    info = request.tbs_certrequest_bytes
    changed = info.replace(b"\x55\x1d\x63", b"\x55\x1d\x11")
    forged = der.replace(info, changed)[:-64] + key.sign(changed)
    return pem(forged)


def pem(der: bytes) -> bytes:
    text = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + text + b"-----END CERTIFICATE REQUEST-----\n"


def general_names(*names: tuple[int, bytes]) -> bytes:
    """GeneralNames in DER, by tag and content."""
    content = b"".join(bytes((0x80 | tag, len(value))) + value for tag, value in names)
    return bytes((0x30, len(content))) + content


_DNS, _URI, _IP, _X400 = 2, 6, 7, 3
_N1 = (_DNS, b"n1")

ODD_NAMES = {
    "an upper-case name": general_names((_DNS, b"N1")),
    "a trailing dot": general_names((_DNS, b"n1.")),
    "a wildcard": general_names((_DNS, b"*")),
    "a wildcard below the node": general_names((_DNS, b"*.n1")),
    "a NUL": general_names((_DNS, b"n1\0.example")),
    "a line break": general_names((_DNS, b"n1\n")),
    "an empty name": general_names((_DNS, b"")),
    "an international name": general_names((_DNS, "n\u00e9".encode())),
    "an address as a name": general_names((_DNS, b"192.0.2.7")),
    "a name of the API server beside the node's": general_names(_N1, (_DNS, b"kubernetes")),
    "a mapped loopback address": general_names(_N1, (_IP, ip_address("::ffff:127.0.0.1").packed)),
    "a network as an address": general_names(_N1, (_IP, bytes((192, 0, 2, 0, 255, 255, 255, 0)))),
    "an address of five bytes": general_names(_N1, (_IP, b"\x01" * 5)),
    "no byte of an address": general_names(_N1, (_IP, b"")),
    "a URI": general_names(_N1, (_URI, b"spiffe://cluster/api")),
    "an X.400 address": general_names(_N1, (_X400, b"")),
    "no names": general_names(),
    "a list that ends too early": general_names(_N1)[:-1],
    "no list": b"\x04\x02n1",
}


async def stays_pending(cluster: Cluster, name: str) -> None:
    await asyncio.sleep(120)
    found = await cluster.admin.get(REQUESTS, name, "")
    assert not conditions(found)
    assert not has_certificate(found)


def assert_calm(caplog: pytest.LogCaptureFixture) -> None:
    """No reconciliation has failed, which would be repeated for a day."""
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.behaviour("CS-04")
@pytest.mark.parametrize("kind", ODD_NAMES)
def test_a_node_gets_no_serving_certificate_for_odd_names(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.user(NODE_USER, "system:nodes")
        content = signed([_NODES, _NODE], ODD_NAMES[kind])
        await stays_pending(cluster, await cluster.request(node, content, KUBELET_SERVING, usages=SERVING_USAGES))

    run(scenario)
    assert_calm(caplog)


@pytest.mark.parametrize("signer", [KUBELET_SERVING, KUBELET_CLIENT])
def test_a_request_with_two_lists_of_names_fails_even_if_it_was_approved(
    signer: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.user(NODE_USER, "system:nodes")
        content = signed([_NODES, _NODE], general_names(_N1), general_names((_DNS, b"kubernetes")))
        usages = SERVING_USAGES if signer == KUBELET_SERVING else ["digital signature", "client auth"]
        name = await cluster.request(node, content, signer, usages=usages)
        await stays_pending(cluster, name)
        await cluster.approve(name)
        assert conditions(await cluster.until(name, has_failed))["Failed"]["message"]

    run(scenario)
    assert_calm(caplog)


ODD_SUBJECTS: dict[str, list[x509.NameAttribute[str] | x509.RelativeDistinguishedName]] = {
    "another name last": [_NODES, _NODE, common_name("system:node:n2")],
    "another name first": [_NODES, common_name("system:node:n2"), common_name("mallory")],
    "a second group": [_NODES, x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"), _NODE],
    "the group of administrators": [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"), _NODE],
    "two groups in one part": [
        x509.RelativeDistinguishedName([_NODES, x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters")]),
        _NODE,
    ],
    "the group twice": [_NODES, _NODES, _NODE],
    "no group": [_NODE],
    "an upper-case prefix": [_NODES, common_name("System:Node:n9")],
    "no node": [_NODES, common_name("system:node:")],
    "a path": [_NODES, common_name("system:node:../../secrets")],
    "a line break": [_NODES, common_name("system:node:n9\n")],
    "a NUL": [_NODES, common_name("system:node:n9\0")],
    "an upper-case node": [_NODES, common_name("system:node:N9")],
    "a trailing dot": [_NODES, common_name("system:node:n9.")],
    "spaces": [_NODES, common_name("system:node: n9")],
    "a full-width letter": [_NODES, common_name("system:node:\uff4e9")],
    "a query": [_NODES, common_name("system:node:n9?dryRun=All")],
    "a colon": [_NODES, common_name("system:node:system:node:n9")],
}


@pytest.mark.behaviour("CS-04")
@pytest.mark.parametrize("kind", ODD_SUBJECTS)
def test_a_token_gets_no_client_certificate_for_an_odd_subject(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A Node of such a name cannot exist, so that nobody would notice whose name it looks like."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.admin.create(NODES.unstructured, {"metadata": {"name": "n2"}})
        joining = cluster.user("system:bootstrap:abcdef", *BOOTSTRAP_GROUPS)
        await stays_pending(cluster, await cluster.request(joining, signed(ODD_SUBJECTS[kind])))

    run(scenario)
    assert_calm(caplog)


def test_a_node_does_not_get_the_client_certificate_of_another_one() -> None:
    """Neither of one that exists nor of one that does not, and not by renewing its own with two names."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.admin.create(NODES.unstructured, {"metadata": {"name": "n2"}})
        node = cluster.user(NODE_USER, "system:nodes")
        for subject in (
            [_NODES, common_name("system:node:n2")],
            [_NODES, common_name("system:node:n3")],
            [_NODES, _NODE, common_name("system:node:n2")],
        ):
            await stays_pending(cluster, await cluster.request(node, signed(subject)))
        # Its own is renewed although its Node exists.
        await cluster.admin.create(NODES.unstructured, {"metadata": {"name": "n1"}})
        name = await cluster.request(node, signed([_NODES, _NODE]))
        assert certificate_of(await cluster.until(name, has_certificate))

    run(scenario)


def test_a_request_of_another_node_is_not_approved_for_the_address_that_node_connects_from() -> None:
    """The name in the request is that of the user who sent it, in a user's groups, or nothing is approved."""

    async def scenario(cluster: Cluster) -> None:
        other = cluster.user("system:node:n2", "system:nodes")
        content = content_for(names=(x509.DNSName("n1"), x509.IPAddress(ip_address(_ALLOWED))))
        await stays_pending(cluster, await cluster.request(other, content, KUBELET_SERVING, usages=SERVING_USAGES))

    run(scenario)


def test_what_was_asked_for_cannot_be_changed_between_request_and_approval() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.user(NODE_USER, "system:nodes")
        names = (x509.DNSName("kubernetes"),)
        name = await cluster.request(node, content_for(names=names), KUBELET_SERVING, usages=SERVING_USAGES)
        stored = await cluster.admin.get(REQUESTS, name, "")
        attempts: tuple[Document, ...] = (
            {"username": "system:node:n2"},
            {"usages": ["client auth"]},
            {"signerName": KUBELET_CLIENT},
            {"extra": {}},
        )
        for changes in attempts:
            newest = await cluster.admin.get(REQUESTS, name, "")
            changed = {**newest, "spec": {**stored["spec"], **changes}}
            await cluster.admin.update(REQUESTS, changed)
            await cluster.admin.update_status(REQUESTS, {**changed, "metadata": {"name": name}})
        assert (await cluster.admin.get(REQUESTS, name, ""))["spec"] == stored["spec"]

    run(scenario)


def test_an_approved_request_with_more_names_than_any_node_has_gets_no_certificate() -> None:
    """Its certificate would be as large, and be sent with every connection."""

    async def scenario(cluster: Cluster) -> None:
        node = cluster.user(NODE_USER, "system:nodes")
        names = tuple(x509.DNSName(f"n{number}.example") for number in range(20_000))
        name = await cluster.request(node, content_for(names=names), KUBELET_SERVING, usages=SERVING_USAGES)
        await cluster.approve(name)
        assert conditions(await cluster.until(name, has_failed))["Failed"]["message"]

    run(scenario)


def test_keys_with_an_exponent_that_proves_nothing_are_refused() -> None:
    """With the exponent 1, everybody can sign for everybody."""
    numbers = rsa.RSAPublicNumbers
    for exponent in (1, 2, 4):
        with pytest.raises(ValueError, match="e must be"):
            numbers(exponent, (1 << 2047) + 1).public_key()


@pytest.mark.parametrize("curve", [ec.SECP256K1, ec.BrainpoolP256R1])
def test_a_curve_that_browsers_do_not_know_gets_no_certificate(curve: type[ec.EllipticCurve]) -> None:
    key = ec.generate_private_key(curve())
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(x509.Name([_NODES, _NODE])).sign(key, hashes.SHA256())
    )
    with pytest.raises(certificates.CertificateError, match="the curve of ECDSA keys"):
        certificates.load_request(request.public_bytes(serialization.Encoding.PEM))


def test_a_request_signed_by_another_key_gets_no_certificate() -> None:
    first, second = (signed([_NODES, _NODE]) for _ in range(2))
    der = [x509.load_pem_x509_csr(item).public_bytes(serialization.Encoding.DER) for item in (first, second)]
    with pytest.raises(certificates.CertificateError, match="signature"):
        certificates.load_request(pem(der[0][:-64] + der[1][-64:]))
