"""Creates claims from templates, reserves them for bound Pods, and frees and deletes claims without consumers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import msgspec

from dray.api.document import NamespacedName
from dray.api.errors import APIError, InternalError
from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimTemplate
from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.client.controller import Result
from dray.client.errors import ignore_not_found
from dray.client.indexer import ImmutableFields
from dray.client.interface import DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.objects import key_of
from dray.client.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, FieldManager
from dray.controllers.claim_control import ClaimReconciler, confirm_again, record_problem
from dray.controllers.claim_problems import Problem
from dray.controllers.reconciler import (
    PODS_BY_GROUP,
    ClaimKey,
    ControllerContext,
    GroupKey,
    PodKey,
    newest,
    pod_group_values,
)
from dray.controllers.resource_claim import plan
from dray.controllers.resource_claim.created_claims import CreatedClaims
from dray.controllers.resource_claim.group_claims import GroupClaims
from dray.controllers.resource_claim.metrics import ClaimMetrics
from dray.runtime.metrics import Metrics

_PODS_BY_CLAIM: Final = "shared-claims"
_PODS_BY_TEMPLATE: Final = "claim-templates"
_APPLY: Final = WriteOptions(field_manager=FieldManager.RESOURCE_CLAIM, force=True, subresource="status")


class ResourceClaimController(ClaimReconciler[ResourceClaim]):
    """Manages the claims of resource.k8s.io, which the scheduler allocates."""

    # As many as in kube-controller-manager: Pods wait for their claims.
    workers = 50

    def __init__(self, context: ControllerContext) -> None:
        indexes = {
            _PODS_BY_CLAIM: ImmutableFields(plan.shared_claims_of),
            _PODS_BY_TEMPLATE: ImmutableFields(plan.templates_of),
            PODS_BY_GROUP: pod_group_values,
        }
        super().__init__(context, RESOURCE_CLAIMS, indexes)
        self._gates = context.gates
        self._metrics = ClaimMetrics(context.metrics or Metrics())
        self._created = CreatedClaims()
        # Claims that a worker is deleting.
        self._deleting: set[NamespacedName] = set()
        self._templates = context.informers.informer(RESOURCE_CLAIM_TEMPLATES)
        self.controller.follow(self._templates, self._template_changed)
        self._groups = GroupClaims(context, self._claims, self._recorder, self._create)
        if self._groups.enabled:
            self.controller.follow(self._groups.groups, self._group_changed)

    # --- Event handlers. ---

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and not is_pod_done(new):
            if new.spec.resource_claims:
                self._enqueue_pod(new)
            return
        pod = newest(old, new)
        owned = self._claims.lister.owned_by(pod.metadata.uid or "")
        named = pod.spec.resource_claims or pod.status.extended_resource_claim_status is not None
        # An extended-resource claim may exist although the Pod's status does not name it.
        if not named and not owned:
            return
        if new is None:
            self._consumers.mark_deleted(pod)
        namespace = pod.metadata.namespace or ""
        for name in plan.claim_names_of(pod):
            self.controller.queue.add(ClaimKey(NamespacedName(namespace, name)))
        for claim in owned:
            self.controller.queue.add(ClaimKey(key_of(claim)))

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        self._metrics.changed(old, new)
        key = key_of(newest(old, new))
        self._created.discard(key)
        # Events of a claim that a worker is deleting are caused by its own writes.
        if new is not None and key not in self._deleting:
            self._enqueue_claim(key, new)
        if plan.affects_pods(old, new):
            for pod in self._pods_of(key, old, new):
                self._enqueue_pod(pod)

    def _enqueue_pod(self, pod: Pod) -> None:
        """Enqueue the Pod if there is work."""
        find = partial(self._claims.lister.get, namespace=pod.metadata.namespace or "")
        if plan.pod_needs_work(pod, find):
            self.controller.queue.add(PodKey(key_of(pod)))

    def _enqueue_claim(self, key: NamespacedName, claim: ResourceClaim) -> None:
        """Enqueue the claim if there is work; most events are writes of this controller or a scheduler."""
        find_pod, is_gone = self._consumers.cached(key.namespace), partial(self._groups.is_gone, key.namespace)
        if not self._pods.synced or plan.claim_needs_work(claim, find_pod, self._consumers.is_deleted, is_gone):
            self.controller.queue.add(ClaimKey(key))

    def _pods_of(self, key: NamespacedName, old: ResourceClaim | None, new: ResourceClaim | None) -> Iterator[Pod]:
        """Yield the Pods that use the claim: its owner, if the Pod's status names it, and those whose spec names it."""
        for name in plan.owning_pod_names(old, new):
            pod = self._pods.lister.get(name, key.namespace)
            if pod is not None and plan.is_named_in_status(pod, key.name):
                yield pod
        yield from self._pods.lister.by_index(_PODS_BY_CLAIM, key)

    def _template_changed(self, _old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        if new is None:
            return
        for pod in self._pods.lister.by_index(_PODS_BY_TEMPLATE, key_of(new)):
            self._enqueue_pod(pod)

        for group in self._groups.with_template(new):
            self._enqueue_group(group)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        key = key_of(newest(old, new))
        if new is not None:
            self._enqueue_group(new)
        if old is None or new is None or old.metadata.uid != new.metadata.uid:
            for claim in self._groups.claims_reserved_for(key):
                self.controller.queue.add(ClaimKey(key_of(claim)))
        for pod in self._pods.lister.by_index(PODS_BY_GROUP, key):
            if pod.spec.resource_claims:
                self._enqueue_pod(pod)

    def _enqueue_group(self, group: PodGroup) -> None:
        if self._groups.needs_work(group):
            self.controller.queue.add(GroupKey(key_of(group)))

    async def _reconcile_group(self, key: NamespacedName) -> None:
        await self._groups.reconcile(
            key, self._find_claim, self._owned, lambda name: self._templates.lister.get(name, key.namespace)
        )

    # --- Pods. ---

    async def _reconcile_pod(self, key: NamespacedName) -> None:
        pod = self._pods.lister.get_key(key)
        if pod is None:
            return
        if pod.status.resource_claim_statuses:
            await self._confirm_claims(pod)
        wanted = plan.plan_pod(
            pod,
            lambda name: self._find_claim(NamespacedName(key.namespace, name)),
            self._owned(pod),
            lambda name: self._templates.lister.get(name, key.namespace),
            self._gates,
            self._groups.membership(pod),
        )
        named = dict(wanted.adopt)
        problems = list(wanted.problems)
        failure: APIError | None = None
        for entry, claim in wanted.create:
            try:
                named[entry] = await self._create(claim)
            except APIError as error:
                failure = error
                problems.append(Problem(entry, error.message))
        if named:
            patch = Patch(PatchType.APPLY, plan.status_patch(pod, named))
            await self._client.patch(PODS, key.name, key.namespace, patch, _APPLY)
        for claim in wanted.reserve:
            await self._client.update_status(RESOURCE_CLAIMS, claim)
        if problems:
            report = self._report(pod, problems)
            if not all(problem.is_final for problem in problems):
                raise report from failure

    async def _confirm_claims(self, pod: Pod) -> None:
        """Look for uncached claims by live reads before replacing them: the Pod informer may be ahead of this one."""
        namespace = pod.metadata.namespace or ""
        for name in plan.names_to_confirm(pod, lambda name: self._find_claim(NamespacedName(namespace, name))):
            claim = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, name, namespace))
            if claim is not None:
                self._created.add(claim, self._clock.monotonic())

    def _find_claim(self, key: NamespacedName) -> ResourceClaim | None:
        claim = self._claims.lister.get_key(key)
        return claim if claim is not None else self._created.get(key, self._clock.monotonic())

    def _owned(self, owner: Pod | PodGroup) -> tuple[ResourceClaim, ...]:
        uid = owner.metadata.uid or ""
        return self._claims.lister.owned_by(uid) + self._created.owned_by(uid, self._clock.monotonic())

    async def _create(self, claim: ResourceClaim) -> str:
        try:
            created = await self._client.create(RESOURCE_CLAIMS, claim)
        except APIError:
            self._metrics.created(claim, success=False)
            raise
        self._metrics.created(claim, success=True)
        self._created.add(created, self._clock.monotonic())
        return created.metadata.name or ""

    def _report(self, pod: Pod, problems: list[Problem]) -> APIError:
        """Emit the events and return the error that requeues the Pod."""
        for problem in problems:
            record_problem(self._recorder, pod, problem)
        return InternalError(f"pod {key_of(pod)}: " + "; ".join(problem.event_message for problem in problems))

    # --- Claims. ---

    async def _reconcile_claim(self, key: NamespacedName) -> Result:
        claim = self._claims.lister.get_key(key)
        if claim is None:
            return None
        unconfirmed = plan.pods_to_confirm(claim, self._consumers.cached(key.namespace), self._consumers.is_deleted)
        find_pod = await self._consumers.confirmed(unconfirmed, key.namespace)
        is_group_gone = await self._groups.confirmed_gone(claim)
        wanted = plan.plan_claim(claim, find_pod, self._consumers.is_deleted, is_group_gone)
        if not wanted.delete:
            await self._write_claim(key, claim, wanted)
            return confirm_again(unconfirmed, find_pod)
        self._deleting.add(key)
        try:
            await self._write_claim(key, claim, wanted)
        finally:
            self._deleting.discard(key)
        remaining = self._claims.lister.get_key(key)
        if remaining is not None and (
            remaining.metadata.deletion_timestamp or remaining.metadata.uid != claim.metadata.uid
        ):
            # A finalizer delays it, or it was recreated: that event may have been ignored above.
            self._enqueue_claim(key, remaining)
        return None

    async def _write_claim(self, key: NamespacedName, claim: ResourceClaim, wanted: plan.ClaimPlan) -> None:
        if wanted.status is not None:
            claim = await self._client.update_status(
                RESOURCE_CLAIMS, msgspec.structs.replace(claim, status=wanted.status)
            )
        if wanted.remove_finalizer:
            claim = await self._client.update(RESOURCE_CLAIMS, plan.without_finalizer(claim))
        if wanted.delete:
            options = DeleteOptions(uid=claim.metadata.uid or "")
            await ignore_not_found(self._client.delete(RESOURCE_CLAIMS, key.name, key.namespace, options))
