"""Reads the scheduler's configuration file, and finds the plugins of installed packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

import yaml

from dray.scheduler.config import ConfigError, ProfileConfig, SchedulerConfig, parse_config
from dray.scheduler.handle import PluginFactory
from dray.scheduler.named_profiles import NAMED_PROFILES, SPREAD
from dray.scheduler.registry import BUILT_IN

# An entry point has the plugin's name; its object is a `PluginFactory`.
ENTRY_POINT_GROUP: Final = "dray.scheduler.plugins"


def read_config(path: str, profile: str = SPREAD) -> SchedulerConfig:
    """Return the configuration in the file; one with the named profile if the path is empty."""
    if not path:
        return SchedulerConfig(profiles=(NAMED_PROFILES[profile],))
    if profile != SPREAD:
        raise ConfigError(f"{path}: the profile {profile} cannot be combined with a configuration file")
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    try:
        return parse_config(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def profile_named(text: str) -> ProfileConfig:
    """Return a profile by its name, or the first one of the configuration in a file."""
    return NAMED_PROFILES[text] if text in NAMED_PROFILES else read_config(text).profiles[0]


@cache
def installed_factories() -> Mapping[str, PluginFactory]:
    """Return what `find_factories` finds; whatever runs or evaluates a scheduler takes its plugins from here."""
    return find_factories()


def find_factories(found: Iterable[EntryPoint] | None = None) -> Mapping[str, PluginFactory]:
    """Return the built-in plugins and those of installed packages, which must have other names."""
    factories = dict(BUILT_IN)
    for entry in entry_points(group=ENTRY_POINT_GROUP) if found is None else found:
        if entry.name in factories:
            raise ConfigError(f'plugin "{entry.name}" of {entry.value}: there is one of this name already')
        factories[entry.name] = entry.load()
    return factories
