"""The Services in the environment of containers of this node, from an informer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.node.agent.pod.environment import ConfigError
from dray.node.agent.pod.service_environment import service_variables

# A start that fails is repeated.
_SYNC_SECONDS_MAX: Final = 10.0


class ServiceInformer(Protocol):
    """The part of an informer that is needed here."""

    async def wait_for_sync(self) -> None:
        """Wait until the Services have been listed."""


@dataclass(frozen=True, slots=True)
class NodeServices:
    """Implements `ServiceSource`."""

    informer: ServiceInformer
    services: Callable[[], Iterable[Document]]
    # Host and port of the API server.
    api_server: tuple[str, int]
    # Whether containers reach cluster IPs.
    has_forwarding: Callable[[], bool]
    cluster_dns: Callable[[], tuple[str, ...] | None]

    @property
    def dns_servers(self) -> tuple[str, ...] | None:
        """The addresses of the cluster's DNS; None if the runtime does not write resolv.conf."""
        return self.cluster_dns()

    async def variables(self, pod: Pod) -> dict[str, str]:
        """Return the environment variables of Services; raises `ConfigError` while they are not known."""
        try:
            async with asyncio.timeout(_SYNC_SECONDS_MAX):
                await self.informer.wait_for_sync()
        except TimeoutError as error:
            message = "services have not yet been read at least once, cannot construct envvars"
            raise ConfigError(message) from error
        return service_variables(pod, self.services(), None if self.has_forwarding() else self.api_server)
