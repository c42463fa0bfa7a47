"""The device taint eviction controller's hands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document, NamespacedName
from dray.api.errors import NotFoundError
from dray.api.features import FeatureGates
from dray.api.pod_claims import extended_resource_claim_name, is_pod_reference, pod_claims
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceSlice
from dray.client.controller import Controller, Requeue, Result
from dray.client.event_recorder import NORMAL, EventRecorder, ObjectReference, Source
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, WriteOptions
from dray.client.objects import key_of, uid_of
from dray.client.resources import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, FieldManager
from dray.client.shared_informers import SharedInformer, SharedInformerFactory
from dray.controllers.device_taint_eviction import plan, status
from dray.controllers.eviction import EvictionMetrics, disruption_patch
from dray.controllers.loop import run_telling
from dray.lib.clock import Clock
from dray.lib.lru import LRUSet
from dray.runtime.metrics import Metrics

NAME: Final = "device_taint_eviction_controller"
SOURCE: Final = "device-taint-eviction-controller"
WORKERS: Final = 8
# Pods known to be evicted; forgetting one costs a request.
EVICTED_MAX: Final = 500
_STATUS: Final = WriteOptions(subresource="status")
_APPLY: Final = WriteOptions(field_manager=FieldManager.DEVICE_TAINT_EVICTION, force=True, subresource="status")


@dataclass(frozen=True, slots=True)
class PodKey:
    """A Pod that may have to go."""

    key: NamespacedName
    uid: str


@dataclass(frozen=True, slots=True)
class RuleKey:
    """A rule whose status may have to be written."""

    name: str
    uid: str


class DeviceTaintEvictionController:
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
        self._metrics = EvictionMetrics(metrics or Metrics(), NAME)
        self._recorder = EventRecorder(client, clock, Source(SOURCE))
        self._book = plan.TaintBook()
        # Claims whose users must go, now or later.
        self._doomed: set[NamespacedName] = set()
        self._planned: dict[PodKey, plan.Eviction] = {}
        self._evicted: LRUSet[str] = LRUSet(EVICTED_MAX)
        # Uid of a rule -> Pods evicted because of it.
        self._evicted_by: dict[str, int] = {}
        # Uid of a rule that evicts -> its name.
        self._rule_names: dict[str, str] = {}
        self.controller: Controller[PodKey | RuleKey] = Controller(
            NAME, self.reconcile, clock, metrics=metrics, workers=WORKERS
        )
        self._pods = informers.informer(PODS)
        self._rules: SharedInformer[Document] | None = None
        self.controller.follow(informers.informer(RESOURCE_SLICES), self._slice_changed)
        self.controller.follow(informers.informer(RESOURCE_CLAIMS), self._claim_changed)
        self.controller.follow(self._pods, self._pod_changed)
        if (gates or FeatureGates()).enabled("DRADeviceTaintRules"):
            self._rules = informers.informer(DEVICE_TAINT_RULES)
            self.controller.follow(self._rules, self._rule_changed)

    async def run(self) -> None:
        """Evict until cancelled."""
        await run_telling(self.controller, self._recorder)

    async def reconcile(self, key: PodKey | RuleKey) -> Result:
        """Do what one Pod or one rule needs."""
        if isinstance(key, PodKey):
            return await self._reconcile_pod(key)
        return await self._reconcile_rule(key)

    # --- What a change wakes. ---

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        for device in self._book.pools.change(old, new):
            self._wake_users(self._book.claims.holding(device))

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if not (plan.is_allocated(old) or plan.is_allocated(new)):
            return
        claim = new if new is not None else old
        assert claim is not None
        key = key_of(claim)
        self._book.claims.put(key, new)
        if old is not None and key in self._doomed:
            # Who no longer uses it may stay.
            self._wake(old)
        self._wake_users((key,))

    def _rule_changed(self, old: Document | None, new: Document | None) -> None:
        if old is not None and new is not None and old.get("spec") == new.get("spec"):
            return
        rule = new if new is not None else old
        assert rule is not None
        name = key_of(rule).name
        affected: set[NamespacedName] = set()
        before = self._book.rules.pop(name, None)
        if before is not None:
            affected.update(self._book.claims.selected(before.selector))
            del self._rule_names[before.uid]
        if new is None:
            self._evicted_by.pop(uid_of(rule), None)
        else:
            # Before any Pod goes: whoever wrote the rule sees at once what it does.
            self.controller.queue.add(RuleKey(name, uid_of(new)))
            if status.effect_of(new) == plan.NO_EXECUTE:
                after = self._book.rules[name] = status.read_rule(new)
                self._rule_names[after.uid] = name
                affected.update(self._book.claims.selected(after.selector))
        self._wake_users(sorted(affected))

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._planned.pop(_key(old), None)
        elif self._doomed and not _is_same(old, new) and any(key in self._doomed for key in _claim_keys(new)):
            self.controller.queue.add(_key(new))

    def _wake_users(self, keys: Iterable[NamespacedName]) -> None:
        for key in keys:
            claim = self._book.claims.get(key)
            doomed = claim is not None and self._book.claim_eviction(claim) is not None
            was_doomed = key in self._doomed
            if doomed:
                self._doomed.add(key)
            else:
                self._doomed.discard(key)
            if claim is not None and (doomed or was_doomed):
                self._wake(claim)

    def _wake(self, claim: ResourceClaim) -> None:
        for key in _users(claim):
            self.controller.queue.add(key)

    # --- Pods. ---

    async def _reconcile_pod(self, key: PodKey) -> Result:
        pod = self._pods.lister.get_key(key.key)
        gone = pod is None or pod.metadata.uid != key.uid or pod.metadata.deletion_timestamp is not None
        if pod is None or gone or key.uid in self._evicted:
            self._planned.pop(key, None)
            return None
        eviction = self._book.pod_eviction(pod)
        if eviction is None:
            if self._planned.pop(key, None) is not None:
                self._tell(key, "Cancelling deletion")
            return None
        if self._planned.get(key) != eviction:
            self._planned[key] = eviction
            self._update_rules_later(eviction)
        wait = (eviction.when - self._clock.now()).total_seconds()
        if wait > 0:
            return Requeue(wait)
        if await self._evict(key, pod):
            self._metrics.deleted((self._clock.now() - eviction.when).total_seconds())
            for rule in eviction.rules:
                self._evicted_by[rule] = self._evicted_by.get(rule, 0) + 1
            self._update_rules_later(eviction)
        self._planned.pop(key, None)
        self._evicted.add(key.uid)
        return None

    async def _evict(self, key: PodKey, pod: Pod) -> bool:
        """Delete the Pod, saying why; returns whether it was still there."""
        body = disruption_patch(pod, plan.CONDITION_REASON, plan.CONDITION_MESSAGE, self._clock.now())
        name, namespace = key.key.name, key.key.namespace
        self._tell(key, "Marking for deletion")
        try:
            if body is not None:
                await self._client.patch(PODS, name, namespace, Patch(PatchType.STRATEGIC, body), _STATUS)
            await self._client.delete(PODS, name, namespace, DeleteOptions(uid=key.uid))
        except NotFoundError:
            return False
        return True

    def _update_rules_later(self, eviction: plan.Eviction) -> None:
        """More Pods are likely to follow: one status tells of all."""
        for uid in eviction.rules:
            name = self._rule_names.get(uid)
            if name is not None:
                self.controller.queue.add_after(RuleKey(name, uid), status.STATUS_SECONDS)

    def _tell(self, key: PodKey, message: str) -> None:
        about = ObjectReference(PODS.group_version_kind, key.key.namespace, key.key.name, key.uid)
        self._recorder.event_for(about, NORMAL, plan.EVENT_REASON, message)

    # --- Rules. ---

    async def _reconcile_rule(self, key: RuleKey) -> Result:
        rule = self._rules.lister.get(key.name) if self._rules is not None else None
        if rule is None or uid_of(rule) != key.uid:
            return None
        now = self._clock.now()
        wait = status.wait_seconds(rule, now)
        if wait > 0:
            return Requeue(wait)
        condition = status.plan_condition(rule, self._count(rule), now)
        if condition is not None:
            patch = Patch(PatchType.APPLY, status.status_patch(rule, condition))
            try:
                await self._client.patch(DEVICE_TAINT_RULES, key.name, "", patch, _APPLY)
            except NotFoundError:
                return None
        return None

    def _count(self, rule: Document) -> status.Counts:
        read = status.read_rule(rule)
        evicted = self._evicted_by.get(read.uid, 0)
        effect = status.effect_of(rule)
        if effect not in (plan.NO_EXECUTE, status.NO_EFFECT):
            return status.Counts(evicted=evicted)
        claims = [claim for key in self._book.claims.selected(read.selector) if (claim := self._book.claims.get(key))]
        pretended = read if effect == status.NO_EFFECT else None
        going = {key for claim in claims for key in _users(claim) if self._goes(key, read, pretended)}
        if pretended is None:
            return status.Counts(len(going), len({key.key.namespace for key in going}), evicted=evicted)
        return status.Counts(
            len(going),
            len({key.key.namespace for key in going}),
            published=self._book.pools.count_selected(read.selector),
            allocated=sum(
                read.selector.selects(item.driver, item.pool, item.device)
                for claim in claims
                for item in plan.results_of(claim)
            ),
            evicted=evicted,
        )

    def _goes(self, key: PodKey, rule: plan.Rule, pretended: plan.Rule | None) -> bool:
        pod = self._pods.lister.get_key(key.key)
        if pod is None or pod.metadata.uid != key.uid or pod.metadata.deletion_timestamp is not None:
            return False
        eviction = self._book.pod_eviction(pod, pretended)
        return eviction is not None and rule.uid in eviction.rules


def _key(pod: Pod) -> PodKey:
    return PodKey(key_of(pod), pod.metadata.uid or "")


def _users(claim: ResourceClaim) -> Iterator[PodKey]:
    namespace = claim.metadata.namespace or ""
    for user in claim.status.reserved_for:
        if is_pod_reference(user):
            yield PodKey(NamespacedName(namespace, user.name), user.uid)


def _claim_keys(pod: Pod) -> Iterator[NamespacedName]:
    namespace = pod.metadata.namespace or ""
    for entry in pod_claims(pod):
        if entry.claim_name is not None:
            yield NamespacedName(namespace, entry.claim_name)
    special = extended_resource_claim_name(pod)
    if special:
        yield NamespacedName(namespace, special)


def _is_same(old: Pod | None, new: Pod) -> bool:
    return (
        old is not None
        and old.spec.node_name == new.spec.node_name
        and old.status.resource_claim_statuses == new.status.resource_claim_statuses
        and old.status.extended_resource_claim_status == new.status.extended_resource_claim_status
    )
