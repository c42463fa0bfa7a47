"""Equivalence classes of Pods: two Pods of one class get the same result from every filter on every node.

Pods are often created in large numbers from one template, and between two attempts few nodes change. Results are cached
by class, so that an attempt costs what has changed, not what there is.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from dray.framework.cycle_state import CycleState
from dray.scheduler.profile import ActiveFilters, Profile

_encode = msgspec.json.Encoder().encode


def has_known_filters(profile: Profile, state: CycleState) -> bool:
    """Return whether all filters of the attempt are known: they accept no node only because of other Pods there."""
    return not profile.active_filters(state).unknown


def equivalence_class_of(profile: Profile, state: CycleState) -> Hashable | None:
    """Return everything about the Pod that its filters depend on; None if that is not known."""
    return equivalence_class_for(profile.active_filters(state), profile, state)


def equivalence_class_for(filters: ActiveFilters, profile: Profile, state: CycleState) -> Hashable | None:
    """As `equivalence_class_of`, with the active filters of the attempt."""
    if filters.unknown:
        return None
    signatures = tuple([plugin.dry_run_signature(state) for plugin in filters.signed])
    if None in signatures:
        return None
    info = state.pod_info
    spec = info.pod.spec
    fields = _encode((spec.tolerations, spec.node_selector, spec.affinity, spec.node_name))
    # Of the plugins whose PreFilter returned Skip, none that is known depends on more than the Pod.
    return profile.scheduler_name, info.priority, info.requests, info.host_ports, fields, signatures
