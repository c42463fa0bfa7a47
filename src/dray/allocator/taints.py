"""Taints of devices, from slices and from rules, and which of them keep a request away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dray.api.document import Document
from dray.api.types.resource_v1 import DeviceTaint, DeviceToleration

# `None` and effects of the future keep nobody away.
_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule: whose devices it taints, and how."""

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
            # A driver cannot have an empty name, so this is met by none.
            driver="" if selector is None else selector.get("driver"),
            pool=None if selector is None else selector.get("pool"),
            device=None if selector is None else selector.get("device"),
        )

    def selects(self, driver: str, pool: str, device: str) -> bool:
        """Whether the device is tainted; what the rule does not name does not matter."""
        return (
            (self.driver is None or self.driver == driver)
            and (self.pool is None or self.pool == pool)
            and (self.device is None or self.device == device)
        )


def blocks(taint: DeviceTaint) -> bool:
    """Whether the taint keeps anyone away."""
    return taint.effect in _BLOCKING


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether the toleration covers the taint; what it leaves empty covers everything."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    # Without an operator it is Equal.
    return toleration.operator in ("Equal", "", None) and (toleration.value or "") == (taint.value or "")


def intolerable(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that keeps a request with these tolerations away."""
    for taint in taints:
        if blocks(taint) and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None
