"""Which names belong to claims of cdi.k8s.io: those are ClassicResources' business."""

from __future__ import annotations

from typing import Final

from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.framework.events import EventKeys
from dray.scheduler.handle import Handle
from dray.scheduler.kinds import CLASSIC_CLAIMS
from dray.scheduler.plugins.dynamic_resources.checks import IsClassic
from dray.scheduler.plugins.dynamic_resources.hints import keys_of_pod


def classic_names(handle: Handle) -> IsClassic:
    """Tells whether cdi.k8s.io has a claim of a name."""
    if not handle.features.enabled("DRAControlPlaneController"):
        return lambda _key: False
    lister = handle.informers.informer(CLASSIC_CLAIMS).lister
    return lambda key: lister.get_key(key) is not None


def _keys_of_change(old: ResourceClaim | None, new: ResourceClaim | None) -> tuple[str, ...]:
    claim = new if new is not None else old
    return () if claim is None else (f"{claim.metadata.namespace}/{claim.metadata.name}",)


CLASSIC_KEYS: Final = EventKeys(keys_of_pod, _keys_of_change)
