"""Which classic claims a Pod has and whether they are ready to be worked on, in Kubernetes' words; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dray.api.classic_claims import classic_entries, is_made_for
from dray.api.document import NamespacedName
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Pod
from dray.scheduler.plugins.dynamic_resources.checks import NotReadyError, ambiguous

FindClaim = Callable[[NamespacedName], ResourceClaim | None]
# Whether resource.k8s.io has a claim of the name.
HasStructured = Callable[[NamespacedName], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A claim that the Pod is to have, or would like to have."""

    claim: ResourceClaim
    optional: bool = False


def claims_of(pod: Pod, find: FindClaim, has_structured: HasStructured) -> list[Wanted]:
    """The Pod's classic claims in the order of its entries, each once; raises `NotReadyError`.

    Optional ones that cannot be had are left out, but one that is about to be made is waited for.
    """
    namespace = pod.metadata.namespace or ""
    found: dict[str, Wanted] = {}
    for entry in classic_entries(pod, lambda name: find(NamespacedName(namespace, name)) is not None):
        key = NamespacedName(namespace, entry.claim_name)
        claim = find(key)
        if claim is None:
            raise NotReadyError(f'pod "{namespace}/{pod.metadata.name}": ResourceClaim not created yet')
        if not entry.generated and has_structured(key):
            raise NotReadyError(ambiguous(entry.claim_name))
        problem = _problem(pod, claim, generated=entry.generated)
        if not problem:
            known = found.get(claim.metadata.uid or "")
            optional = entry.optional and (known is None or known.optional)
            found[claim.metadata.uid or ""] = Wanted(claim, optional)
        elif not entry.optional:
            raise NotReadyError(problem)
    return list(found.values())


def _problem(pod: Pod, claim: ResourceClaim, *, generated: bool) -> str:
    namespace, name = pod.metadata.namespace, claim.metadata.name
    if generated and not is_made_for(claim, pod):
        owner = f"pod {namespace}/{pod.metadata.name}"
        return f"ResourceClaim {namespace}/{name} was not created for {owner} (pod is not owner)"
    if claim.metadata.deletion_timestamp is not None:
        return f'resourceclaim "{name}" is being deleted'
    return ""
