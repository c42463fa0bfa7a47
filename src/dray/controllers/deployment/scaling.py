"""Sizes of the ReplicaSets of a Deployment. Pure."""

from __future__ import annotations

from collections.abc import Callable

from dray.api.types.apps_v1 import Deployment, ReplicaSet
from dray.controllers.deployment.revisions import by_age, desired_of, total_max_of
from dray.controllers.deployment.rollout import Rollout
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
    """Return the possible size of the new ReplicaSet, given the others."""
    wanted, current = replicas_of(deployment), replicas_of(new)
    if not is_rolling(deployment):
        return wanted
    surplus = total_max(deployment) - total([*others, new])
    return current if surplus <= 0 else current + min(surplus, wanted - current)


def is_scaling(rollout: Rollout) -> bool:
    """Return whether the Deployment was scaled since its ReplicaSets were."""
    wanted = replicas_of(rollout.deployment)
    return any(desired_of(item) not in (None, wanted) for item in active(rollout.all))


# --- Scaling without rollout. ---


def scale(rollout: Rollout) -> None:
    """Scale the only active ReplicaSet, or all proportionally."""
    wanted = replicas_of(rollout.deployment)
    only = _only_or_latest(rollout)
    if only is not None:
        # Also if the size is correct: without the annotation the Deployment would count as scaling forever.
        rollout.scale(only, wanted)
        return
    if _is_saturated(rollout):
        for item in active(rollout.old):
            rollout.scale(item, 0)
    elif is_rolling(rollout.deployment):
        _scale_in_proportion(rollout)


def _only_or_latest(rollout: Rollout) -> ReplicaSet | None:
    """Return the only active ReplicaSet, or the newest if none is; None if several are."""
    found = active(rollout.all)
    if len(found) > 1:
        return None
    if found:
        return found[0]
    if rollout.new is not None:
        return rollout.new
    return by_age(rollout.old)[-1] if rollout.old else None


def _is_saturated(rollout: Rollout) -> bool:
    wanted, new = replicas_of(rollout.deployment), rollout.new
    if new is None:
        return False
    return replicas_of(new) == desired_of(new) == (new.status.available_replicas or 0) == wanted


def _scale_in_proportion(rollout: Rollout) -> None:
    deployment = rollout.deployment
    allowed = total_max(deployment) if replicas_of(deployment) > 0 else 0
    sets = active(rollout.all)
    change = allowed - total(sets)
    # By size; of equal ones the newest grows first and the oldest shrinks first.
    sets = sorted(by_age(sets)[:: -1 if change > 0 else 1], key=replicas_of, reverse=True)
    shares: list[int] = []
    for item in sets:
        left = change - sum(shares)
        shares.append(_within(_share(deployment, item), left) if left else 0)
    # The largest takes the rounding remainder.
    leftover = change - sum(shares)
    for position, item in enumerate(sets):
        size = replicas_of(item) + shares[position] + (leftover if position == 0 else 0)
        rollout.scale(item, max(size, 0))


def _within(share: int, left: int) -> int:
    return min(share, left) if left > 0 else max(share, left)


def _share(deployment: Deployment, replica_set: ReplicaSet) -> int:
    """Return the proportional change of the ReplicaSet."""
    size = replicas_of(replica_set)
    if replicas_of(deployment) == 0:
        return -size
    before = total_max_of(replica_set) or deployment.status.replicas or size
    # Half is rounded up.
    return (2 * size * total_max(deployment) + before) // (2 * before) - size


# --- Rolling out. ---


def grow_new(rollout: Rollout) -> bool:
    """Scale up the new ReplicaSet as far as the surge allows; return whether it changed."""
    new = rollout.new
    assert new is not None
    wanted = replicas_of(rollout.deployment)
    if replicas_of(new) == wanted:
        return False
    if replicas_of(new) > wanted:
        return rollout.scale(new, wanted)
    return rollout.scale(new, size_for_new(rollout.deployment, rollout.old, new))


def shrink_old(rollout: Rollout) -> bool:
    """Scale down the old ReplicaSets as availability allows, unavailable Pods first; return whether any changed."""
    deployment, new = rollout.deployment, rollout.new
    assert new is not None
    if not active(rollout.old):
        return False
    needed = replicas_of(deployment) - max_unavailable(deployment)
    not_yet = replicas_of(new) - (new.status.available_replicas or 0)
    spare = total(rollout.all) - needed - not_yet
    if spare <= 0:
        return False
    taken = _take(rollout, spare, lambda item: replicas_of(item) - (item.status.available_replicas or 0))
    taken += _take(rollout, total_available(rollout.all) - needed, replicas_of)
    return taken > 0


def _take(rollout: Rollout, count: int, at_most: Callable[[ReplicaSet], int]) -> int:
    """Scale down old ReplicaSets by that many Pods, the oldest first; return the number removed."""
    taken = 0
    for item in by_age(active(rollout.old)):
        part = min(count - taken, at_most(item))
        if part > 0:
            rollout.scale(item, replicas_of(item) - part)
            taken += part
    return taken


def empty_old(rollout: Rollout) -> bool:
    """Scale the old ReplicaSets to zero; return whether any changed."""
    found = active(rollout.old)
    for item in found:
        rollout.scale(item, 0)
    return bool(found)
