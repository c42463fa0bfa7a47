"""Attacks on the port of a node agent, where commands run in containers, with certificates.

A node has two certificates, a bootstrap token gets one: neither they nor what is made with them are taken for the
API server's, which alone is admitted without being asked about.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dray.apiserver.authentication import certificates
from dray.apiserver.authentication.certificates import Identity, KeyPair, node_identity
from dray.apiserver.authentication.pki import PKI, ensure_pki
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS as REQUESTS
from dray.controllers.certificates.plan import API_CLIENT, KUBELET_CLIENT, conditions
from dray.node.agent.kubelet_authorization import certificate_user
from dray.runtime.system import SystemClock
from tests.certificate_cluster import (
    BOOTSTRAP_GROUPS,
    Cluster,
    has_failed,
    run,
)
from tests.e2e.apiserver.calls import calling
from tests.servers import Server, running_server
from tests.tls_handshake import handshake

API_SERVER = "kube-apiserver-kubelet-client"
SECONDS_MAX = 120.0
# What the API server asks a node for; the second runs a command.
PATHS = (("GET", "/pods"), ("POST", "/exec/default/p/c?command=id&output=1"), ("GET", "/containerLogs/default/p/c"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    flags = ("--node", "--node-runtime=process", f"--node-root-dir={folder}/node", "--store=memory")
    with running_server(folder, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def keys(server: Server) -> PKI:
    return ensure_pki(server.data_dir, hostname="", now=SystemClock().now())


@pytest.fixture(scope="module")
def port(server: Server) -> int:
    """The port of the node that is attacked."""
    with calling(server) as admin:
        (node,) = admin.get("/api/v1/nodes").json()["items"]
    return int(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"])


def signed(
    issuer: KeyPair, name: Sequence[x509.NameAttribute[str]], *, usage: x509.ObjectIdentifier, ca: bool = False
) -> KeyPair:
    """A certificate of whoever has the issuer's key, also if the issuer must not sign."""
    key, now = certificates.new_private_key(), SystemClock().now()
    parent = x509.load_pem_x509_certificate(issuer.certificate)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(name))
        .issuer_name(parent.subject)
        .public_key(certificates.load_private_key(key).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    content = builder.sign(certificates.load_private_key(issuer.key), hashes.SHA256())
    # With the issuer's, as a chain is presented.
    return KeyPair(content.public_bytes(serialization.Encoding.PEM) + issuer.certificate, key)


def name(*common: str, groups: Sequence[str] = ()) -> list[x509.NameAttribute[str]]:
    return [
        *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
        *(x509.NameAttribute(NameOID.COMMON_NAME, text) for text in common),
    ]


def answers(port: int, pair: KeyPair, folder: Path) -> list[int | str]:
    """What the node answers to each of the paths: a status, or how it ended the handshake."""
    file = folder / "client.pem"
    file.write_bytes(pair.certificate + pair.key)
    tls = ssl._create_unverified_context()
    tls.load_cert_chain(file)
    found: list[int | str] = []
    for method, path in PATHS:
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=30)
        try:
            connection.request(method, path)
            found.append(connection.getresponse().status)
        except (ssl.SSLError, ConnectionError) as error:
            found.append(type(error).__name__)
        finally:
            connection.close()
    return found


def is_refused(found: Sequence[int | str]) -> bool:
    """Who is admitted gets the Pods, and to know that the container of the commands does not exist."""
    return all(answer in (401, 403) or isinstance(answer, str) for answer in found)


def test_the_api_servers_certificate_is_admitted(port: int, keys: PKI, tmp_path: Path) -> None:
    own = keys.directory / "apiserver-kubelet-client"
    pair = KeyPair(own.with_suffix(".crt").read_bytes(), own.with_suffix(".key").read_bytes())
    assert answers(port, pair, tmp_path) == [200, 404, 404]


