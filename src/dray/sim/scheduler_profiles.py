"""The profiles of a cluster's schedulers: those of a KubeSchedulerConfiguration in the snapshot, or the default.

What of the configuration is not built is left out, and is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dray.api.document import Document
from dray.framework.plugins import EXTENSION_POINTS
from dray.scheduler.config import MULTI_POINT, ConfigError, ProfileConfig, parse_config
from dray.sim.notes import DEFAULT_SCHEDULER_NAME, EvaluatedProfiles
from dray.sim.replica.plugins import known_plugins
from dray.sim.snapshot import SCHEDULER_CONFIGURATION, Snapshot, SnapshotError

_POINTS: Final = frozenset({*EXTENSION_POINTS, MULTI_POINT})
# Placements do not depend on it.
_IGNORED: Final = "delayCacheUntilActive"


def profiles_of(snapshot: Snapshot) -> tuple[ProfileConfig, ...]:
    """Return profiles for all schedulers of the snapshot; those that are not configured are like the default one."""
    configured = {profile.scheduler_name: profile for profile in configured_profiles(snapshot)}
    usual = default_profile(snapshot)
    default = usual.scheduler_name
    names = {pod.spec.scheduler_name or default for pod in snapshot.pods} | {default, *configured}
    return tuple(configured.get(name) or replace(usual, scheduler_name=name) for name in sorted(names))


def default_profile(snapshot: Snapshot) -> ProfileConfig:
    """Return the profile of the default scheduler."""
    found = (item for item in configured_profiles(snapshot) if item.scheduler_name == DEFAULT_SCHEDULER_NAME)
    return next(found, ProfileConfig())


def configured_profiles(snapshot: Snapshot) -> tuple[ProfileConfig, ...]:
    """Return the profiles of the configuration, as far as they are built; none without one."""
    found: list[ProfileConfig] = []
    for document in snapshot.documents.get(SCHEDULER_CONFIGURATION, ()):
        try:
            found += parse_config(_built_part(document)).profiles
        except ConfigError as error:
            raise SnapshotError(f"{SCHEDULER_CONFIGURATION}: {error}") from error
    return tuple(found)


def evaluated_profiles(snapshot: Snapshot) -> EvaluatedProfiles:
    """Return whose Pods are evaluated with their own profile, and what of the configuration is not evaluated."""
    names = {profile.scheduler_name for profile in configured_profiles(snapshot)}
    return EvaluatedProfiles(frozenset(names | {DEFAULT_SCHEDULER_NAME}), configuration_notes(snapshot))


def configuration_notes(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what of the configuration is not evaluated."""
    return tuple(
        f"{SCHEDULER_CONFIGURATION}: {text}"
        for document in snapshot.documents.get(SCHEDULER_CONFIGURATION, ())
        for text in dict.fromkeys(_notes(document))
    )


def _notes(document: Document) -> Iterator[str]:
    for extender in _maps(document.get("extenders")):
        yield f"the extender {extender.get('urlPrefix') or ''} is not asked"
    for profile in _maps(document.get("profiles")):
        for point, chosen in _sets(profile):
            if point not in _POINTS:
                yield f"the extension point {point} is not evaluated"
            for entry in _maps(chosen.get("enabled")):
                if _is_unknown(entry):
                    yield f"the plugin {entry.get('name')} is not evaluated"


def _built_part(document: Document) -> Document:
    """Return the configuration without extenders, and without plugins and extension points that are not known."""
    kept = {name: value for name, value in document.items() if name not in ("metadata", "extenders", _IGNORED)}
    if isinstance(document.get("profiles"), list):
        kept["profiles"] = [_built_profile(item) if isinstance(item, dict) else item for item in document["profiles"]]
    return kept


def _built_profile(profile: Document) -> Document:
    found = dict(profile)
    if isinstance(profile.get("plugins"), dict):
        plugins = {name: value for name, value in profile["plugins"].items() if name in _POINTS}
        found["plugins"] = plugins | {point: _built_set(value) for point, value in _sets(profile) if point in _POINTS}
    if isinstance(profile.get("pluginConfig"), list):
        found["pluginConfig"] = [item for item in profile["pluginConfig"] if not _is_unknown(item)]
    return found


def _built_set(chosen: Mapping[str, Any]) -> Document:
    enabled = chosen.get("enabled")
    if not isinstance(enabled, list):
        return dict(chosen)
    return {**chosen, "enabled": [item for item in enabled if not _is_unknown(item)]}


def _sets(profile: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    plugins = profile.get("plugins")
    items = plugins.items() if isinstance(plugins, dict) else ()
    return [(point, chosen) for point, chosen in items if isinstance(chosen, dict)]


def _is_unknown(entry: Any) -> bool:
    name = entry.get("name") if isinstance(entry, dict) else None
    return isinstance(name, str) and bool(name) and name not in known_plugins()


def _maps(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else ()
