"""Certificate signing requests and bootstrap tokens with their controllers, in virtual time."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from dray.api import bootstrap_tokens
from dray.api.bootstrap_tokens import Token
from dray.api.document import Document
from dray.api.errors import ForbiddenError, NotFoundError
from dray.apiserver.authentication import certificates
from dray.apiserver.bootstrap import Bootstrap
from dray.apiserver.healthz import PostStartHooks
from dray.client.in_process import InProcessTransport
from dray.client.interface import WriteOptions
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS as REQUESTS
from dray.client.resources import CONFIG_MAPS, NODES, SECRETS
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.cluster_authority import ClusterAuthority
from dray.controllers.certificates.plan import API_CLIENT, KUBELET_CLIENT, KUBELET_SERVING, conditions
from dray.controllers.certificates.reconciler import BootstrapTokenController, CertificateController
from dray.controllers.reconciler import ControllerContext
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.in_process_server import in_process_server

YEAR = 31_536_000.0
CLIENT_USAGES = ["digital signature", "client auth"]
NODE_USER = "system:node:n1"
BOOTSTRAP_GROUPS = ("system:bootstrappers", bootstrap_tokens.NODE_GROUP)


class Cluster:
    """An API server with the two controllers."""

    def __init__(self, server: Any, clock: LoopClock) -> None:
        self._server = server
        self.clock = clock
        self.authority = certificates.new_authority(certificates.new_private_key(), clock.now())
        self.admin = self.user("admin", "system:masters")

    def user(self, name: str, *groups: str) -> RestClient:
        return RestClient(InProcessTransport(self._server, user=name, groups=groups, user_agent="test"))

    async def request(self, client: RestClient, content: bytes, signer: str = KUBELET_CLIENT, **spec: Any) -> str:
        body = {
            "metadata": {"generateName": "csr-"},
            "spec": {
                "request": base64.b64encode(content).decode(),
                "signerName": signer,
                "usages": CLIENT_USAGES,
                **spec,
            },
        }
        created = await client.create(REQUESTS, body)
        return str(created["metadata"]["name"])

    async def approve(self, name: str) -> None:
        request = await self.admin.get(REQUESTS, name, "")
        condition = {"type": "Approved", "status": "True", "reason": "Test", "message": "by hand"}
        changed = {**request, "status": {"conditions": [condition]}}
        await self.admin.update(REQUESTS, changed, WriteOptions(subresource="approval"))

    async def until(self, name: str, condition: Callable[[Document], object]) -> Document:
        async with asyncio.timeout(900):
            while True:
                request = await self.admin.get(REQUESTS, name, "")
                if condition(request):
                    return request
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    clock, rng = LoopClock(), random.Random(7)
    async with in_process_server(clock, random.Random(1)) as server:
        await Bootstrap(server, PostStartHooks()).run()
        cluster = Cluster(server, clock)
        client = cluster.user("system:kube-controller-manager", "system:masters")
        informers = SharedInformerFactory(client, clock, rng)
        context = ControllerContext(client, informers, clock, rng=rng)
        controllers = (
            CertificateController(context, ClusterAuthority(cluster.authority), YEAR),
            BootstrapTokenController(context),
        )
        async with TaskGroup("test") as group:
            for controller in controllers:
                group.spawn(controller.run(), controller.name)
            group.spawn(informers.run(), "informers")
            yield cluster


def run(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running() as cluster:
            await scenario(cluster)

    run_virtually(main())


def content_for(user: str = NODE_USER, *organizations: str, names: tuple[x509.GeneralName, ...] = ()) -> bytes:
    key = certificates.load_private_key(certificates.new_private_key())
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, item) for item in organizations or ("system:nodes",)]
    subject = x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, user)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def has_certificate(request: Document) -> bool:
    return bool((request.get("status") or {}).get("certificate"))


def has_failed(request: Document) -> bool:
    return "Failed" in conditions(request)


def certificate_of(request: Document) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(request["status"]["certificate"]))


@pytest.mark.behaviour("CS-03", "CS-04", "CS-09")
def test_a_bootstrapping_node_gets_a_client_certificate() -> None:
    async def scenario(cluster: Cluster) -> None:
        joining = cluster.user("system:bootstrap:abcdef", *BOOTSTRAP_GROUPS)
        name = await cluster.request(joining, content_for(), expirationSeconds=3600)
        request = await cluster.until(name, has_certificate)
        approval = conditions(request)["Approved"]
        assert approval["reason"] == "AutoApproved"
        assert approval["message"] == "Auto approving kubelet client certificate after SubjectAccessReview."
        issued = certificate_of(request)
        identity = certificates.identity_of(issued)
        assert identity is not None
        assert (identity.user, identity.groups) == (NODE_USER, ("system:nodes",))
        issued.verify_directly_issued_by(x509.load_pem_x509_certificate(cluster.authority.certificate))
        # Back-dated by five minutes, for clocks that differ.
        assert issued.not_valid_after_utc - issued.not_valid_before_utc == timedelta(hours=1, minutes=5)
        usage = issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]

    run(scenario)


@pytest.mark.behaviour("CS-04")
def test_a_node_renews_its_own_certificate_but_no_other() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.user(NODE_USER, "system:nodes")
        own = await cluster.request(node, content_for())
        request = await cluster.until(own, has_certificate)
        assert "self kubelet client" in conditions(request)["Approved"]["message"]
        other = await cluster.request(node, content_for("system:node:n2"))
        await asyncio.sleep(60)
        assert not (await cluster.admin.get(REQUESTS, other, "")).get("status", {}).get("conditions")

    run(scenario)


@pytest.mark.behaviour("CS-04")
def test_a_serving_certificate_is_for_the_addresses_of_the_node() -> None:
    async def scenario(cluster: Cluster) -> None:
        address = x509.IPAddress(ip_address("192.0.2.7"))
        usages = ["digital signature", "server auth"]
        status = {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "n1"}]}
        await cluster.admin.create(NODES.unstructured, {"metadata": {"name": "n1"}, "status": status})
        node = cluster.user(NODE_USER, "system:nodes")
        good = content_for(names=(address, x509.DNSName("n1")))
        name = await cluster.request(node, good, KUBELET_SERVING, usages=usages)
        issued = certificate_of(await cluster.until(name, has_certificate))
        assert certificates.server_names(issued.public_bytes(serialization.Encoding.PEM)) == {"192.0.2.7", "n1"}
        foreign = content_for(names=(x509.DNSName("kubernetes.default"),))
        wrong = await cluster.request(node, foreign, KUBELET_SERVING, usages=usages)
        await asyncio.sleep(60)
        assert not conditions(await cluster.admin.get(REQUESTS, wrong, ""))

    run(scenario)


@pytest.mark.behaviour("CS-03")
@pytest.mark.parametrize(
    ("content", "signer", "usages", "message"),
    [
        (content_for("somebody"), KUBELET_CLIENT, CLIENT_USAGES, "does not begin with system:node:"),
        (content_for("system:node:"), KUBELET_CLIENT, CLIENT_USAGES, "missing the name of the node"),
        (
            content_for(NODE_USER, "system:nodes", "other"),
            KUBELET_CLIENT,
            CLIENT_USAGES,
            "organization is not system:nodes",
        ),
        (content_for(names=(x509.DNSName("n1"),)), KUBELET_CLIENT, CLIENT_USAGES, "SANs are not allowed"),
        (
            content_for(names=(x509.RFC822Name("a@b.c"),)),
            KUBELET_SERVING,
            ["digital signature", "server auth"],
            "email",
        ),
        (content_for(), KUBELET_SERVING, ["digital signature", "server auth"], "subjectAltName is required"),
        (content_for(), KUBELET_CLIENT, ["client auth"], "usages did not match"),
        (content_for(), KUBELET_CLIENT, [*CLIENT_USAGES, "server auth"], "usages did not match"),
        (content_for("me", "system:masters"), API_CLIENT, CLIENT_USAGES, "system:masters"),
    ],
)
def test_an_approved_request_that_the_signer_cannot_fulfil_fails(
    content: bytes, signer: str, usages: list[str], message: str
) -> None:
    async def scenario(cluster: Cluster) -> None:
        somebody = cluster.user("somebody", "system:masters")
        if signer == API_CLIENT:
            # Refused earlier, when it is created.
            try:
                name = await cluster.request(somebody, content, signer, usages=usages)
            except ForbiddenError:
                return
        else:
            name = await cluster.request(somebody, content, signer, usages=usages)
        await cluster.approve(name)
        request = await cluster.until(name, has_failed)
        failure = conditions(request)["Failed"]
        assert failure["reason"] == "SignerValidationFailure"
        assert message in failure["message"]
        assert not has_certificate(request)

    run(scenario)


@pytest.mark.behaviour("CS-03")
def test_a_certificate_ends_with_its_authority_at_the_latest() -> None:
    async def scenario(cluster: Cluster) -> None:
        somebody = cluster.user("somebody", "system:masters")
        name = await cluster.request(somebody, content_for("me", "team"), API_CLIENT)
        await cluster.approve(name)
        issued = certificate_of(await cluster.until(name, has_certificate))
        assert issued.not_valid_after_utc <= cluster.clock.now() + timedelta(seconds=YEAR)

    run(scenario)


@pytest.mark.behaviour("CS-05")
def test_old_requests_are_deleted() -> None:
    async def scenario(cluster: Cluster) -> None:
        joining = cluster.user("system:bootstrap:abcdef", *BOOTSTRAP_GROUPS)
        done = await cluster.request(joining, content_for())
        pending = await cluster.request(
            cluster.user("somebody", "system:masters"), content_for("me", "team"), API_CLIENT
        )
        await cluster.until(done, has_certificate)
        await asyncio.sleep(3700)
        with pytest.raises(NotFoundError):
            await cluster.admin.get(REQUESTS, done, "")
        await cluster.admin.get(REQUESTS, pending, "")
        await asyncio.sleep(24 * 3600)
        with pytest.raises(NotFoundError):
            await cluster.admin.get(REQUESTS, pending, "")

    run(scenario)


@pytest.mark.behaviour("CS-06", "CS-07")
def test_tokens_sign_the_address_of_the_cluster_until_they_expire() -> None:
    async def scenario(cluster: Cluster) -> None:
        token = Token("abcdef", "0123456789abcdef")
        info = {"metadata": {"name": "cluster-info", "namespace": "kube-public"}, "data": {"kubeconfig": "content"}}
        await cluster.admin.create(CONFIG_MAPS.unstructured, info)
        expires = cluster.clock.now() + timedelta(hours=1)
        await cluster.admin.create(SECRETS.unstructured, bootstrap_tokens.make_secret(token, expires, ""))

        async def data() -> dict[str, str]:
            found = await cluster.admin.get(CONFIG_MAPS.unstructured, "cluster-info", "kube-public")
            return dict(found["data"])

        async with asyncio.timeout(60):
            while "jws-kubeconfig-abcdef" not in await data():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)
        assert bootstrap_tokens.is_signed("content", (await data())["jws-kubeconfig-abcdef"], token)
        await asyncio.sleep(3700)
        assert await data() == {"kubeconfig": "content"}
        with pytest.raises(NotFoundError):
            await cluster.admin.get(SECRETS.unstructured, "bootstrap-token-abcdef", "kube-system")

    run(scenario)
