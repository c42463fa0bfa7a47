"""Keeps a PodGroup that is being deleted until all its Pods have finished."""

from __future__ import annotations

import msgspec

from dray.api.document import NamespacedName
from dray.api.pod_groups import PROTECTION_FINALIZER, group_key_of
from dray.api.types.core_v1 import Pod
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.interface import ListOptions
from dray.client.objects import key_of
from dray.client.resources import POD_GROUPS, PODS
from dray.controllers.pod_control.pod_status import is_finished
from dray.controllers.reconciler import PODS_BY_GROUP, ControllerContext, Reconciler, newest, pod_group_values


class PodGroupProtectionController(Reconciler[NamespacedName]):
    """Removes the finalizer that the API server gives to every PodGroup."""

    name = "podgroup-protection"
    workers = 2

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._groups = context.informers.informer(POD_GROUPS)
        self._pods = context.informers.informer(PODS, indexes={PODS_BY_GROUP: pod_group_values})
        # The groups that are being deleted and still have the finalizer.
        self._waiting: set[NamespacedName] = set()
        self.controller.follow(self._groups, self._group_changed)
        self.controller.follow(self._pods, self._pod_changed, needed_while=self._waiting)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        key = key_of(newest(old, new))
        if new is not None and is_waiting(new):
            self._waiting.add(key)
            self.controller.queue.add(key)
        else:
            self._waiting.discard(key)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Look at the group of a Pod that has finished or is gone."""
        if new is not None and not is_finished(new):
            return
        key = group_key_of(newest(old, new))
        if key in self._waiting:
            self.controller.queue.add(key)

    async def reconcile(self, key: NamespacedName) -> Result:
        """Remove the finalizer of a PodGroup that no unfinished Pod names any more."""
        group = self._groups.lister.get_key(key)
        if group is None or not is_waiting(group):
            return None
        if any(not is_finished(pod) for pod in self._pods.lister.by_index(PODS_BY_GROUP, key)):
            return None
        # The informer may lack Pods that were just created.
        page = await self._client.list(PODS, key.namespace, ListOptions())
        if any(group_key_of(pod) == key and not is_finished(pod) for pod in page.items):
            return None
        finalizers = tuple(name for name in group.metadata.finalizers if name != PROTECTION_FINALIZER)
        metadata = msgspec.structs.replace(group.metadata, finalizers=finalizers)
        await ignore_not_found(self._client.update(POD_GROUPS, msgspec.structs.replace(group, metadata=metadata)))
        return None


def is_waiting(group: PodGroup) -> bool:
    """Return whether the group is being deleted and still has the finalizer."""
    return group.metadata.deletion_timestamp is not None and PROTECTION_FINALIZER in group.metadata.finalizers
