"""What a replica of a cluster cannot evaluate, as notes for the user. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document, NamespacedName
from dray.api.persistent_volumes import claim_names, class_of, has_known_nodes, is_delayed
from dray.api.types.core_v1 import Pod
from dray.scheduler.plugins.volume_claims import unsupported_reason
from dray.sim.snapshot import Snapshot

DEFAULT_SCHEDULER_NAME: Final = "default-scheduler"
# Beyond that, the number of further notes is given.
NOTES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class EvaluatedProfiles:
    """The schedulers whose profiles are known, and notes on what of their configuration is not evaluated."""

    names: frozenset[str] = frozenset({DEFAULT_SCHEDULER_NAME})
    notes: tuple[str, ...] = ()


def notes_on(
    snapshot: Snapshot, pods: Iterable[Pod], profiles: EvaluatedProfiles = EvaluatedProfiles()
) -> tuple[str, ...]:
    """Return what is not evaluated for these Pods, and of the schedulers' configuration."""
    found = list(dict.fromkeys(note for pod in pods for note in _notes(snapshot, pod, profiles.names)))
    found += profiles.notes
    more = len(found) - NOTES_MAX
    return (*found[:NOTES_MAX], f"and {more} more") if more > 0 else tuple(found)


def _notes(snapshot: Snapshot, pod: Pod, profiles: Container[str]) -> Iterator[str]:
    key = NamespacedName(pod.metadata.namespace or "", pod.metadata.name or "")
    name = pod.spec.scheduler_name or DEFAULT_SCHEDULER_NAME
    if name not in profiles:
        yield f"Pods of the scheduler {name} are evaluated with the default profile"
    for claim_name, _ in claim_names(pod):
        note = _volume_note(snapshot, key.namespace, claim_name)
        if note:
            yield f"pod {key}: {note}"


def _volume_note(snapshot: Snapshot, namespace: str, name: str) -> str:
    """Return what is not evaluated about a volume claim; empty if everything is."""
    claim = snapshot.volume_claims.get(NamespacedName(namespace, name))
    if claim is None:
        return f"its volume claim {name} is not in the snapshot, and is not evaluated"
    volume_name = claim["spec"].get("volumeName") or ""
    if not volume_name:
        return _unbound_note(name, snapshot.storage_classes.get(class_of(claim)))
    volume = snapshot.volumes.get(volume_name)
    if volume is None:
        return f"the volume {volume_name} of its volume claim {name} is not in the snapshot, and is not evaluated"
    if not unsupported_reason(name, claim, volume):
        return ""
    driver = (volume["spec"].get("csi") or {}).get("driver")
    limits = f", not how many volumes of {driver} a node can have" if driver else ""
    return f"volume claim {name}: only the node affinity of its volume is evaluated{limits}"


def _unbound_note(name: str, storage_class: Document | None) -> str:
    if storage_class is None or not is_delayed(storage_class):
        return f"volume claim {name} is not bound, which a scheduler waits for; the rest is evaluated as if it were"
    if has_known_nodes(storage_class):
        return ""
    provisioner = storage_class.get("provisioner")
    return f"volume claim {name} is not bound: where {provisioner} can provision a volume is not evaluated"
