"""Queueing hints of DynamicResources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dray.api.document import NamespacedName
from dray.api.extended_resources import implicit_extended_resource_name
from dray.api.features import FeatureGates
from dray.api.pod_claims import PodClaim, pod_claims
from dray.api.types import cdi_v1alpha1 as cdi
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim
from dray.client.resources import CLASSIC_CLAIMS
from dray.framework.events import CLASSIC_CLAIM, Action, ClusterEvent, EventKeys, EventRegistration, Hint
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.checks import (
    FindClaim,
    FindPod,
    IsClassic,
    NotReadyError,
    claims_of,
    no_classic,
)
from dray.scheduler.plugins.dynamic_resources.extended_resources import (
    is_extended_resource_claim,
    is_extended_resource_claim_of,
)
from dray.scheduler.plugins.dynamic_resources.nominated_devices import Nominees
from dray.scheduler.plugins.dynamic_resources.wanted_devices import ANY, WantedDevices

# Keys of Pods that wait for the devices of victims on their node, of others with the number of a request that waits
# for devices, and the same for preemptors. No claim has such a name.
_FREED_ON: Final = "freed on "
_FREED_FOR: Final = "freed for "
_FREED_FOR_PREEMPTOR: Final = "freed for preemptor "


class Hints:
    """Queueing hints that read the current claims."""

    def __init__(
        self,
        find: FindClaim,
        is_classic: IsClassic = no_classic,
        nominees: Nominees | None = None,
        wanted: WantedDevices | None = None,
    ) -> None:
        self._find = find
        self._is_classic = is_classic
        self._nominees = nominees
        # None means that every device concerns every Pod.
        self._wanted = wanted

    def claim_changed(self, pod: Pod, old: ResourceClaim | None, new: ResourceClaim | None) -> Hint:
        """Queue all Pods for freed devices, and the claim's own Pods for other changes; see `keys_of_claim`."""
        if old is not None and is_freed(old, new):
            return self._devices_freed(pod, old)
        if old is None and new is None:
            # Its last state is not known, and may have had devices.
            return Hint.QUEUE
        if new is None:
            # The Pod waits for the deletion of its unusable claim, or has to say that its claim is missing.
            return Hint.QUEUE if old is not None and _uses(pod, old) else Hint.SKIP
        if not _uses(pod, new):
            return Hint.SKIP
        return Hint.QUEUE if old is None or _is_relevant_change(old, new) else Hint.SKIP

    def _devices_freed(self, pod: Pod, claim: ResourceClaim) -> Hint:
        """Queue a preemptor when the last claim of its victims is deallocated; those of other victims are not its."""
        if self._nominees is None:
            return Hint.QUEUE
        record = self._nominees.get(pod.metadata.uid or "")
        node_name = "" if record is None else self._nominees.node_of_freed(claim)
        if record is None or not node_name:
            return Hint.QUEUE
        if node_name != record.node_name or self._nominees.settling_on(node_name):
            return Hint.SKIP
        return Hint.QUEUE

    def keys_of_pod(self, pod: Pod) -> list[str]:
        """Return the keys of changes that concern a Pod; of victims' claims, those on a preemptor's own node do."""
        entries = pod_claims(pod)
        keys = _keys_of_entries(pod, entries)
        record = None if self._nominees is None else self._nominees.get(pod.metadata.uid or "")
        if record is not None:
            keys.append(f"{_FREED_ON}{record.node_name}")
        if self._wanted is not None:
            for entry in entries:
                if entry.claim_name is None:
                    # It waits for its claims, and until then for no devices.
                    return keys
        prefix = _FREED_FOR if record is None else _FREED_FOR_PREEMPTOR
        numbers = (ANY,) if self._wanted is None else self._wanted.of_pod(pod)
        keys += [f"{prefix}{number}" for number in numbers]
        return keys

    def keys_of_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> Sequence[str] | None:
        """Return the keys of a changed claim; None (all Pods) if it is not known who could use freed devices."""
        if old is None or old.status.allocation is None or not is_freed(old, new):
            return keys_of_claim(old, new)
        numbers = None if self._wanted is None else self._wanted.of_freed(old.status.allocation)
        if numbers is None:
            return None
        keys = [*own_keys_of_claim(old), *(f"{_FREED_FOR}{number}" for number in numbers)]
        node_name = "" if self._nominees is None else self._nominees.node_of_freed(old)
        if node_name:
            return [*keys, f"{_FREED_ON}{node_name}"]
        return [*keys, *(f"{_FREED_FOR_PREEMPTOR}{number}" for number in numbers)]

    def pod_changed(self, pod: Pod, _old: Pod | None, new: Pod | None) -> Hint:
        """Queue if all claims named in the Pod's status exist."""
        if new is None or new.metadata.uid != pod.metadata.uid:
            return Hint.SKIP
        try:
            claims_of(new, self._find, self._is_classic)
        except NotReadyError:
            return Hint.SKIP
        return Hint.QUEUE

    @staticmethod
    def class_changed(pod: Pod, old: DeviceClass | None, new: DeviceClass | None) -> Hint:
        """Queue if a class that the Pod may need was added or changed."""
        if pod.spec.resource_claims and new is not None:
            return Hint.QUEUE
        return concerns_resources(pod, old, new)


