"""What a replica of a cluster cannot evaluate, as notes for the user. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dray.api.document import NamespacedName
from dray.api.persistent_volumes import claim_names
from dray.api.types.core_v1 import Pod
from dray.scheduler.plugins.volume_claims import unsupported_reason
from dray.sim.snapshot import Snapshot

DEFAULT_SCHEDULER_NAME: Final = "default-scheduler"
# Beyond that, the number of further notes is given.
NOTES_MAX: Final = 10


def notes_on(snapshot: Snapshot, pods: Iterable[Pod]) -> tuple[str, ...]:
    """Return what is not evaluated for these Pods."""
    found = list(dict.fromkeys(note for pod in pods for note in _notes(snapshot, pod)))
    more = len(found) - NOTES_MAX
    return (*found[:NOTES_MAX], f"and {more} more") if more > 0 else tuple(found)


def _notes(snapshot: Snapshot, pod: Pod) -> Iterator[str]:
    key = NamespacedName(pod.metadata.namespace or "", pod.metadata.name or "")
    name = pod.spec.scheduler_name or DEFAULT_SCHEDULER_NAME
    if name != DEFAULT_SCHEDULER_NAME:
        yield f"Pods of the scheduler {name} are evaluated with the default profile"
    for claim_name, _ in claim_names(pod):
        claim = snapshot.volume_claims.get(NamespacedName(key.namespace, claim_name))
        if claim is None:
            yield f"pod {key}: its volume claim {claim_name} is not in the snapshot, and is not evaluated"
            continue
        volume = snapshot.volumes.get((claim.get("spec") or {}).get("volumeName") or "")
        if unsupported_reason(claim_name, claim, volume):
            evaluated = "only the node affinity of its volume is evaluated" if volume else "it is not evaluated"
            yield f"pod {key}: volume claim {claim_name}: {evaluated}"
