"""What keeps a Pod with a persistent volume claim from being placed. Pure."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document

REASON_UNBOUND: Final = "pod has unbound immediate PersistentVolumeClaims"
_LOCAL: Final = ("local", "hostPath")


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
    if volume is not None and not any(kind in (volume.get("spec") or {}) for kind in _LOCAL):
        return f'persistentvolumeclaim "{name}": only local and hostPath volumes are supported by this scheduler'
    return ""


def _phase(claim: Document) -> str:
    return (claim.get("status") or {}).get("phase") or ""
