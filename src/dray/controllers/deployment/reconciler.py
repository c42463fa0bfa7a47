"""Creates, scales and deletes the ReplicaSets of Deployments and reports their status."""

from __future__ import annotations

from typing import Final

from dray.api.document import NamespacedName
from dray.api.errors import AlreadyExistsError, APIError
from dray.api.types.apps_v1 import Deployment, ReplicaSet
from dray.api.types.core_v1 import Pod
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import NORMAL, WARNING
from dray.client.interface import DeleteOptions
from dray.client.objects import controller_of, key_of
from dray.client.resources import DEPLOYMENTS, PODS, REPLICA_SETS
from dray.controllers.deployment import plan
from dray.controllers.deployment.conditions import CREATE_FAILED
from dray.controllers.deployment.revisions import KIND, has_template_of
from dray.controllers.deployment.rollout import Create, Update
from dray.controllers.pod_control.adoption import claim_dependents
from dray.controllers.pod_control.ownership import enqueue_owners
from dray.controllers.pod_control.pod_control import (
    OWNER_INDEXES,
    is_namespace_terminating,
)
from dray.controllers.pod_control.pod_status import is_finished
from dray.controllers.reconciler import ControllerContext, Reconciler, own_key

SCALING: Final = "ScalingReplicaSet"


class DeploymentController(Reconciler[NamespacedName]):
    """Rolls out Deployments by ReplicaSets."""

    name = "deployment"
    component = "deployment-controller"
    workers = 5

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._deployments = context.informers.informer(DEPLOYMENTS)
        self._replica_sets = context.informers.informer(REPLICA_SETS, indexes=OWNER_INDEXES)
        self._pods = context.informers.informer(PODS, indexes=OWNER_INDEXES)
        self.controller.watch(self._deployments, own_key, keeps_backoff=True)
        existing = self._deployments.lister.namespaces
        enqueue = enqueue_owners(self._deployments, plan.owner_of, self.controller.queue.add)
        self.controller.follow(self._replica_sets, enqueue, needed_while=existing)
        self.controller.follow(self._pods, self._pod_changed, needed_while=existing)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Enqueue the Deployment of a finished Pod: with the strategy Recreate new Pods wait for the last old one."""
        if old is None or not old.metadata.owner_references:
            return
        if is_finished(old) or (new is not None and not is_finished(new)):
            return
        owner = controller_of(old)
        if owner is None or owner.kind != REPLICA_SETS.kind:
            return
        replica_set = self._replica_sets.lister.get(owner.name, old.metadata.namespace or "")
        deployment = controller_of(replica_set) if replica_set is not None else None
        if deployment is not None and deployment.kind == DEPLOYMENTS.kind:
            self.controller.queue.add(NamespacedName(old.metadata.namespace or "", deployment.name))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Take one Deployment a step further in its rollout."""
        deployment = self._deployments.lister.get_key(key)
        if deployment is None:
            return None
        replica_sets = await claim_dependents(self._client, self._replica_sets, DEPLOYMENTS, plan.owner_of(deployment))
        wanted = plan.plan_deployment(deployment, replica_sets, self._has_running_pods, self._clock.now())
        for write in wanted.write:
            if not await self._write(deployment, write):
                return None
        for surplus in wanted.delete:
            await self._delete(surplus)
        if wanted.report is not None:
            await self._report(wanted.report)
        return None if wanted.requeue_seconds is None else Requeue(wanted.requeue_seconds)

    def _has_running_pods(self, replica_set: ReplicaSet) -> bool:
        return any(not is_finished(pod) for pod in self._pods.lister.owned_by(replica_set.metadata.uid or ""))

    async def _write(self, deployment: Deployment, write: Create | Update) -> bool:
        """Write one ReplicaSet; return False if the rest of the plan is obsolete."""
        if isinstance(write, Update):
            await self._client.update(REPLICA_SETS, write.replica_set)
        elif not await self._create(deployment, write.replica_set):
            return False
        for message in write.messages:
            self._recorder.event(KIND, deployment, NORMAL, SCALING, message)
        return True

    async def _create(self, deployment: Deployment, replica_set: ReplicaSet) -> bool:
        try:
            await self._client.create(REPLICA_SETS, replica_set)
        except AlreadyExistsError:
            await self._resolve_collision(deployment, replica_set)
            return False
        except APIError as error:
            if not is_namespace_terminating(error):
                await self._record_failure(deployment, replica_set, error)
            raise
        return True

    async def _resolve_collision(self, deployment: Deployment, replica_set: ReplicaSet) -> None:
        """Accept a ReplicaSet of this Deployment that the informer has not delivered; otherwise change the hash."""
        key = key_of(replica_set)
        found = await self._client.get(REPLICA_SETS, key.name, key.namespace)
        controller = controller_of(found)
        ours = controller is not None and controller.uid == deployment.metadata.uid
        if not ours or not has_template_of(deployment, found):
            await self._report(plan.after_collision(deployment))

    async def _record_failure(self, deployment: Deployment, replica_set: ReplicaSet, error: APIError) -> None:
        failure = plan.creation_failure(replica_set.metadata.name or "", error.message)
        self._recorder.event(KIND, deployment, WARNING, CREATE_FAILED, failure)
        report = plan.after_failed_creation(deployment, failure, self._clock.now())
        if report is not None:
            await self._report(report)

    async def _delete(self, replica_set: ReplicaSet) -> None:
        key = key_of(replica_set)
        options = DeleteOptions(
            uid=replica_set.metadata.uid or "", resource_version=replica_set.metadata.resource_version or ""
        )
        await ignore_not_found(self._client.delete(REPLICA_SETS, key.name, key.namespace, options))

    async def _report(self, deployment: Deployment) -> None:
        await ignore_not_found(self._client.update_status(DEPLOYMENTS, deployment))
