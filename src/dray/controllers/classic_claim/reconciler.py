"""The classic claim controller's hands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dray.api import classic_claims as classic
from dray.api.classic_claims import Actor
from dray.api.document import NamespacedName
from dray.api.errors import AlreadyExistsError, APIError
from dray.api.pod_claims import is_pod_done
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Node, Pod
from dray.client.controller import Controller, Result
from dray.client.event_recorder import WARNING, EventRecorder, Source
from dray.client.indexer import BY_OWNER_UID, owner_uids
from dray.client.interface import Client, DeleteOptions, ignore_not_found
from dray.client.objects import key_of
from dray.client.resources import CLASSIC_CLAIMS, NODES, PODS
from dray.client.shared_informers import SharedInformerFactory
from dray.controllers.claim_control import Problem, UserPods
from dray.controllers.classic_claim import plan
from dray.controllers.loop import run_telling
from dray.lib.clock import Clock
from dray.runtime.metrics import Metrics

# KEP-3063's name; the other claim controller's queue has it too, and both count together.
QUEUE_NAME: Final = "resource_claim"
CREATION_FAILED: Final = "FailedResourceClaimCreation"
WORKERS: Final = 10

_PODS_BY_CLAIM: Final = "classic-claims"


@dataclass(frozen=True, slots=True)
class PodKey:
    """A Pod whose claims may have to be made."""

    key: NamespacedName


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """A claim whose users may be done."""

    key: NamespacedName


class ClassicClaimController:
    """Runs until cancelled."""

    def __init__(
        self, client: Client, informers: SharedInformerFactory, clock: Clock, metrics: Metrics | None = None
    ) -> None:
        self._client = client
        metrics = metrics or Metrics()
        self._created = metrics.counter("resource_controller_create_total", "Attempts to create a claim")
        self._failed = metrics.counter("resource_controller_create_failures_total", "Failed attempts to create a claim")
        self._recorder = EventRecorder(client, clock, Source(QUEUE_NAME))
        self.controller: Controller[PodKey | ClaimKey] = Controller(
            QUEUE_NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._claims = informers.informer(CLASSIC_CLAIMS, indexes={BY_OWNER_UID: owner_uids})
        self._pods = informers.informer(PODS, indexes={_PODS_BY_CLAIM: _claim_keys})
        self._users = UserPods(client, self._pods)
        self._nodes = informers.informer(NODES)
        self.controller.follow(self._nodes, _unheard)
        self.controller.follow(self._claims, self._claim_changed)
        self.controller.follow(self._pods, self._pod_changed)

    async def run(self) -> None:
        """Make claims and forget users until cancelled."""
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
        if not pod.spec.resource_claims:
            return
        if new is None:
            self._users.told_deleted(pod)
        if new is not None and not is_pod_done(new):
            self._wake_pod(new)
            return
        for name in classic.claim_names_of(pod):
            key = NamespacedName(pod.metadata.namespace or "", name)
            if self._claims.lister.get_key(key) is not None:
                self.controller.queue.add(ClaimKey(key))

    def _wake_pod(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace or ""
        if plan.pod_needs_work(pod, lambda name: self._claims.lister.get(name, namespace)):
            self.controller.queue.add(PodKey(key_of(pod)))

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new if new is not None else old
        assert claim is not None
        key = key_of(claim)
        if new is not None and (classic.status_of(new).reserved_for or plan.owning_pod(new) is not None):
            self.controller.queue.add(ClaimKey(key))
        for pod in self._pods.lister.by_index(_PODS_BY_CLAIM, key):
            self._wake_pod(pod)

    # --- Pods. ---

    async def _reconcile_pod(self, key: NamespacedName) -> None:
        pod = self._pods.lister.get_key(key)
        if pod is None:
            return
        node = self._nodes.lister.get(pod.spec.node_name) if pod.spec.node_name else None
        wanted = plan.plan_pod(pod, lambda name: self._claims.lister.get(name, key.namespace), node)
        for problem in wanted.problems:
            self._tell(pod, problem)
        for claim in wanted.reserve:
            await self._reserve(pod, claim)
        failure: APIError | None = None
        for entry, claim in wanted.create:
            try:
                await self._create(pod, entry, claim)
            except APIError as error:
                failure = error
                self._tell(pod, Problem(entry, error.message))
        if failure is not None:
            raise failure

    async def _create(self, pod: Pod, entry: str, claim: ResourceClaim) -> None:
        classic.check_move(Actor.CONTROLLER, None, claim)
        self._created.inc()
        try:
            await self._client.create(CLASSIC_CLAIMS, claim)
        except AlreadyExistsError:
            # The cache was behind: it is ours, or its owner is told of when the cache has caught up.
            existing = await ignore_not_found(
                self._client.get(CLASSIC_CLAIMS, claim.metadata.name or "", claim.metadata.namespace or "")
            )
            if existing is not None and not classic.is_made_for(existing, pod):
                self._failed.inc()
                self._tell(pod, plan.foreign(pod, entry, claim.metadata.name or ""))
        except APIError:
            self._failed.inc()
            raise

    async def _reserve(self, pod: Pod, claim: ResourceClaim) -> None:
        before = classic.without_user(claim, pod.metadata.uid or "")
        classic.check_move(Actor.CONTROLLER, before, claim)
        await self._client.update_status(CLASSIC_CLAIMS, claim)

    def _tell(self, pod: Pod, problem: Problem) -> None:
        self._recorder.event(PODS.group_version_kind, pod, WARNING, CREATION_FAILED, problem.event_message)

    # --- Claims. ---

    async def _reconcile_claim(self, key: NamespacedName) -> None:
        claim = self._claims.lister.get_key(key)
        if claim is None:
            return
        unsure = plan.pods_to_confirm(claim, self._users.cached(key.namespace), self._users.is_deleted)
        find_pod = await self._users.confirmed(unsure, key.namespace)
        wanted = plan.plan_claim(claim, find_pod, self._users.is_deleted)
        if wanted.users is not None:
            claim = await self._set_users(claim, wanted)
        if wanted.delete:
            # Bound to the version: a user who came meanwhile keeps it.
            options = DeleteOptions(
                uid=claim.metadata.uid or "", resource_version=claim.metadata.resource_version or ""
            )
            await ignore_not_found(self._client.delete(CLASSIC_CLAIMS, key.name, key.namespace, options))

    async def _set_users(self, claim: ResourceClaim, wanted: plan.ClaimPlan) -> ResourceClaim:
        assert wanted.users is not None
        after = classic.with_users(claim, wanted.users)
        classic.check_move(Actor.CONTROLLER, claim, after)
        return await self._client.update_status(CLASSIC_CLAIMS, after)


def _unheard(_old: Node | None, _new: Node | None) -> None:
    """Nodes are looked up; what happens to them is somebody else's business."""


def _claim_keys(pod: Any) -> Iterator[NamespacedName]:
    return (NamespacedName(pod.metadata.namespace or "", name) for name in classic.claim_names_of(pod))
