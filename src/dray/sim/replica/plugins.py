"""The scheduler's plugins in a replica of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from dray.scheduler.config import ConfigError
from dray.scheduler.config_loader import installed_factories
from dray.scheduler.handle import PluginFactory
from dray.scheduler.plugins.volume_binding import VolumeBinding, WaitsForClaim
from dray.sim.snapshot import SnapshotError


def replica_plugins(waits_for_claim: WaitsForClaim | None) -> Mapping[str, PluginFactory]:
    """Return the scheduler's plugins: a replica evaluates what it can, and `notes` has the rest."""
    return {**known_plugins(), "VolumeBinding": partial(VolumeBinding, lenient=True, waits=waits_for_claim)}


def known_plugins() -> Mapping[str, PluginFactory]:
    """Return the built-in plugins, and those of packages that are installed here."""
    try:
        return installed_factories()
    except (ConfigError, ImportError, AttributeError) as error:
        raise SnapshotError(f"cannot load the scheduler plugins that are installed: {error}") from error
