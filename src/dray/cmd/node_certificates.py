"""Renews the client and the serving certificate of a running node agent."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from dray.client.certificate_requests import obtain_certificate
from dray.client.credentials import ClientCertificate
from dray.client.interface import Client
from dray.client.kubeconfig import with_client_certificate
from dray.cmd.certificate_tool import new_node_request, read_validity
from dray.cmd.node_identity import Serving, load_serving
from dray.lib.clock import Clock
from dray.node.agent.certificate_manager import CertificateManager, Validity
from dray.node.untrusted_files import write_private
from dray.runtime.tasks import TaskGroup

# kubelet's.
CERTIFICATE_SECONDS_MAX: Final = 900.0
_CLIENT: Final = ("kubernetes.io/kube-apiserver-client-kubelet", ("digital signature", "client auth"))
_SERVING: Final = ("kubernetes.io/kubelet-serving", ("digital signature", "server auth"))


class NodeCertificates:
    """The certificates of one node, renewed by requests to the cluster."""

    def __init__(self, client: Client, clock: Clock, node_name: str) -> None:
        self._client = client
        self._clock = clock
        self._node_name = node_name
        self._random = random.Random()  # noqa: S311 - spreads load

    async def rotate_client(self, group: TaskGroup, current: ClientCertificate, kubeconfig: Path) -> None:
        """Renew the client certificate: it is used at once, and is in the kubeconfig for the next start."""

        async def renew() -> Validity:
            key, certificate = await self._obtain(_CLIENT, ())
            await asyncio.to_thread(_write_certificate, kubeconfig, certificate, key)
            current.replace(certificate, key)
            return await read_validity(certificate)

        self._spawn(group, "client", renew, await read_validity(current.certificate))

    async def rotate_serving(
        self,
        group: TaskGroup,
        context: ssl.SSLContext,
        new_serving: Callable[[], Awaitable[tuple[bytes, bytes]]],
        current: bytes | None,
        installed: Callable[[], Awaitable[None]],
    ) -> None:
        """Renew the serving certificate, at once if there is none of the cluster's authority.

        New connections get it.
        """

        async def renew() -> Validity:
            key, certificate = await new_serving()
            load_serving(context, Serving(certificate, key))
            await installed()
            return await read_validity(certificate)

        self._spawn(group, "serving", renew, None if current is None else await read_validity(current))

    async def obtain_serving(self, names: Sequence[str]) -> tuple[bytes, bytes]:
        """Return a new key and a serving certificate for it, which the cluster has signed."""
        return await self._obtain(_SERVING, names)

    def _spawn(
        self, group: TaskGroup, name: str, renew: Callable[[], Awaitable[Validity]], validity: Validity | None
    ) -> None:
        manager = CertificateManager(name, self._clock, self._random, renew)
        group.spawn(manager.run(validity), f"{name} certificate")

    async def _obtain(self, signer: tuple[str, Sequence[str]], names: Sequence[str]) -> tuple[bytes, bytes]:
        key, request = await new_node_request(self._node_name, names)
        certificate = await obtain_certificate(self._client, self._clock, request, *signer, CERTIFICATE_SECONDS_MAX)
        return key, certificate


def _write_certificate(kubeconfig: Path, certificate: bytes, key: bytes) -> None:
    content = with_client_certificate(kubeconfig.read_text(encoding="utf-8"), certificate, key)
    write_private(kubeconfig, content.encode())
