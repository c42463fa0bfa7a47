"""The claim controller's hands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dray.api.document import NamespacedName
from dray.api.errors import APIError, InternalError
from dray.api.features import FeatureGates
from dray.api.pod_claims import is_pod_done
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceClaimTemplate
from dray.client.controller import Controller, Result
from dray.client.event_recorder import WARNING, EventRecorder, Source
from dray.client.indexer import BY_OWNER_UID, owner_uids
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions, ignore_not_found
from dray.client.objects import key_of
from dray.client.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, FieldManager
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.claim_control import Problem, UserPods
from dray.controllers.loop import run_telling
from dray.controllers.resource_claim import plan
from dray.controllers.resource_claim.created_claims import CreatedClaims
from dray.controllers.resource_claim.metrics import ClaimMetrics
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics

NAME: Final = "resource_claim"
CREATION_FAILED: Final = "FailedResourceClaimCreation"
WORKERS: Final = 10

_PODS_BY_CLAIM: Final = "shared-claims"
_PODS_BY_TEMPLATE: Final = "claim-templates"
_APPLY: Final = WriteOptions(field_manager=FieldManager.RESOURCE_CLAIM, force=True, subresource="status")


@dataclass(frozen=True, slots=True)
class PodKey:
    """A Pod whose claims may have to be made, named in its status or reserved."""

    key: NamespacedName


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """A claim whose users may be done."""

    key: NamespacedName


class ResourceClaimController:
    """Runs until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: SharedInformerFactory,
        clock: Clock,
        *,
        gates: FeatureGates | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._gates = gates or FeatureGates()
        self._metrics = ClaimMetrics(metrics or Metrics())
        self._recorder = EventRecorder(client, clock, Source(NAME))
        self._created = CreatedClaims()
        # Claims that a worker is doing away with.
        self._leaving: set[NamespacedName] = set()
        self.controller: Controller[PodKey | ClaimKey] = Controller(
            NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._claims = informers.informer(RESOURCE_CLAIMS, indexes={BY_OWNER_UID: owner_uids})
        self._pods = informers.informer(
            PODS, indexes={_PODS_BY_CLAIM: _claim_index, _PODS_BY_TEMPLATE: _template_index}
        )
        self._users = UserPods(client, self._pods)
        self._templates = informers.informer(RESOURCE_CLAIM_TEMPLATES)
        self.controller.follow(self._claims, self._claim_changed)
        self.controller.follow(self._pods, self._pod_changed)
        self.controller.follow(self._templates, self._template_changed)

    async def run(self) -> None:
        """Make and free claims until cancelled."""
        await run_telling(self.controller, self._recorder)

    async def reconcile(self, key: PodKey | ClaimKey) -> Result:
        """Do what one Pod or one claim needs."""
        if isinstance(key, PodKey):
            await self._reconcile_pod(key.key)
        else:
            await self._reconcile_claim(key.key)
        return None

    # --- What a change wakes. ---

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        assert pod is not None
        done = new is None or is_pod_done(pod)
        named = pod.spec.resource_claims or pod.status.extended_resource_claim_status is not None
        # A special claim may have been made although the Pod's status does not say so.
        if not named and not (done and self._claims.lister.owned_by(pod.metadata.uid or "")):
            return
        if new is None:
            self._users.told_deleted(pod)
        if done:
            namespace = pod.metadata.namespace or ""
            for name in plan.claim_names_of(pod):
                self.controller.queue.add(ClaimKey(NamespacedName(namespace, name)))
            for claim in self._claims.lister.owned_by(pod.metadata.uid or ""):
                self.controller.queue.add(ClaimKey(key_of(claim)))
        else:
            self._wake_pod(pod)

    def _wake_pod(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace or ""
        if plan.pod_needs_work(pod, lambda name: self._claims.lister.get(name, namespace)):
            self.controller.queue.add(PodKey(key_of(pod)))

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        self._metrics.changed(old, new)
        claim = new if new is not None else old
        assert claim is not None
        key = key_of(claim)
        self._created.seen(key)
        # What is told of a claim that is leaving is what its worker has written.
        if new is not None and key not in self._leaving:
            self._wake_claim(key, new)
        if plan.is_news_for_pods(old, new):
            for pod in self._pods_of(key, old, new):
                self._wake_pod(pod)

    def _wake_claim(self, key: NamespacedName, claim: ResourceClaim) -> None:
        """Enqueue the claim if there is something to do; most news is what this controller or a scheduler wrote."""
        find_pod = self._users.cached(key.namespace)
        if not self._pods.synced or plan.claim_needs_work(claim, find_pod, self._users.is_deleted):
            self.controller.queue.add(ClaimKey(key))

    def _pods_of(self, key: NamespacedName, old: ResourceClaim | None, new: ResourceClaim | None) -> Iterator[Pod]:
        """The Pods that use the claim: whom it was generated for, if they know, and who names it."""
        for name in plan.owning_pod_names(old, new):
            pod = self._pods.lister.get(name, key.namespace)
            if pod is not None and plan.is_named_in_status(pod, key.name):
                yield pod
        yield from self._pods.lister.by_index(_PODS_BY_CLAIM, key)

    def _template_changed(self, _old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        if new is None:
            return
        for pod in self._pods.lister.by_index(_PODS_BY_TEMPLATE, key_of(new)):
            self._wake_pod(pod)

    # --- Pods. ---

    async def _reconcile_pod(self, key: NamespacedName) -> None:
        pod = self._pods.lister.get_key(key)
        if pod is None:
            return
        await self._confirm_claims(pod)
        wanted = plan.plan_pod(
            pod,
            lambda name: self._find_claim(NamespacedName(key.namespace, name)),
            self._owned(pod),
            lambda name: self._templates.lister.get(name, key.namespace),
            self._gates,
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
            raise self._tell(pod, problems) from failure

    async def _confirm_claims(self, pod: Pod) -> None:
        """Look for claims that the caches lack before they are replaced: the Pod's news may be ahead of the claims'."""
        namespace = pod.metadata.namespace or ""
        for name in plan.names_to_confirm(pod, lambda name: self._find_claim(NamespacedName(namespace, name))):
            claim = await ignore_not_found(self._client.get(RESOURCE_CLAIMS, name, namespace))
            if claim is not None:
                self._created.remember(claim, self._clock.monotonic())

    def _find_claim(self, key: NamespacedName) -> ResourceClaim | None:
        claim = self._claims.lister.get_key(key)
        return claim if claim is not None else self._created.get(key, self._clock.monotonic())

    def _owned(self, pod: Pod) -> tuple[ResourceClaim, ...]:
        uid = pod.metadata.uid or ""
        return self._claims.lister.owned_by(uid) + self._created.owned_by(uid, self._clock.monotonic())

    async def _create(self, claim: ResourceClaim) -> str:
        try:
            created = await self._client.create(RESOURCE_CLAIMS, claim)
        except APIError:
            self._metrics.tried_to_create(claim, success=False)
            raise
        self._metrics.tried_to_create(claim, success=True)
        self._created.remember(created, self._clock.monotonic())
        return created.metadata.name or ""

    def _tell(self, pod: Pod, problems: list[Problem]) -> APIError:
        """Tell the Pod's user, and make the error that has the Pod tried again."""
        for problem in problems:
            self._recorder.event(PODS.group_version_kind, pod, WARNING, CREATION_FAILED, problem.event_message)
        return InternalError(f"pod {key_of(pod)}: " + "; ".join(problem.event_message for problem in problems))

    # --- Claims. ---

    async def _reconcile_claim(self, key: NamespacedName) -> None:
        claim = self._claims.lister.get_key(key)
        if claim is None:
            return
        unsure = plan.pods_to_confirm(claim, self._users.cached(key.namespace), self._users.is_deleted)
        find_pod = await self._users.confirmed(unsure, key.namespace)
        wanted = plan.plan_claim(claim, find_pod, self._users.is_deleted)
        if not wanted.delete:
            await self._write_claim(key, claim, wanted)
            return
        self._leaving.add(key)
        try:
            await self._write_claim(key, claim, wanted)
        finally:
            self._leaving.discard(key)
        left = self._claims.lister.get_key(key)
        if left is not None and (left.metadata.deletion_timestamp or left.metadata.uid != claim.metadata.uid):
            # Somebody keeps it, or has made another of that name: the news of that may be in already.
            self._wake_claim(key, left)

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


def _claim_index(pod: Any) -> list[NamespacedName]:
    namespace = pod.metadata.namespace or ""
    return [NamespacedName(namespace, name) for name in plan.shared_claim_names_of(pod)]


def _template_index(pod: Any) -> list[NamespacedName]:
    namespace = pod.metadata.namespace or ""
    return [NamespacedName(namespace, name) for name in plan.template_names_of(pod)]
