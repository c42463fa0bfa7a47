"""Writes the revisions of DaemonSets and StatefulSets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dray.api.errors import AlreadyExistsError
from dray.api.types.apps_v1 import ControllerRevision
from dray.client.errors import ignore_not_found
from dray.client.interface import DeleteOptions, Resource
from dray.client.objects import controller_of, key_of
from dray.client.resources import CONTROLLER_REVISIONS
from dray.client.shared_informers import SharedInformer
from dray.controllers.pod_control.adoption import claim_dependents
from dray.controllers.pod_control.ownership import Owner
from dray.controllers.pod_control.pod_control import OWNER_INDEXES
from dray.controllers.pod_control.revisions import History, Revised, plan_history, surplus_history
from dray.controllers.reconciler import ControllerContext


class RevisionControl:
    """The revisions of one kind of owner."""

    def __init__(self, context: ControllerContext, owners: Resource[Any]) -> None:
        self._client = context.client
        self._owners = owners
        self.revisions: SharedInformer[ControllerRevision] = context.informers.informer(
            CONTROLLER_REVISIONS, indexes=OWNER_INDEXES
        )

    async def history(self, owner: Owner, revised: Revised) -> History | None:
        """Write the current revision and return all; None if its name is taken: another collision count avoids that."""
        history = plan_history(revised, await claim_dependents(self._client, self.revisions, self._owners, owner))
        if history.update:
            await self._client.update(CONTROLLER_REVISIONS, history.current)
        if history.create and not await self._create(owner, history.current):
            return None
        return history

    async def _create(self, owner: Owner, revision: ControllerRevision) -> bool:
        try:
            await self._client.create(CONTROLLER_REVISIONS, revision)
        except AlreadyExistsError:
            key = key_of(revision)
            found = await self._client.get(CONTROLLER_REVISIONS, key.name, key.namespace)
            controller = controller_of(found)
            return found.data == revision.data and controller is not None and controller.uid == owner.uid
        return True

    async def delete_surplus(self, revised: Revised, history: History, live: Collection[str]) -> None:
        """Delete old revisions beyond the limit that no Pod uses."""
        for revision in surplus_history(revised, history, live):
            key, options = key_of(revision), DeleteOptions(uid=revision.metadata.uid or "")
            await ignore_not_found(self._client.delete(CONTROLLER_REVISIONS, key.name, key.namespace, options))
