"""Writes the rules of aggregated ClusterRoles: those of the roles that their selectors match."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import NotFoundError
from dray.api.selectors import LabelSelector
from dray.client.controller import Result
from dray.client.interface import Patch, PatchType, WriteOptions
from dray.client.resources import CLUSTER_ROLES, FieldManager
from dray.controllers.reconciler import ControllerContext, Reconciler

_VERSION: Final = GroupVersion("rbac.authorization.k8s.io", "v1")
_OPTIONS: Final = WriteOptions(field_manager=FieldManager.CLUSTER_ROLE_AGGREGATION)


class ClusterRoleAggregationController(Reconciler[str]):
    """Keeps the rules of aggregated ClusterRoles up to date; keys are names of ClusterRoles."""

    name = "ClusterRoleAggregator"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._roles = context.informers.informer(CLUSTER_ROLES)
        # Any role may be selected by any aggregated role; there are few of those.
        self.controller.watch(self._roles, lambda _role: self._aggregated())

    async def reconcile(self, name: str) -> Result:
        """Write the rules of one aggregated role."""
        role = self._roles.lister.get(name)
        if role is None or not is_aggregated(role):
            return None
        rules = plan_rules(role, self._roles.lister.list())
        if rules is None:
            return None
        # The resource version rejects the patch if the role was changed or recreated meanwhile.
        patch = {"metadata": {"resourceVersion": role["metadata"]["resourceVersion"]}, "rules": rules}
        with suppress(NotFoundError):
            await self._client.patch(CLUSTER_ROLES, name, "", Patch(PatchType.MERGE, patch), _OPTIONS)
        return None

    def _aggregated(self) -> tuple[str, ...]:
        roles: list[Document] = list(self._roles.lister.list())
        return tuple(role["metadata"]["name"] for role in roles if is_aggregated(role))


def is_aggregated(role: Document) -> bool:
    """Return whether the role's rules are aggregated from other roles."""
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def plan_rules(role: Document, roles: Iterable[Document]) -> list[Document] | None:
    """Return the rules of the selected roles, each once, in name order; None if the role has them already."""
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