class PotentialVictims:
    """Hints for Pods with devices that get a node: a waiting Pod of higher priority may preempt them now.

    Before that the devices may have belonged to nobody whom it could preempt: a claim that is allocated while its Pod
    is tried again. The same holds for a claim that a Pod of a high priority shared with others until now.
    """

    def __init__(self, nominees: Nominees, find_pod: FindPod) -> None:
        self._nominees = nominees
        self._find_pod = find_pod
        # Of Pods that have waited; there are as many as priority classes.
        self._priorities: set[int] = set()

    def keys_of_pod(self, pod: Pod) -> tuple[str, ...]:
        """Return the Pod's priority."""
        priority = pod.spec.priority or 0
        self._priorities.add(priority)
        return (str(priority),)

    def keys_of_change(self, _old: Pod | None, new: Pod | None) -> list[str]:
        """Return the priorities of Pods that could preempt the assigned one."""
        if new is None or not new.spec.resource_claims:
            return []
        priority = new.spec.priority or 0
        return [str(other) for other in self._priorities if other > priority]

    def pod_assigned(self, pod: Pod, _old: Pod | None, new: Pod | None) -> Hint:
        """Queue a Pod of higher priority, unless it has a node where it waits for the devices of others."""
        if new is None or (pod.spec.priority or 0) <= (new.spec.priority or 0):
            return Hint.SKIP
        return Hint.SKIP if self._nominees.get(pod.metadata.uid or "") is not None else Hint.QUEUE

    def keys_of_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> list[str]:
        """Return the priorities of Pods that could preempt all users of a claim which one has left."""
        highest = self._highest_user(old, new) if self._priorities else None
        return [] if highest is None else [str(other) for other in self._priorities if other > highest]

    def user_left(self, pod: Pod, old: ResourceClaim | None, new: ResourceClaim | None) -> Hint:
        """Queue a Pod of a higher priority than all users that a claim still has: it could evict all of them."""
        highest = self._highest_user(old, new)
        if highest is None or (pod.spec.priority or 0) <= highest:
            return Hint.SKIP
        return Hint.SKIP if self._nominees.get(pod.metadata.uid or "") is not None else Hint.QUEUE

    def _highest_user(self, old: ResourceClaim | None, new: ResourceClaim | None) -> int | None:
        """Return the highest priority of the remaining users; None if none has left, or not all are known Pods."""
        if old is None or new is None or new.status.allocation is None:
            return None
        users = new.status.reserved_for
        if not users or not old.status.reserved_for:
            return None
        if not {user.uid for user in old.status.reserved_for}.difference(user.uid for user in users):
            return None
        namespace = new.metadata.namespace or ""
        pods = [self._find_pod(NamespacedName(namespace, user.name)) for user in users if user.resource == "pods"]
        if len(pods) < len(users):
            return None
        return max((pod.spec.priority or 0 for pod in pods if pod is not None), default=None)


