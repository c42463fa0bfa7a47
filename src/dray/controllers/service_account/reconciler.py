"""The service account controller's hands."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from dray.client import resources
from dray.client.controller import Controller, Result
from dray.client.informer import Selection
from dray.client.interface import Client
from dray.client.objects import key_of
from dray.client.resources import NAMESPACES, SERVICE_ACCOUNTS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.service_account import plan
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics

_CORE: Final = GroupVersion("", "v1")
CONFIG_MAPS: Final = resources.CONFIG_MAPS.unstructured
WORKERS: Final = 5


class ServiceAccountController:
    """Runs until cancelled; `root_ca` is the PEM text that clients inside the cluster trust."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        *,
        root_ca: str = "",
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._root_ca = root_ca
        self.controller: Controller[str] = Controller(
            "serviceaccount", self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._namespaces = informers.informer(NAMESPACES)
        self._accounts = informers.informer(
            SERVICE_ACCOUNTS, Selection(field_selector=f"metadata.name={plan.SERVICE_ACCOUNT}")
        )
        self._config_maps = informers.informer(CONFIG_MAPS, Selection(field_selector=f"metadata.name={plan.ROOT_CA}"))
        self.controller.watch(self._namespaces, lambda obj: (key_of(obj).name,))
        for informer in (self._accounts, self._config_maps):
            self.controller.watch(informer, lambda obj: (key_of(obj).namespace,))

    async def run(self) -> None:
        """Furnish namespaces until cancelled."""
        await self.controller.run()

    async def reconcile(self, namespace: str) -> Result:
        """Furnish one namespace."""
        wanted = plan.plan_namespace(
            self._namespaces.lister.get(namespace),
            self._accounts.lister.get(plan.SERVICE_ACCOUNT, namespace),
            self._config_maps.lister.get(plan.ROOT_CA, namespace),
            self._root_ca,
        )
        if wanted.create_service_account is not None:
            await _tolerant(self._client.create(SERVICE_ACCOUNTS, wanted.create_service_account))
        if wanted.create_config_map is not None:
            await _tolerant(self._client.create(CONFIG_MAPS, wanted.create_config_map))
        if wanted.update_config_map is not None:
            await _tolerant(self._client.update(CONFIG_MAPS, wanted.update_config_map))
        return None


async def _tolerant(write: Awaitable[Document]) -> None:
    """Already there is success; in a namespace that is gone or going there is nothing to furnish."""
    try:
        await write
    except (AlreadyExistsError, NotFoundError):
        return
    except ForbiddenError as error:
        causes = (error.details or {}).get("causes") or ()
        if not any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
            raise
