"""Creates the default ServiceAccount and the root CA ConfigMap of every namespace."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from dray.client import resources
from dray.client.controller import Requeue, Result
from dray.client.informer import Selection
from dray.client.objects import key_of
from dray.client.resources import NAMESPACES, SERVICE_ACCOUNTS
from dray.controllers.pod_control.pod_control import is_namespace_terminating
from dray.controllers.reconciler import ControllerContext, Reconciler
from dray.controllers.service_account import plan

# How soon after a write the caches are expected to have it.
RECHECK_SECONDS: Final = 10.0


class ServiceAccountController(Reconciler[str]):
    """Provides every namespace with its defaults; keys are namespaces.

    `root_ca` is the PEM text that Pods verify the API server by.
    """

    name = "serviceaccount"
    workers = 5

    def __init__(self, context: ControllerContext, *, root_ca: str = "") -> None:
        super().__init__(context)
        self._root_ca = root_ca
        informer = context.informers.informer
        self._namespaces = informer(NAMESPACES)
        self._accounts = informer(SERVICE_ACCOUNTS, Selection(field_selector=f"metadata.name={plan.SERVICE_ACCOUNT}"))
        self._config_maps = informer(
            resources.CONFIG_MAPS.unstructured, Selection(field_selector=f"metadata.name={plan.ROOT_CA}")
        )
        self.controller.watch(self._namespaces, lambda obj: (key_of(obj).name,))
        for owned in (self._accounts, self._config_maps):
            self.controller.watch(owned, lambda obj: (key_of(obj).namespace,))

    async def reconcile(self, namespace: str) -> Result:
        """Create or correct the defaults of one namespace."""
        wanted = plan.plan_namespace(
            self._namespaces.lister.get(namespace),
            self._accounts.lister.get(plan.SERVICE_ACCOUNT, namespace),
            self._config_maps.lister.get(plan.ROOT_CA, namespace),
            self._root_ca,
        )
        if wanted.create_service_account is not None:
            await _idempotent(self._client.create(SERVICE_ACCOUNTS, wanted.create_service_account))
        if wanted.create_config_map is not None:
            await _idempotent(self._client.create(resources.CONFIG_MAPS.unstructured, wanted.create_config_map))
        if wanted.update_config_map is not None:
            await _idempotent(self._client.update(resources.CONFIG_MAPS.unstructured, wanted.update_config_map))
        # If what was written is deleted before it is observed, no event reports it.
        return Requeue(RECHECK_SECONDS) if wanted != plan.Plan() else None


async def _idempotent(write: Awaitable[Document]) -> None:
    """Ignore that the object exists, or that its namespace does not or is terminating."""
    try:
        await write
    except (AlreadyExistsError, NotFoundError):
        return
    except ForbiddenError as error:
        if not is_namespace_terminating(error):
            raise