def concerns_resources(pod: Pod, old: DeviceClass | None, new: DeviceClass | None) -> Hint:
    """Queue if the class serves, or served, an extended resource of the Pod."""
    names: set[str] = set()
    for device_class in (old, new):
        if device_class is not None:
            names.add(implicit_extended_resource_name(device_class.metadata.name or ""))
            names.add(device_class.spec.extended_resource_name or "")
    wanted = (name for item in (*pod.spec.init_containers, *pod.spec.containers) for name in item.resources.requests)
    return Hint.QUEUE if names.intersection(wanted) else Hint.SKIP


def claim_keys_of(pod: Pod) -> list[str]:
    """Return the keys of the Pod's claims."""
    if not pod.spec.resource_claims:
        return []
    namespace = pod.metadata.namespace
    return [f"{namespace}/{entry.claim_name}" for entry in pod_claims(pod) if entry.claim_name is not None]


def keys_of_pod(pod: Pod) -> list[str]:
    """Return the keys of the Pod's claims, and its uid as the owner of an extended-resource claim."""
    return _keys_of_entries(pod, pod_claims(pod))


def _keys_of_entries(pod: Pod, entries: Sequence[PodClaim]) -> list[str]:
    claims = [f"{pod.metadata.namespace}/{entry.claim_name}" for entry in entries if entry.claim_name is not None]
    return [pod.metadata.uid or "", *claims]


def keys_of_claim(old: ResourceClaim | None, new: ResourceClaim | None) -> tuple[str, ...] | None:
    """Return the key of the changed claim; None if its devices were freed, or may have been."""
    if is_freed(old, new):
        return None
    claim = new if new is not None else old
    return None if claim is None else own_keys_of_claim(claim)


def own_keys_of_claim(claim: ResourceClaim) -> tuple[str, ...]:
    """Return the keys of the Pods that use the claim."""
    if is_extended_resource_claim(claim):
        return tuple(owner.uid for owner in claim.metadata.owner_references)
    return (f"{claim.metadata.namespace}/{claim.metadata.name}",)


def no_keys(_pod: Pod) -> tuple[str, ...]:
    """Return no keys: a change concerns all Pods or none."""
    return ()


def is_freed(old: ResourceClaim | None, new: ResourceClaim | None) -> bool:
    """Return whether the claim's devices were freed."""
    if old is None or old.status.allocation is None:
        return False
    return new is None or new.status.allocation is None


def _is_relevant_change(old: ResourceClaim, new: ResourceClaim) -> bool:
    """Return whether the status changed, or the claim is being deleted; other metadata is irrelevant."""
    return old.status != new.status or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp


def _uses(pod: Pod, claim: ResourceClaim) -> bool:
    if pod.metadata.namespace != claim.metadata.namespace:
        return False
    return is_extended_resource_claim_of(claim, pod) or any(
        entry.claim_name == claim.metadata.name for entry in pod_claims(pod)
    )


GATE: Final = "DRAControlPlaneController"


def classic_names(handle: Handle) -> IsClassic:
    """Return a function that tells whether cdi.k8s.io has a claim with a name."""
    if not handle.features.enabled(GATE):
        return no_classic
    lister = handle.informers.informer(CLASSIC_CLAIMS).lister
    return lambda key: lister.get_key(key) is not None


def _keys_of_change(old: cdi.ResourceClaim | None, new: cdi.ResourceClaim | None) -> tuple[str, ...]:
    claim = new if new is not None else old
    return () if claim is None else (f"{claim.metadata.namespace}/{claim.metadata.name}",)


def _same_name(pod: Pod, old: cdi.ResourceClaim | None, new: cdi.ResourceClaim | None) -> Hint:
    return Hint.SKIP if set(_keys_of_change(old, new)).isdisjoint(claim_keys_of(pod)) else Hint.QUEUE


def classic_events(features: FeatureGates, of_pod: Callable[[Pod], Sequence[str]]) -> tuple[EventRegistration, ...]:
    """Return the registration for claims of the other API group with the same name; `of_pod` has the Pod's claims."""
    if not features.enabled(GATE):
        return ()
    event = ClusterEvent(CLASSIC_CLAIM, Action.ADD | Action.DELETE)
    return (EventRegistration(event, _same_name, EventKeys(of_pod, _keys_of_change)),)
