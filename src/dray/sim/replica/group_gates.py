"""The feature gates that a cluster must have, by the fields that its objects use and what its scheduler reports. Pure.

A server whose gate is off drops the field when an object is created, so an object with the field shows that it is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.sim.scheduler_messages import reports_skipped_classes

# The kinds with such fields.
GROUP_KINDS: Final = ("PodGroup", "Pod", "Job")


def with_groups(gates: FeatureGates, documents: Iterable[Document]) -> FeatureGates:
    """Return the gates with those that the objects need, unless they are set."""
    needed = {name for document in documents for name in _needed(document)}
    unset = sorted(needed - gates.overrides.keys())
    return gates.with_overrides(dict.fromkeys(unset, True)) if unset else gates


def _needed(document: Document) -> Iterator[str]:
    kind, spec = document.get("kind"), document.get("spec") or {}
    conditions = ((document.get("status") or {}).get("conditions") or ()) if kind == "Pod" else ()
    if any(reports_skipped_classes(item.get("message") or "") for item in conditions):
        yield "DRASkipUnknownClasses"
    scheduling = spec.get("scheduling") if kind == "Job" else None
    if kind == "PodGroup" or scheduling or (kind == "Pod" and spec.get("schedulingGroup")):
        yield from ("GenericWorkload", "DRAWorkloadResourceClaims")
    if scheduling:
        yield "WorkloadWithJob"
    if (spec if kind == "PodGroup" else scheduling or {}).get("schedulingConstraints"):
        yield "TopologyAwareWorkloadScheduling"
