"""Creates claims of cdi.k8s.io from Pod templates, reserves them and removes finished consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import Actor
from dray.api.document import NamespacedName
from dray.api.errors import AlreadyExistsError, APIError
from dray.api.pod_claims import is_pod_done
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.indexer import ImmutableFields
from dray.client.interface import DeleteOptions
from dray.client.objects import key_of
from dray.client.resources import CLASSIC_CLAIMS, NODES
from dray.controllers.claim_control import ClaimReconciler, confirm_again, record_problem
from dray.controllers.claim_problems import Problem
from dray.controllers.classic_claim import plan
from dray.controllers.reconciler import ClaimKey, ControllerContext, PodKey, newest
from dray.runtime.metrics import Metrics

_PODS_BY_CLAIM: Final = "classic-claims"


class ClassicClaimController(ClaimReconciler[ResourceClaim]):
    """Manages the claims of cdi.k8s.io, which their drivers allocate."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context, CLASSIC_CLAIMS, {_PODS_BY_CLAIM: ImmutableFields(_claim_keys)})
        metrics = context.metrics or Metrics()
        self._created = metrics.counter("resource_controller_create_total", "Attempts to create a claim")
        self._failed = metrics.counter("resource_controller_create_failures_total", "Failed attempts to create a claim")
        self._nodes = context.informers.informer(NODES)
        # Nodes are only looked up: their events enqueue nothing.
        self.controller.watch(self._nodes, lambda _node: ())

    # --- Event handlers. ---

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = old if new is None else new
        if pod is None or not pod.spec.resource_claims:
            return
        if new is None:
            self._consumers.mark_deleted(pod)
        names = classic.claim_names_of(pod)
        if not names:
            # It has claims of resource.k8s.io only.
            return
        if new is not None and not is_pod_done(new):
            self.controller.queue.add(PodKey(key_of(new)))
            return
        for name in names:
            key = NamespacedName(pod.metadata.namespace or "", name)
            if self._claims.lister.get_key(key) is not None:
                self.controller.queue.add(ClaimKey(key))

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        key = key_of(newest(old, new))
        if new is not None and (classic.status_of(new).reserved_for or plan.owning_pod(new) is not None):
            self.controller.queue.add(ClaimKey(key))
        for pod in self._pods.lister.by_index(_PODS_BY_CLAIM, key):
            self.controller.queue.add(PodKey(key_of(pod)))

    # --- Pods. ---

    async def _reconcile_pod(self, key: NamespacedName) -> None:
        pod = self._pods.lister.get_key(key)
        if pod is None:
            return
        node = self._nodes.lister.get(pod.spec.node_name) if pod.spec.node_name else None
        wanted = plan.plan_pod(pod, lambda name: self._claims.lister.get(name, key.namespace), node)
        for problem in wanted.problems:
            record_problem(self._recorder, pod, problem)
        for claim in wanted.reserve:
            await self._reserve(pod, claim)
        failure: APIError | None = None
        for entry, claim in wanted.create:
            try:
                await self._create(pod, entry, claim)
            except APIError as error:
                failure = error
                record_problem(self._recorder, pod, Problem(entry, error.message))
        if failure is not None:
            raise failure

    async def _create(self, pod: Pod, entry: str, claim: ResourceClaim) -> None:
        classic.check_transition(Actor.CONTROLLER, None, claim)
        self._created.inc()
        try:
            await self._client.create(CLASSIC_CLAIMS, claim)
        except AlreadyExistsError:
            # The cache was stale. A claim that belongs to another Pod is reported.
            existing = await ignore_not_found(
                self._client.get(CLASSIC_CLAIMS, claim.metadata.name or "", claim.metadata.namespace or "")
            )
            if existing is not None and not classic.is_for_pod(existing, pod):
                self._failed.inc()
                record_problem(self._recorder, pod, plan.not_owned(pod, entry, claim.metadata.name or ""))
        except APIError:
            self._failed.inc()
            raise

    async def _reserve(self, pod: Pod, claim: ResourceClaim) -> None:
        before = classic.without_user(claim, pod.metadata.uid or "")
        classic.check_transition(Actor.CONTROLLER, before, claim)
        await self._client.update_status(CLASSIC_CLAIMS, claim)

    # --- Claims. ---

    async def _reconcile_claim(self, key: NamespacedName) -> Result:
        claim = self._claims.lister.get_key(key)
        if claim is None:
            return None
        unconfirmed = plan.pods_to_confirm(claim, self._consumers.cached(key.namespace), self._consumers.is_deleted)
        find_pod = await self._consumers.confirmed(unconfirmed, key.namespace)
        wanted = plan.plan_claim(claim, find_pod, self._consumers.is_deleted)
        if wanted.consumers is not None:
            claim = await self._set_consumers(claim, wanted)
        if wanted.delete:
            # The resource version rejects the deletion if a consumer was added meanwhile.
            options = DeleteOptions(
                uid=claim.metadata.uid or "", resource_version=claim.metadata.resource_version or ""
            )
            await ignore_not_found(self._client.delete(CLASSIC_CLAIMS, key.name, key.namespace, options))
        return confirm_again(unconfirmed, find_pod)

    async def _set_consumers(self, claim: ResourceClaim, wanted: plan.ClaimPlan) -> ResourceClaim:
        assert wanted.consumers is not None
        after = classic.with_users(claim, wanted.consumers)
        classic.check_transition(Actor.CONTROLLER, claim, after)
        return await self._client.update_status(CLASSIC_CLAIMS, after)


def _claim_keys(pod: Any) -> Sequence[NamespacedName]:
    names = classic.claim_names_of(pod) if pod.spec.resource_claims else ()
    return [NamespacedName(pod.metadata.namespace or "", name) for name in names] if names else ()
