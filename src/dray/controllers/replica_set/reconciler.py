"""Creates and deletes the Pods of ReplicaSets and reports their status."""

from __future__ import annotations

from collections.abc import Iterator

from dray.api.document import NamespacedName
from dray.api.errors import APIError
from dray.api.types.apps_v1 import ReplicaSet
from dray.api.types.core_v1 import Pod
from dray.client.controller import Result
from dray.client.interface import ignore_not_found
from dray.client.objects import controller_of
from dray.client.resources import REPLICA_SETS
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
from dray.controllers.replica_set import plan


class ReplicaSetController(Reconciler[NamespacedName]):
    """Runs as many Pods as each ReplicaSet asks for."""

    name = "replicaset"
    component = "replicaset-controller"
    workers = 5

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._control = PodControl(context, REPLICA_SETS, self._recorder)
        self._replica_sets = context.informers.informer(REPLICA_SETS, indexes=OWNER_INDEXES)
        self.controller.watch(self._replica_sets, own_key)
        self.controller.follow(
            self._control.pods, enqueue_owners(self._replica_sets, plan.owner_of, self.controller.queue.add)
        )

    async def reconcile(self, key: NamespacedName) -> Result:
        """Create or delete Pods until the count matches, and update the status."""
        replica_set = self._replica_sets.lister.get_key(key)
        if replica_set is None:
            return None
        owner = plan.owner_of(replica_set)
        pods = await self._control.claim(owner)
        now = self._clock.now()
        wanted = plan.plan_pods(replica_set, pods, lambda: self._related(replica_set), now)
        error = await self._write(owner, replica_set, wanted)
        failure = None
        if error is not None:
            failure = plan.Failure(FAILED_CREATE if wanted.create else FAILED_DELETE, error.message)
        await self._report(replica_set, pods, failure)
        if error is not None:
            raise error
        # The informer enqueues the ReplicaSet for created and deleted Pods, but not when a Pod becomes available.
        active = (pod for pod in pods if is_active(pod))
        wait = next_available_seconds(active, replica_set.spec.min_ready_seconds or 0, now)
        return self._control.requeue_after(owner, wait)

    async def _write(self, owner: Owner, replica_set: ReplicaSet, wanted: plan.Plan) -> APIError | None:
        if wanted.create:
            pod = make_pod(owner, replica_set.spec.template)
            return await self._control.create(owner, replica_set, [NewPod(pod)] * wanted.create)
        if wanted.delete:
            return await self._control.delete(replica_set, wanted.delete)
        return None

    async def _report(self, replica_set: ReplicaSet, pods: tuple[Pod, ...], failure: plan.Failure | None) -> None:
        status = plan.status_of(replica_set, pods, failure, self._clock.now())
        changed = plan.with_status(replica_set, status)
        if changed is not None:
            await ignore_not_found(self._client.update_status(REPLICA_SETS, changed))

    def _related(self, replica_set: ReplicaSet) -> Iterator[Pod]:
        """Yield the Pods of all ReplicaSets with the same controller: scale-down ranks by their number per node."""
        controller = controller_of(replica_set)
        siblings = (replica_set,) if controller is None else self._replica_sets.lister.owned_by(controller.uid)
        for sibling in siblings:
            yield from self._control.pods.lister.owned_by(sibling.metadata.uid or "")
