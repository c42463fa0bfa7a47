"""Which names belong to claims of cdi.k8s.io: those are ClassicResources' business."""

from __future__ import annotations

from typing import Final

from dray.api.features import FeatureGates
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.client.resources import CLASSIC_CLAIMS
from dray.framework.events import CLASSIC_CLAIM, Action, ClusterEvent, EventKeys, EventRegistration, Hint
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.dynamic_resources.checks import IsClassic, no_classic
from dray.scheduler.plugins.dynamic_resources.hints import claim_keys_of

GATE: Final = "DRAControlPlaneController"


def classic_names(handle: Handle) -> IsClassic:
    """Tells whether cdi.k8s.io has a claim of a name."""
    if not handle.features.enabled(GATE):
        return no_classic
    lister = handle.informers.informer(CLASSIC_CLAIMS).lister
    return lambda key: lister.get_key(key) is not None


def _keys_of_change(old: ResourceClaim | None, new: ResourceClaim | None) -> tuple[str, ...]:
    claim = new if new is not None else old
    return () if claim is None else (f"{claim.metadata.namespace}/{claim.metadata.name}",)


def _same_name(pod: Pod, old: ResourceClaim | None, new: ResourceClaim | None) -> Hint:
    return Hint.SKIP if set(_keys_of_change(old, new)).isdisjoint(claim_keys_of(pod)) else Hint.QUEUE


def classic_events(features: FeatureGates) -> tuple[EventRegistration, ...]:
    """A name that is known to neither group may come to be known to the other one, or no longer be known to both."""
    if not features.enabled(GATE):
        return ()
    event = ClusterEvent(CLASSIC_CLAIM, Action.ADD | Action.DELETE)
    return (EventRegistration(event, _same_name, EventKeys(claim_keys_of, _keys_of_change)),)
