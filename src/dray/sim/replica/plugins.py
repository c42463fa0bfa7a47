"""The scheduler's plugins in a replica of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dray.scheduler.handle import PluginFactory
from dray.scheduler.plugins.volume_binding import VolumeBinding, WaitsForClaim
from dray.scheduler.registry import BUILT_IN


def replica_plugins(waits_for_claim: WaitsForClaim | None) -> Mapping[str, PluginFactory]:
    """Return the scheduler's plugins: a replica evaluates what it can, and `notes` has the rest."""
    return {**BUILT_IN, "VolumeBinding": partial(VolumeBinding, lenient=True, waits=waits_for_claim)}
