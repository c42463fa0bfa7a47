"""The persistent volume claims of a Pod: which it uses, and what keeps it from being placed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dray.api.document import Document
from dray.api.types.core_v1 import Pod

REASON_UNBOUND: Final = "pod has unbound immediate PersistentVolumeClaims"
_LOCAL: Final = ("local", "hostPath")


def claim_names(pod: Pod) -> Iterator[tuple[str, bool]]:
    """Yield the names of the Pod's volume claims, and whether each belongs to an ephemeral volume."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def claim_problem(name: str, claim: Document | None, *, ephemeral: bool) -> str:
    """Return why the claim cannot be used yet; empty if it can, or if it is not bound."""
    if claim is None:
        if ephemeral:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        return f'persistentvolumeclaim "{name}" not found'
    volume = claim["spec"].get("volumeName") or ""
    if _phase(claim) == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
    if claim["metadata"].get("deletionTimestamp"):
        return f'persistentvolumeclaim "{name}" is being deleted'
    return ""


def unsupported_reason(name: str, claim: Document, volume: Document | None) -> str:
    """Return what the scheduler does not support of the claim; empty if it does."""
    if not claim["spec"].get("volumeName") or _phase(claim) != "Bound":
        return REASON_UNBOUND
    if "ReadWriteOncePod" in (claim["spec"].get("accessModes") or ()):
        return f'persistentvolumeclaim "{name}": access mode ReadWriteOncePod is not supported by this scheduler'
    if volume is not None and not any(kind in (volume.get("spec") or {}) for kind in _LOCAL):
        return f'persistentvolumeclaim "{name}": only local and hostPath volumes are supported by this scheduler'
    return ""


def _phase(claim: Document) -> str:
    return (claim.get("status") or {}).get("phase") or ""