def test_another_nodes_certificates_are_not_admitted(port: int, keys: PKI, tmp_path: Path) -> None:
    now, identity = SystemClock().now(), node_identity("n2")
    client = certificates.new_client(keys.authority, identity, now)
    assert answers(port, client, tmp_path) == [403, 403, 403]
    # Nobody trusts its other one as that of a client, and clients trust none of a server.
    serving = certificates.new_server(keys.kubelet_serving, ["n2"], now, identity)
    assert is_refused(answers(port, serving, tmp_path))
    of_server = certificates.new_server(keys.authority, ["n2"], now, Identity(API_SERVER))
    assert is_refused(answers(port, of_server, tmp_path))


FORGED = {
    "the API server's name": name(API_SERVER),
    "the administrators' group": name("mallory", groups=["system:masters"]),
    "another node": name("system:node:n1", groups=["system:nodes"]),
}


@pytest.mark.parametrize("kind", FORGED)
@pytest.mark.parametrize("issuer", ["client", "serving", "authority of its own", "an authority that it signed"])
def test_a_certificate_that_a_node_has_issued_is_not_admitted(
    port: int, keys: PKI, tmp_path: Path, issuer: str, kind: str
) -> None:
    now, identity = SystemClock().now(), node_identity("n2")
    client = certificates.new_client(keys.authority, identity, now)
    issuers = {
        "client": client,
        "serving": certificates.new_server(keys.kubelet_serving, ["n2"], now, identity),
        # With the name of the cluster's.
        "authority of its own": certificates.new_authority(certificates.new_private_key(), now),
        "an authority that it signed": signed(client, name("dray"), usage=ExtendedKeyUsageOID.CLIENT_AUTH, ca=True),
    }
    forged = signed(issuers[issuer], FORGED[kind], usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    assert is_refused(answers(port, forged, tmp_path))


# The API server and those who approve requests read the last one.
TWO_NAMES = {
    KUBELET_CLIENT: (API_SERVER, "system:node:n9"),
    API_CLIENT: (API_SERVER, "mallory"),
}


@pytest.mark.behaviour("CS-03")
@pytest.mark.parametrize("signer", TWO_NAMES)
def test_a_request_with_two_names_gets_no_certificate(signer: str) -> None:
    """A bootstrap token got one for the API server's name, which node agents read, and the name of a new node."""
    names = name(*TWO_NAMES[signer], groups=["system:nodes"])
    key = certificates.load_private_key(certificates.new_private_key())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names)).sign(key, hashes.SHA256())
    content = request.public_bytes(serialization.Encoding.PEM)

    async def scenario(cluster: Cluster) -> None:
        thief = cluster.user("system:bootstrap:abcdef", *BOOTSTRAP_GROUPS)
        found = await cluster.request(thief, content, signer)
        await asyncio.sleep(600)
        assert not conditions(await cluster.admin.get(REQUESTS, found, ""))
        await cluster.approve(found)
        failed = conditions(await cluster.until(found, has_failed))["Failed"]
        assert failed["message"] == "a certificate signing request must have one common name"

    run(scenario)


@pytest.mark.parametrize("names", [(API_SERVER, "mallory"), ("mallory", API_SERVER), ("mallory",), ()])
def test_nodes_and_api_server_take_the_same_name_for_the_users(names: Sequence[str], keys: PKI, tmp_path: Path) -> None:
    """An administrator's other tools can sign what the cluster does not."""
    subject = name(*names, groups=["system:masters"])
    pair = signed(keys.authority, subject, usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    read = certificates.identity_of(x509.load_pem_x509_certificate(pair.certificate))
    fields = decoded(pair, keys, tmp_path)
    found = certificate_user(fields, SystemClock().now())
    assert (found or {}).get("username") == (read.user if read is not None else None)
    assert certificate_user(fields, SystemClock().now() + timedelta(days=1)) is None


def decoded(pair: KeyPair, keys: PKI, folder: Path) -> dict[str, Any]:
    """The certificate of a client as the server's TLS library tells it."""
    file = folder / "pair.pem"
    file.write_bytes(pair.certificate + pair.key)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl._create_unverified_context()
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=keys.authority.certificate.decode())
    server.load_cert_chain(keys.directory / "apiserver.crt", keys.directory / "apiserver.key")
    client.load_cert_chain(file)
    return handshake(server, client, "localhost")[0].getpeercert() or {}
