"""Pods that give themselves no grace period: claims of cdi.k8s.io are unprepared while their Pod holds them."""

from __future__ import annotations

from typing import Final

from dray.api import classic_claims
from dray.api.codec import from_document
from dray.api.document import Document, GroupResource
from dray.api.types.core_v1 import Pod
from dray.apiserver.reflector import resource_prefix
from dray.store.interface import Store

_CLASSIC_CLAIMS: Final = resource_prefix(GroupResource("cdi.k8s.io", "resourceclaims"))


class PodGrace:
    """Knows the least grace period of a Pod whose deletion names none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def least_seconds(self, pod: Document) -> int:
        """Return 1 for a Pod without a grace period that has a claim of cdi.k8s.io, else 0."""
        prefix = f"{_CLASSIC_CLAIMS}{pod['metadata'].get('namespace', '')}/"
        names = claims_without_grace(pod)
        return int(any([await self._store.get(f"{prefix}{name}") is not None for name in names]))


def claims_without_grace(pod: Document) -> list[str]:
    """Return the names that claims of cdi.k8s.io would have, of a Pod that is to be gone at once."""
    spec = pod.get("spec") or {}
    if spec.get("terminationGracePeriodSeconds") != 0 or not spec.get("resourceClaims"):
        return []
    return classic_claims.claim_names_of(from_document(Pod, pod))
