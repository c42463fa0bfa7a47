"""Attacks with requests for certificates: the API server's names, the identity of another node, and weak keys."""

from __future__ import annotations

import asyncio
import base64
import ssl
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import NameOID

from dray.api.document import Document
from dray.api.errors import ForbiddenError
from dray.api.validation.certificates_v1 import CLIENT_ADDRESS
from dray.apiserver.authentication import certificates, pki
from dray.apiserver.authentication.certificates import KeyPair
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS as REQUESTS
from dray.client.resources import EVENTS, NODES
from dray.client.rest import RestClient
from dray.controllers.certificates.plan import (
    API_CLIENT,
    KUBELET_SERVING,
    ServingAddresses,
    Subject,
    conditions,
    is_own_serving_request,
)
from dray.lib.ip_addresses import parse_address
from dray.runtime.system import SystemClock
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
from tests.e2e.apiserver.calls import calling
from tests.servers import running_server
from tests.tls_handshake import handshake

API_SERVER_NAMES = ("kubernetes.default.svc", "127.0.0.1")


def names(*texts: str) -> tuple[x509.GeneralName, ...]:
    return tuple(
        x509.DNSName(text) if parse_address(text) is None else x509.IPAddress(ip_address(text)) for text in texts
    )


async def register(cluster: Cluster, *addresses: str) -> RestClient:
    """Register the node `n1` with addresses of its choice; return its client."""
    node = cluster.user(NODE_USER, "system:nodes")
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]}
    await node.create(NODES.unstructured, {"metadata": {"name": "n1"}, "status": status})
    return node


async def stays_pending(cluster: Cluster, request: str) -> None:
    await asyncio.sleep(600)
    found = await cluster.admin.get(REQUESTS, request, "")
    assert not conditions(found)
    assert not has_certificate(found)


