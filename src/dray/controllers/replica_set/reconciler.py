"""Creates and deletes the Pods of ReplicaSets and ReplicationControllers, and reports their status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Generic, TypeVar

from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.api.types.apps_v1 import ReplicaSet, ReplicaSetStatus
from dray.api.types.core_v1 import Pod, ReplicationController
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.interface import Resource
from dray.client.objects import controller_of
from dray.client.resources import REPLICA_SETS, REPLICATION_CONTROLLERS
from dray.client.shared_informers import SharedInformer
from dray.controllers.pod_control.ownership import Owner, enqueue_owners
from dray.controllers.pod_control.pod_control import (
    FAILED_CREATE,
    FAILED_DELETE,
    OWNER_INDEXES,
    NewPod,
    PodControl,
)
from dray.controllers.pod_control.pod_status import is_active, next_available_seconds
from dray.controllers.pod_control.pod_templates import make_pod
from dray.controllers.reconciler import ControllerContext, Reconciler, own_key
from dray.controllers.replica_set import plan, replication_controller

T = TypeVar("T", ReplicaSet, ReplicationController)


class ReplicasController(Reconciler[NamespacedName], Generic[T]):
    """Runs as many Pods as each object of a kind asks for; the kind is planned for as a ReplicaSet."""

    workers = 5
    resource: ClassVar[Resource[Any]]

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._control = PodControl(context, self.resource, self._recorder)
        self._owners: SharedInformer[T] = context.informers.informer(self.resource, indexes=OWNER_INDEXES)
        self.controller.watch(self._owners, own_key, keeps_backoff=True)
        self.controller.follow(
            self._control.pods,
            enqueue_owners(self._owners, self._owner_of, self.controller.queue.add),
            needed_while=self._owners.lister.namespaces,
        )

    def _owner_of(self, item: T) -> Owner:
        raise NotImplementedError

    def _replica_set_of(self, item: T) -> ReplicaSet:
        raise NotImplementedError

    def _with_status(self, item: T, status: ReplicaSetStatus) -> T | None:
        """Return the object with the status; None if it does not change."""
        raise NotImplementedError

    async def reconcile(self, key: NamespacedName) -> Result:
        """Create or delete Pods until the count matches, and update the status."""
        item = self._owners.lister.get_key(key)
        if item is None:
            return None
        owner, replica_set = self._owner_of(item), self._replica_set_of(item)
        pods = await self._control.claim(owner)
        now = self._clock.now()
        wanted = plan.plan_pods(replica_set, pods, lambda: self._related(item), now)
        error = await self._write(owner, item, replica_set, wanted)
        failure = None
        if error is not None:
            failure = plan.Failure(FAILED_CREATE if wanted.create else FAILED_DELETE, error.message)
        changed = self._with_status(item, plan.status_of(replica_set, pods, failure, self._clock.now()))
        if changed is not None:
            await ignore_not_found(self._client.update_status(self.resource, changed))
        if error is not None:
            raise error
        # The informer enqueues the owner for created and deleted Pods, but not when a Pod becomes available.
        active = (pod for pod in pods if is_active(pod))
        wait = next_available_seconds(active, replica_set.spec.min_ready_seconds or 0, now)
        return self._control.requeue_after(owner, wait)

    async def _write(self, owner: Owner, item: T, replica_set: ReplicaSet, wanted: plan.Plan) -> APIError | None:
        if wanted.create:
            pod = make_pod(owner, replica_set.spec.template)
            return await self._control.create(owner, item, [NewPod(pod)] * wanted.create)
        if wanted.delete:
            return await self._control.delete(item, wanted.delete)
        return None

    def _related(self, item: T) -> Iterator[Pod]:
        """Yield the Pods of all owners with the same controller: scale-down ranks by their number per node."""
        controller = controller_of(item)
        siblings = (item,) if controller is None else self._owners.lister.owned_by(controller.uid)
        for sibling in siblings:
            yield from self._control.pods.lister.owned_by(sibling.metadata.uid or "")


class ReplicaSetController(ReplicasController[ReplicaSet]):
    """Runs as many Pods as each ReplicaSet asks for."""

    name = "replicaset"
    component = "replicaset-controller"
    resource = REPLICA_SETS

    def _owner_of(self, item: ReplicaSet) -> Owner:
        return plan.owner_of(item)

    def _replica_set_of(self, item: ReplicaSet) -> ReplicaSet:
        return item

    def _with_status(self, item: ReplicaSet, status: ReplicaSetStatus) -> ReplicaSet | None:
        return plan.with_status(item, status)


class ReplicationControllerController(ReplicasController[ReplicationController]):
    """Runs as many Pods as each ReplicationController asks for."""

    name = "replicationcontroller"
    component = "replication-controller"
    resource = REPLICATION_CONTROLLERS

    def _owner_of(self, item: ReplicationController) -> Owner:
        return replication_controller.owner_of(item)

    def _replica_set_of(self, item: ReplicationController) -> ReplicaSet:
        return replication_controller.as_replica_set(item)

    def _with_status(self, item: ReplicationController, status: ReplicaSetStatus) -> ReplicationController | None:
        return replication_controller.with_status(item, status)
