"""The PostFilter chain: what plugins do for a Pod that fits nowhere."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from dray.api.types.scheduling_v1beta1 import PodGroup
from dray.framework.cycle_state import CycleState
from dray.framework.plugins import POST_FILTER
from dray.framework.status import Code, Status
from dray.scheduler.group_cycle import GroupOutcome
from dray.scheduler.profile import Profile

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PostFilterOutcome:
    """What the plugins achieved."""

    message: str = ""
    # The new nominated node; empty clears the nomination, None leaves it as it is.
    nominated: str | None = None
    # Whether the attempt failed, so that the Pod is retried after a backoff.
    is_error: bool = False


async def run_post_filter(profile: Profile, state: CycleState, statuses: Mapping[str, Status]) -> PostFilterOutcome:
    """Run the plugins in order until one ends the chain.

    Success and UnschedulableAndUnresolvable end it; Unschedulable lets the next plugin try. Of several results the last
    one counts. The message of a Success is its own, that of a rejection has the reasons of all plugins that ran.
    """
    reasons: list[str] = []
    nominated: str | None = None
    for plugin in profile.at(POST_FILTER):
        try:
            result, status = await plugin.post_filter(state, state.pod_info.pod, statuses)
        except Exception as error:  # noqa: BLE001 - the failure of one Pod must not stop the others
            _log.exception("PostFilter plugin %s", plugin.name)
            return PostFilterOutcome(f"{type(error).__name__}: {error}", is_error=True)
        if result is not None:
            nominated = result.nominated_node_name
        if status.is_success:
            return PostFilterOutcome(status.message, nominated)
        if not status.is_rejected:
            return PostFilterOutcome(status.message, is_error=True)
        reasons.extend(status.reasons)
        if status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            break
    return PostFilterOutcome(", ".join(reasons), nominated)


@dataclass(frozen=True, slots=True)
class GroupPostFilterOutcome:
    """What the plugins achieved for a group."""

    message: str = ""
    # The nominated nodes of members by uid; members that are missing lose their nomination.
    nominated: Mapping[str, str] | None = None
    is_error: bool = False


async def run_group_post_filter(profile: Profile, group: PodGroup, outcome: GroupOutcome) -> GroupPostFilterOutcome:
    """Run the plugins in order until one ends the chain, as for a Pod."""
    reasons: list[str] = []
    nominated: Mapping[str, str] | None = None
    members = outcome.for_post_filter()
    for plugin in profile.group_post_filters:
        try:
            result, status = await plugin.group_post_filter(group, members, outcome.scheduled)
        except Exception as error:  # noqa: BLE001 - the failure of one group must not stop the others
            _log.exception("PostFilter plugin %s", plugin.name)
            return GroupPostFilterOutcome(f"{type(error).__name__}: {error}", is_error=True)
        if result is not None:
            nominated = result
        if status.is_success:
            return GroupPostFilterOutcome(status.message, nominated)
        if not status.is_rejected:
            return GroupPostFilterOutcome(status.message, is_error=True)
        reasons.extend(status.reasons)
        if status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            break
    return GroupPostFilterOutcome(", ".join(reasons), nominated)