@pytest.mark.behaviour("CS-04")
@pytest.mark.parametrize("name", [*API_SERVER_NAMES, "n2", "192.0.3.9", "::1", "::ffff:127.0.0.1", "0.0.0.0"])
def test_a_node_gets_no_serving_certificate_for_names_that_it_writes_into_its_own_status(name: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await register(cluster, *API_SERVER_NAMES, name)
        content = content_for(names=names("n1", name))
        await stays_pending(cluster, await cluster.request(node, content, KUBELET_SERVING, usages=SERVING_USAGES))

    run(scenario)


@pytest.mark.behaviour("CS-12")
def test_no_client_takes_a_node_for_the_api_server_even_if_its_request_was_approved_by_hand(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        node, key = await register(cluster), certificates.new_private_key()
        content = certificates.new_request(key, certificates.node_identity("n1"), API_SERVER_NAMES)
        name = await cluster.request(node, content, KUBELET_SERVING, usages=SERVING_USAGES)
        await cluster.approve(name)
        request = await cluster.until(name, has_certificate)
        pair = KeyPair(base64.b64decode(request["status"]["certificate"]), key)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (tmp_path / "node.pem").write_bytes(pair.certificate + pair.key)
        server.load_cert_chain(tmp_path / "node.pem")
        client = ssl.create_default_context(cadata=cluster.authority.certificate.decode())
        for host in API_SERVER_NAMES:
            with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer certificate"):
                handshake(server, client, host)

    run(scenario)


@pytest.mark.behaviour("CS-12")
def test_an_older_data_directory_gets_an_authority_for_nodes_that_its_clients_do_not_trust(tmp_path: Path) -> None:
    now = SystemClock().now()
    first = pki.ensure_pki(tmp_path, hostname="", now=now)
    for file in (tmp_path / "pki").glob("kubelet-serving-ca.*"):
        file.unlink()
    second = pki.ensure_pki(tmp_path, hostname="", now=now)
    assert second.authority == first.authority
    assert second.kubelet_serving.key != second.authority.key
    issuer = x509.load_pem_x509_certificate(second.kubelet_serving.certificate)
    assert issuer.subject != x509.load_pem_x509_certificate(second.authority.certificate).subject
    trusted = {certificate["serialNumber"] for certificate in pki.kubelet_tls(second, now).certified.get_ca_certs()}
    assert trusted == {f"{issuer.serial_number:X}".zfill(len(next(iter(trusted))))}


@pytest.mark.behaviour("CS-03")
def test_a_client_certificate_is_never_issued_without_its_usage_so_that_it_cannot_serve() -> None:
    async def scenario(cluster: Cluster) -> None:
        mallory = cluster.user("mallory", "system:masters")
        content = content_for("mallory", "team", names=names(*API_SERVER_NAMES))
        name = await cluster.request(mallory, content, API_CLIENT, usages=["digital signature"])
        await cluster.approve(name)
        failed = await cluster.until(name, has_failed)
        assert conditions(failed)["Failed"]["message"] == "usages did not match"

    run(scenario)


SERVICE, API_SERVER, CLIENT = "10.96.0.1", "192.0.2.1", "192.0.2.7"


def is_approved(subject: Subject, client: str, *allowed: str) -> bool:
    addresses = ServingAddresses(tuple(map(ip_network, allowed)), {parse_address(SERVICE)}, {parse_address(API_SERVER)})
    spec: Document = {"signerName": KUBELET_SERVING, "usages": SERVING_USAGES, "username": subject.common_name}
    return is_own_serving_request({"spec": {**spec, "extra": {CLIENT_ADDRESS: [client]}}}, subject, addresses)


@pytest.mark.behaviour("CS-04")
@pytest.mark.parametrize(
    ("address", "client", "allowed", "expected"),
    [
        (CLIENT, CLIENT, (), True),
        (CLIENT, f"::ffff:{CLIENT}", (), True),
        ("192.0.2.8", CLIENT, (), False),
        ("192.0.2.8", CLIENT, ("192.0.2.8/32",), True),
        # Never, although the connection comes from there: loopback, link-local, Services and API servers.
        ("127.0.0.1", "127.0.0.1", (), False),
        ("::1", "::1", (), False),
        ("::ffff:127.0.0.1", "127.0.0.1", (), False),
        ("169.254.169.254", "169.254.169.254", (), False),
        (SERVICE, SERVICE, (), False),
        (API_SERVER, API_SERVER, (), False),
        # An operator can allow the machine that is a node and has the API server, but never a Service.
        ("127.0.0.1", "127.0.0.1", ("127.0.0.0/8",), True),
        (API_SERVER, API_SERVER, ("192.0.2.1/32",), True),
        (SERVICE, SERVICE, ("0.0.0.0/0",), False),
        # An address that was not recorded allows nothing.
        ("192.0.2.7", "", (), False),
    ],
)
def test_a_node_serves_only_the_address_it_connects_from_or_an_allowed_one(
    address: str, client: str, allowed: tuple[str, ...], expected: bool
) -> None:
    assert is_approved(Subject(NODE_USER, ("system:nodes",), (), (address,)), client, *allowed) is expected


@pytest.mark.behaviour("CS-04")
@pytest.mark.parametrize(
    "node",
    ["localhost", "a.localhost", "kubernetes", "kubernetes.default", "web.shop.svc", "web.shop.svc.cluster.local"],
)
def test_a_node_named_like_a_service_gets_no_serving_certificate_for_its_name(node: str) -> None:
    assert not is_approved(Subject(f"system:node:{node}", ("system:nodes",), (node,)), CLIENT)
    assert is_approved(Subject("system:node:n1.example", ("system:nodes",), ("n1.example",)), CLIENT)


@pytest.mark.behaviour("CS-12")
def test_nobody_forges_the_address_that_a_request_comes_from(tmp_path: Path) -> None:
    with running_server(tmp_path, "--store=memory", command="apiserver") as server, calling(server) as admin:
        spec = {
            "request": base64.b64encode(content_for(names=names(CLIENT))).decode(),
            "signerName": KUBELET_SERVING,
            "usages": SERVING_USAGES,
            "extra": {CLIENT_ADDRESS: [CLIENT]},
        }

        def recorded(**headers: str) -> dict[str, Any]:
            body = {"metadata": {"generateName": "csr-"}, "spec": spec}
            answer = admin.call("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests", body, **headers)
            assert answer.status == 201, answer.body
            extra: dict[str, Any] = answer.json()["spec"].get("extra") or {}
            return {key: value for key, value in extra.items() if not key.startswith("authentication.")}

        assert recorded() == {CLIENT_ADDRESS: ["127.0.0.1"]}
        assert recorded(**{"X-Forwarded-For": CLIENT, "X-Remote-Extra-Dray.dev%2Fclient-Address": CLIENT}) == {
            CLIENT_ADDRESS: ["127.0.0.1"]
        }
        # Who acts for a node connects from elsewhere: nothing is recorded.
        impersonation = {
            "Impersonate-User": NODE_USER,
            "Impersonate-Group": "system:masters",
            "Impersonate-Extra-dray.dev%2Fclient-address": CLIENT,
            "Impersonate-Extra-reason": "test",
        }
        assert recorded(**impersonation) == {"reason": ["test"]}


async def node_exists_event(cluster: Cluster) -> str:
    async with asyncio.timeout(60):
        while True:
            for event in (await cluster.admin.list(EVENTS, "default")).items:
                if event["reason"] == "NodeExists":
                    return str(event["message"])
            await asyncio.sleep(0.1)


@pytest.mark.behaviour("CS-04")
def test_a_bootstrap_token_does_not_get_the_identity_of_a_node_that_exists() -> None:
    async def scenario(cluster: Cluster) -> None:
        await register(cluster)
        thief = cluster.user("system:bootstrap:abcdef", *BOOTSTRAP_GROUPS)
        first, second = [await cluster.request(thief, content_for()) for _ in range(2)]
        await stays_pending(cluster, first)
        assert "Node n1 exists: delete it, or approve the request" in await node_exists_event(cluster)
        with pytest.raises(ForbiddenError):
            await thief.delete(NODES.unstructured, "n1", "")
        # An operator can approve it, or delete the Node whose machine is to join again.
        await cluster.approve(first)
        assert certificate_of(await cluster.until(first, has_certificate))
        await cluster.admin.delete(NODES.unstructured, "n1", "")
        assert certificate_of(await cluster.until(second, has_certificate))

    run(scenario)


WEAK_KEYS = {
    "RSA with 1024 bits": lambda: rsa.generate_private_key(65537, 1024),
    "ECDSA P-192": lambda: ec.generate_private_key(ec.SECP192R1()),
    "DSA": lambda: dsa.generate_private_key(2048),
}


@pytest.mark.behaviour("CS-03")
@pytest.mark.parametrize("kind", WEAK_KEYS)
def test_a_weak_key_gets_no_certificate(kind: str) -> None:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, NODE_USER),
        ]
    )
    key: Any = WEAK_KEYS[kind]()
    signed = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())

    async def scenario(cluster: Cluster) -> None:
        joining = cluster.user("system:bootstrap:abcdef", *BOOTSTRAP_GROUPS)
        name = await cluster.request(joining, signed.public_bytes(serialization.Encoding.PEM))
        await stays_pending(cluster, name)
        await cluster.approve(name)
        assert "must" in conditions(await cluster.until(name, has_failed))["Failed"]["message"]

    run(scenario)
