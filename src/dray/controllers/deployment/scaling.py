"""How large each ReplicaSet of a Deployment is to be; pure."""

from __future__ import annotations

from collections.abc import Callable

from dray.api.types.apps_v1 import Deployment, ReplicaSet
from dray.controllers.deployment.revisions import by_age, desired_of, total_max_of
from dray.controllers.deployment.rollout import Draft
from dray.controllers.deployment.strategy import (
    active,
    is_rolling,
    max_unavailable,
    replicas_of,
    total,
    total_available,
    total_max,
)


def size_for_new(deployment: Deployment, others: list[ReplicaSet], new: ReplicaSet) -> int:
    """How large the new ReplicaSet may be while the others are as they are."""
    wanted, current = replicas_of(deployment), replicas_of(new)
    if not is_rolling(deployment):
        return wanted
    room = total_max(deployment) - total([*others, new])
    return current if room <= 0 else current + min(room, wanted - current)


def is_scaling(draft: Draft) -> bool:
    """Whether the Deployment's size has changed since its ReplicaSets were sized."""
    wanted = replicas_of(draft.deployment)
    return any(desired_of(item) not in (None, wanted) for item in active(draft.all))


# --- Scaling while nothing is rolled out. ---


def scale(draft: Draft) -> None:
    """Pass a change of size on to the ReplicaSets: to the only one, or to all in proportion."""
    wanted = replicas_of(draft.deployment)
    only = _only_or_latest(draft)
    if only is not None:
        # Also when the size is right: one that was sized by hand must not look as if it were to be scaled for ever.
        draft.scale(only, wanted)
        return
    if _is_saturated(draft):
        for item in active(draft.old):
            draft.scale(item, 0)
    elif is_rolling(draft.deployment):
        _scale_in_proportion(draft)


def _only_or_latest(draft: Draft) -> ReplicaSet | None:
    """The one ReplicaSet that has Pods; when none has, the newest. None when several have."""
    found = active(draft.all)
    if len(found) > 1:
        return None
    if found:
        return found[0]
    if draft.new is not None:
        return draft.new
    return by_age(draft.old)[-1] if draft.old else None


def _is_saturated(draft: Draft) -> bool:
    wanted, new = replicas_of(draft.deployment), draft.new
    if new is None:
        return False
    return replicas_of(new) == desired_of(new) == (new.status.available_replicas or 0) == wanted


def _scale_in_proportion(draft: Draft) -> None:
    deployment = draft.deployment
    allowed = total_max(deployment) if replicas_of(deployment) > 0 else 0
    sets = active(draft.all)
    change = allowed - total(sets)
    # The largest first; among equals the newest grows and the oldest shrinks.
    sets = sorted(by_age(sets)[:: -1 if change > 0 else 1], key=replicas_of, reverse=True)
    shares: list[int] = []
    for item in sets:
        left = change - sum(shares)
        shares.append(_within(_share(deployment, item), left) if left else 0)
    # Rounding leaves a little, which the largest takes.
    leftover = change - sum(shares)
    for position, item in enumerate(sets):
        size = replicas_of(item) + shares[position] + (leftover if position == 0 else 0)
        draft.scale(item, max(size, 0))


def _within(share: int, left: int) -> int:
    return min(share, left) if left > 0 else max(share, left)


def _share(deployment: Deployment, replica_set: ReplicaSet) -> int:
    """By how much the ReplicaSet changes if it keeps its part of the whole."""
    size = replicas_of(replica_set)
    if replicas_of(deployment) == 0:
        return -size
    before = total_max_of(replica_set) or deployment.status.replicas or size
    # Half is rounded up.
    return (2 * size * total_max(deployment) + before) // (2 * before) - size


# --- Rolling out. ---


def grow_new(draft: Draft) -> bool:
    """Bring the new ReplicaSet as near to its size as the surge allows; whether it changed."""
    new = draft.new
    assert new is not None
    wanted = replicas_of(draft.deployment)
    if replicas_of(new) == wanted:
        return False
    if replicas_of(new) > wanted:
        return draft.scale(new, wanted)
    return draft.scale(new, size_for_new(draft.deployment, draft.old, new))


def shrink_old(draft: Draft) -> bool:
    """Take from the old ReplicaSets what may be missing: first Pods that are of no use anyhow; whether any changed."""
    deployment, new = draft.deployment, draft.new
    assert new is not None
    if not active(draft.old):
        return False
    needed = replicas_of(deployment) - max_unavailable(deployment)
    not_yet = replicas_of(new) - (new.status.available_replicas or 0)
    spare = total(draft.all) - needed - not_yet
    if spare <= 0:
        return False
    taken = _take(draft, spare, lambda item: replicas_of(item) - (item.status.available_replicas or 0))
    taken += _take(draft, total_available(draft.all) - needed, replicas_of)
    return taken > 0


def _take(draft: Draft, count: int, at_most: Callable[[ReplicaSet], int]) -> int:
    """Take so many from the old ReplicaSets, the oldest first; how many were taken."""
    taken = 0
    for item in by_age(active(draft.old)):
        part = min(count - taken, at_most(item))
        if part > 0:
            draft.scale(item, replicas_of(item) - part)
            taken += part
    return taken


def empty_old(draft: Draft) -> bool:
    """Take all Pods of the old ReplicaSets; whether there were any."""
    found = active(draft.old)
    for item in found:
        draft.scale(item, 0)
    return bool(found)
