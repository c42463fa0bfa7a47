"""Writes the gathered rules of aggregated ClusterRoles."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.api.selectors import LabelSelector
from dray.client.controller import Controller, Result
from dray.client.interface import Client, Patch, PatchType, WriteOptions
from dray.client.resources import CLUSTER_ROLES, FieldManager
from dray.client.shared_informers import SharedInformerFactory
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics

_VERSION: Final = GroupVersion("rbac.authorization.k8s.io", "v1")
_OPTIONS: Final = WriteOptions(field_manager=FieldManager.CLUSTER_ROLE_AGGREGATION)


class ClusterRoleAggregationController:
    """Runs until cancelled."""

    def __init__(
        self, client: Client, informers: SharedInformerFactory, clock: Clock, metrics: Metrics | None = None
    ) -> None:
        self._client = client
        self.controller: Controller[str] = Controller("ClusterRoleAggregator", self.reconcile, clock, metrics=metrics)
        self._roles = informers.informer(CLUSTER_ROLES)
        # Any role may be chosen by any aggregated one; there are few of those.
        self.controller.watch(self._roles, lambda _role: self._aggregated())

    async def run(self) -> None:
        """Aggregate until cancelled."""
        await self.controller.run()

    async def reconcile(self, name: str) -> Result:
        """Bring one aggregated role up to date."""
        role = self._roles.lister.get(name)
        if role is None or not is_aggregated(role):
            return None
        rules = plan_rules(role, self._roles.lister.list())
        if rules is None:
            return None
        # The version keeps the patch off a role that changed, or went and came again, meanwhile.
        patch = {"metadata": {"resourceVersion": role["metadata"]["resourceVersion"]}, "rules": rules}
        with suppress(NotFoundError):
            await self._client.patch(CLUSTER_ROLES, name, "", Patch(PatchType.MERGE, patch), _OPTIONS)
        return None

    def _aggregated(self) -> tuple[str, ...]:
        roles: list[Document] = list(self._roles.lister.list())
        return tuple(role["metadata"]["name"] for role in roles if is_aggregated(role))


def is_aggregated(role: Document) -> bool:
    """Whether the role's rules are gathered from others."""
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def plan_rules(role: Document, roles: Iterable[Document]) -> list[Document] | None:
    """The rules to write, None when they are there already."""
    selectors = [LabelSelector.from_document(item) for item in role["aggregationRule"]["clusterRoleSelectors"]]
    wanted: list[Document] = []
    for other in sorted(roles, key=lambda item: item["metadata"]["name"]):
        metadata = other["metadata"]
        if metadata["name"] == role["metadata"]["name"]:
            continue
        labels = metadata.get("labels") or {}
        if any(selector.matches(labels) for selector in selectors):
            wanted.extend(rule for rule in other.get("rules") or () if rule not in wanted)
    return None if wanted == (role.get("rules") or []) else wanted
