"""Evicts Pods that use devices with NoExecute taints, and reports the progress of DeviceTaintRules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dray.api.devices import results_of
from dray.api.document import Document, NamespacedName
from dray.api.pod_claims import extended_resource_claim_name, is_pod_reference, pod_claims
from dray.api.pod_groups import is_group_reference
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim, ResourceSlice
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.interface import Patch, PatchType, WriteOptions
from dray.client.objects import key_of, uid_of
from dray.client.resources import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, FieldManager
from dray.client.shared_informers import SharedInformer
from dray.controllers.device_taint_eviction import plan, status
from dray.controllers.eviction import EvictionKey, EvictionMetrics, EvictionReason, PodEvictor
from dray.controllers.reconciler import PODS_BY_GROUP, ControllerContext, Reconciler, newest, pod_group_values
from dray.lib.lru import LRUSet
from dray.runtime.metrics import Metrics

REASON: Final = EvictionReason(plan.EVENT_REASON, plan.CONDITION_REASON, plan.CONDITION_MESSAGE)
# Size of the cache of evicted Pods; a miss costs one request.
EVICTED_MAX: Final = 500
_APPLY: Final = WriteOptions(field_manager=FieldManager.DEVICE_TAINT_EVICTION, force=True, subresource="status")


@dataclass(frozen=True, slots=True)
class RuleKey:
    """A rule whose status may have to be written."""

    name: str
    uid: str


class DeviceTaintEvictionController(Reconciler[EvictionKey | RuleKey]):
    """Deletes Pods when the tolerations of their devices' NoExecute taints have run out."""

    name = "device_taint_eviction_controller"
    component = "device-taint-eviction-controller"
    workers = 8

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        informers = context.informers
        self._metrics = EvictionMetrics(context.metrics or Metrics(), self.name)
        self._evictor = PodEvictor(context.client, self._recorder, REASON)
        self._taints = plan.DeviceTaints()
        # Claims whose consumers are evicted, now or later.
        self._tainted_claims: set[NamespacedName] = set()
        # Evictions to come, and when each is due on the monotonic clock: the time of day may be set meanwhile.
        self._planned: dict[EvictionKey, tuple[plan.Eviction, float]] = {}
        self._evicted: LRUSet[str] = LRUSet(EVICTED_MAX)
        # Uid of a rule -> Pods evicted because of it.
        self._evicted_by: dict[str, int] = {}
        # Uid of a rule that evicts -> its name.
        self._rule_names: dict[str, str] = {}
        self._pods = informers.informer(PODS, indexes={PODS_BY_GROUP: pod_group_values})
        self._rules: SharedInformer[Document] | None = None
        self.controller.follow(informers.informer(RESOURCE_SLICES), self._slice_changed)
        self.controller.follow(informers.informer(RESOURCE_CLAIMS), self._claim_changed)
        self.controller.follow(self._pods, self._cancel_if_deleted, needed_while=self._planned)
        self.controller.follow(self._pods, self._pod_changed, needed_while=self._tainted_claims)
        if context.gates.enabled("DRADeviceTaintRules"):
            self._rules = informers.informer(DEVICE_TAINT_RULES)
            self.controller.follow(self._rules, self._rule_changed)

    async def reconcile(self, key: EvictionKey | RuleKey) -> Result:
        """Evict one Pod if it is due, or write the status of one rule."""
        if isinstance(key, EvictionKey):
            return await self._reconcile_pod(key)
        return await self._reconcile_rule(key)

    # --- Event handlers. ---

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        for device in self._taints.pools.change(old, new):
            self._enqueue_consumers_of(self._taints.claims.holding(device))

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if not plan.was_or_is_allocated(old, new):
            return
        key = key_of(newest(old, new))
        self._taints.claims.put(key, new)
        if old is not None and key in self._tainted_claims:
            # Former consumers are no longer evicted.
            self._enqueue_consumers(old)
        self._enqueue_consumers_of((key,))

    def _rule_changed(self, old: Document | None, new: Document | None) -> None:
        if old is not None and new is not None and old.get("spec") == new.get("spec"):
            return
        rule = newest(old, new)
        name = key_of(rule).name
        affected: set[NamespacedName] = set()
        before = self._taints.rules.pop(name, None)
        if before is not None:
            affected.update(self._taints.claims.selected(before.selector))
            del self._rule_names[before.uid]
        if new is None:
            self._evicted_by.pop(uid_of(rule), None)
        else:
            # Before any eviction, so that the author of the rule sees its effect at once.
            self.controller.queue.add(RuleKey(name, uid_of(new)))
            if status.effect_of(new) == plan.NO_EXECUTE:
                after = self._taints.rules[name] = status.read_rule(new)
                self._rule_names[after.uid] = name
                affected.update(self._taints.claims.selected(after.selector))
        self._enqueue_consumers_of(sorted(affected))

    def _cancel_if_deleted(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._planned.pop(EvictionKey.of(old), None)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None or _uses_same_devices(old, new):
            return
        if any(key in self._tainted_claims for key in _claim_keys(new)):
            self.controller.queue.add(EvictionKey.of(new))

    def _enqueue_consumers_of(self, keys: Iterable[NamespacedName]) -> None:
        for key in keys:
            claim = self._taints.claims.get(key)
            tainted = claim is not None and self._taints.claim_eviction(claim) is not None
            was_tainted = key in self._tainted_claims
            if tainted:
                self._tainted_claims.add(key)
            else:
                self._tainted_claims.discard(key)
            if claim is not None and (tainted or was_tainted):
                self._enqueue_consumers(claim)

    def _enqueue_consumers(self, claim: ResourceClaim) -> None:
        for key in self._consumers(claim):
            self.controller.queue.add(key)

    # --- Pods. ---

    async def _reconcile_pod(self, key: EvictionKey) -> Result:
        pod = self._pods.lister.get_key(key.key)
        gone = pod is None or pod.metadata.uid != key.uid or pod.metadata.deletion_timestamp is not None
        if pod is None or gone or key.uid in self._evicted:
            self._planned.pop(key, None)
            return None
        eviction = self._taints.pod_eviction(pod)
        if eviction is None:
            if self._planned.pop(key, None) is not None:
                self._evictor.record(key, "Cancelling deletion")
            return None
        planned = self._planned.get(key)
        if planned is None or planned[0] != eviction:
            due = self._clock.monotonic() + eviction.wait_seconds(self._clock.now())
            planned = self._planned[key] = eviction, due
            self._update_rules_later(eviction)
        wait = planned[1] - self._clock.monotonic()
        if wait > 0:
            return Requeue(wait)
        if await self._evictor.evict(key, pod, "Marking for deletion", self._clock.now()):
            self._metrics.deleted((self._clock.now() - eviction.when).total_seconds())
            for rule in eviction.rules:
                self._evicted_by[rule] = self._evicted_by.get(rule, 0) + 1
            self._update_rules_later(eviction)
        self._planned.pop(key, None)
        self._evicted.add(key.uid)
        return None

    def _update_rules_later(self, eviction: plan.Eviction) -> None:
        """Enqueue the rules with a delay: one status write covers the evictions until then."""
        for uid in eviction.rules:
            name = self._rule_names.get(uid)
            if name is not None:
                self.controller.queue.add_after(RuleKey(name, uid), status.STATUS_SECONDS)

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
            await ignore_not_found(self._client.patch(DEVICE_TAINT_RULES, key.name, "", patch, _APPLY))
        return None

    def _count(self, rule: Document) -> status.Counts:
        read = status.read_rule(rule)
        evicted = self._evicted_by.get(read.uid, 0)
        effect = status.effect_of(rule)
        if effect not in (plan.NO_EXECUTE, status.NO_EFFECT):
            return status.Counts(evicted=evicted)
        claims = [
            claim for key in self._taints.claims.selected(read.selector) if (claim := self._taints.claims.get(key))
        ]
        simulated = read if effect == status.NO_EFFECT else None
        evicted_pods = {
            key for claim in claims for key in self._consumers(claim) if self._is_evicted_by(key, read, simulated)
        }
        if simulated is None:
            return status.Counts(len(evicted_pods), len({key.key.namespace for key in evicted_pods}), evicted=evicted)
        return status.Counts(
            len(evicted_pods),
            len({key.key.namespace for key in evicted_pods}),
            published=self._taints.pools.count_selected(read.selector),
            allocated=sum(
                read.selector.selects(item.driver, item.pool, item.device)
                for claim in claims
                for item in results_of(claim.status.allocation)
            ),
            evicted=evicted,
        )

    def _consumers(self, claim: ResourceClaim) -> Iterator[EvictionKey]:
        """Yield the Pods that the claim is reserved for, those of groups by their references."""
        namespace = claim.metadata.namespace or ""
        for user in claim.status.reserved_for:
            key = NamespacedName(namespace, user.name)
            if is_pod_reference(user):
                yield EvictionKey(key, user.uid)
            elif is_group_reference(user):
                for pod in self._pods.lister.by_index(PODS_BY_GROUP, key):
                    if any(entry.claim_name == claim.metadata.name for entry in pod_claims(pod)):
                        yield EvictionKey(key_of(pod), pod.metadata.uid or "")

    def _is_evicted_by(self, key: EvictionKey, rule: plan.Rule, simulated: plan.Rule | None) -> bool:
        pod = self._pods.lister.get_key(key.key)
        if pod is None or pod.metadata.uid != key.uid or pod.metadata.deletion_timestamp is not None:
            return False
        eviction = self._taints.pod_eviction(pod, simulated)
        return eviction is not None and rule.uid in eviction.rules


def _claim_keys(pod: Pod) -> Iterator[NamespacedName]:
    namespace = pod.metadata.namespace or ""
    for entry in pod_claims(pod):
        if entry.claim_name is not None:
            yield NamespacedName(namespace, entry.claim_name)
    special = extended_resource_claim_name(pod)
    if special:
        yield NamespacedName(namespace, special)


def _uses_same_devices(old: Pod | None, new: Pod) -> bool:
    return (
        old is not None
        and old.spec.node_name == new.spec.node_name
        and old.status.resource_claim_statuses == new.status.resource_claim_statuses
        and old.status.extended_resource_claim_status == new.status.extended_resource_claim_status
    )
