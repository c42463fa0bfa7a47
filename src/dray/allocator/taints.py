"""Device taints of slices and rules, and tolerations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.types.resource_v1 import DeviceTaint, DeviceToleration

# `None` and unknown effects do not block.
_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule: its device selector and taint."""

    name: str
    taint: DeviceTaint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None

    @classmethod
    def from_document(cls, document: Document) -> TaintRule:
        """Read a rule of any version; an absent selector selects nothing."""
        spec = document.get("spec") or {}
        selector = spec.get("deviceSelector")
        taint = spec.get("taint") or {}
        return cls(
            name=document["metadata"]["name"],
            taint=DeviceTaint(key=taint.get("key", ""), value=taint.get("value"), effect=taint.get("effect", "")),
            # Matches no device, since driver names are not empty.
            driver="" if selector is None else selector.get("driver"),
            pool=None if selector is None else selector.get("pool"),
            device=None if selector is None else selector.get("device"),
        )

    def selects(self, driver: str, pool: str, device: str) -> bool:
        """Return whether the rule selects the device; an empty field matches all."""
        return (
            (self.driver is None or self.driver == driver)
            and (self.pool is None or self.pool == pool)
            and (self.device is None or self.device == device)
        )


def blocks(taint: DeviceTaint) -> bool:
    """Return whether the taint prevents allocation."""
    return taint.effect in _BLOCKING


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Return whether the toleration matches the taint; an empty field matches all."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    # The default operator is Equal.
    return toleration.operator in ("Equal", "", None) and (toleration.value or "") == (taint.value or "")


def intolerable(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """Return the first taint that these tolerations do not match."""
    for taint in taints:
        if blocks(taint) and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
