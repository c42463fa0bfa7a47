"""An API server with the controllers of certificates and bootstrap tokens, in virtual time."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from dray.api import bootstrap_tokens
from dray.api.document import Document
from dray.apiserver.authentication import certificates
from dray.apiserver.bootstrap import Bootstrap
from dray.apiserver.healthz import PostStartHooks
from dray.client.in_process import InProcessTransport
from dray.client.interface import WriteOptions
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS as REQUESTS
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.cmd.cluster_authority import ClusterAuthority, authorities_by_signer
from dray.controllers.certificates.plan import KUBELET_CLIENT, conditions
from dray.controllers.certificates.reconciler import BootstrapTokenController, CertificateController
from dray.controllers.reconciler import ControllerContext
from dray.runtime.tasks import TaskGroup
from dray.sim.replica.virtual_time import LoopClock, run_virtually
from tests.in_process_server import in_process_server

YEAR = 31_536_000.0
# Its addresses are allowed in the serving certificates of nodes.
ALLOWED_NETWORK = "192.0.2.0/24"
CLIENT_USAGES = ["digital signature", "client auth"]
SERVING_USAGES = ["digital signature", "server auth"]
NODE_USER = "system:node:n1"
BOOTSTRAP_GROUPS = ("system:bootstrappers", bootstrap_tokens.NODE_GROUP)


class Cluster:
    """An API server with the two controllers."""

    def __init__(self, server: Any, clock: LoopClock) -> None:
        self._server = server
        self.clock = clock
        self.authority = certificates.new_authority(certificates.new_private_key(), clock.now())
        self.kubelet_serving = certificates.new_authority(certificates.new_private_key(), clock.now(), "serving")
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
        cluster = Cluster(server, clock)
        await Bootstrap(server, PostStartHooks(), cluster.authority.certificate.decode()).run()
        client = cluster.user("system:kube-controller-manager", "system:masters")
        informers = SharedInformerFactory(client, clock, rng)
        context = ControllerContext(client, informers, clock, rng=rng)
        authorities = authorities_by_signer(cluster.authority, cluster.kubelet_serving)
        controllers = (
            CertificateController(context, ClusterAuthority(authorities), YEAR, [ALLOWED_NETWORK]),
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
