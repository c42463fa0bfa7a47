"""KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1): profiles, plugins with weights, plugin arguments.

A subset: what is not known is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dray.api.document import Document
from dray.api.timestamps import parse_duration
from dray.framework.plugins import EXTENSION_POINTS
from dray.scheduler.profile import DEFAULT_SCHEDULER_NAME
from dray.scheduler.queue import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, Backoff

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
KIND: Final = "KubeSchedulerConfiguration"
MULTI_POINT: Final = "multiPoint"
ALL_PLUGINS: Final = "*"
PERCENTAGE_MAX: Final = 100

_TOP: Final = frozenset(
    {
        "apiVersion",
        "kind",
        "profiles",
        "percentageOfNodesToScore",
        "podInitialBackoffSeconds",
        "podMaxBackoffSeconds",
        "leaderElection",
        # Accepted for compatibility: set by flags of the process, Filter is not parallel, and there are no profiles of
        # the process.
        "clientConnection",
        "parallelism",
        "enableProfiling",
        "enableContentionProfiling",
        # Accepted without a value only.
        "extenders",
        "delayCacheUntilActive",
    }
)
_UNSUPPORTED: Final = ("extenders", "delayCacheUntilActive")
_PROFILE: Final = frozenset({"schedulerName", "plugins", "pluginConfig", "percentageOfNodesToScore"})
_ELECTION: Final = frozenset(
    {
        "leaderElect",
        "leaseDuration",
        "renewDeadline",
        "retryPeriod",
        "resourceLock",
        "resourceName",
        "resourceNamespace",
    }
)
_POINTS: Final = frozenset({*EXTENSION_POINTS, MULTI_POINT})


class ConfigError(ValueError):
    """An invalid configuration; the text names the field."""


@dataclass(frozen=True, slots=True)
class PluginSet:
    """The plugins of one extension point: (name, weight) to enable, names to disable."""

    enabled: tuple[tuple[str, int], ...] = ()
    disabled: frozenset[str] = frozenset()

    def disables(self, name: str) -> bool:
        """Return whether a default plugin is disabled."""
        return name in self.disabled or ALL_PLUGINS in self.disabled


@dataclass(frozen=True, slots=True)
class ProfileConfig:
    """The configuration of one profile."""

    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    multi_point: PluginSet = PluginSet()
    points: Mapping[str, PluginSet] = field(default_factory=dict)
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    percentage_of_nodes_to_score: int = 0


@dataclass(frozen=True, slots=True)
class LeaderElectionConfig:
    """The Lease that the scheduler holds while it runs; the defaults are those of kube-scheduler."""

    enabled: bool = True
    namespace: str = "kube-system"
    name: str = "kube-scheduler"
    lease_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The whole configuration."""

    profiles: tuple[ProfileConfig, ...] = (ProfileConfig(),)
    backoff: Backoff = field(default_factory=Backoff)
    leader_election: LeaderElectionConfig = LeaderElectionConfig()


def parse_config(document: Document) -> SchedulerConfig:
    """Read a configuration document; raises `ConfigError`."""
    _check_keys(document, _TOP, "")
    if document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        raise ConfigError(f"must be {KIND} of {API_VERSION}")
    for name in _UNSUPPORTED:
        if document.get(name):
            raise ConfigError(f"{name}: not supported")
    percentage = _percentage(document.get("percentageOfNodesToScore"), "percentageOfNodesToScore")
    first = document.get("podInitialBackoffSeconds") or BACKOFF_FIRST_SECONDS
    longest = document.get("podMaxBackoffSeconds") or BACKOFF_MAX_SECONDS
    if not 0 < first <= longest:
        raise ConfigError("podInitialBackoffSeconds: must be greater than 0 and not above podMaxBackoffSeconds")
    listed = document.get("profiles") or [{}]
    profiles = tuple(_profile(item, f"profiles[{index}]", percentage) for index, item in enumerate(listed))
    names = [profile.scheduler_name for profile in profiles]
    if len(set(names)) < len(names):
        raise ConfigError("profiles: every schedulerName may occur once")
    election = _leader_election(document.get("leaderElection") or {}, "leaderElection")
    return SchedulerConfig(profiles, Backoff(float(first), float(longest)), election)


def _leader_election(item: Document, path: str) -> LeaderElectionConfig:
    _check_keys(item, _ELECTION, path)
    if item.get("resourceLock") not in (None, "", "leases"):
        raise ConfigError(f'{path}.resourceLock: must be "leases"')
    enabled = item.get("leaderElect", True)
    if not isinstance(enabled, bool):
        raise ConfigError(f"{path}.leaderElect: must be true or false")
    standard = LeaderElectionConfig()
    return LeaderElectionConfig(
        enabled,
        _text(item, "resourceNamespace", path) or standard.namespace,
        _text(item, "resourceName", path) or standard.name,
        _seconds(item, "leaseDuration", path) or standard.lease_seconds,
        _seconds(item, "renewDeadline", path) or standard.renew_deadline_seconds,
        _seconds(item, "retryPeriod", path) or standard.retry_seconds,
    )


def _text(item: Document, name: str, path: str) -> str:
    value = item.get(name) or ""
    if not isinstance(value, str):
        raise ConfigError(f"{path}.{name}: must be a string")
    return value


def _seconds(item: Document, name: str, path: str) -> float:
    """Return a duration; 0 if it is absent or zero, which means the default."""
    value = _text(item, name, path)
    try:
        seconds = parse_duration(value).total_seconds() if value else 0.0
    except ValueError as error:
        raise ConfigError(f'{path}.{name}: must be a duration such as "15s"') from error
    if seconds < 0:
        raise ConfigError(f"{path}.{name}: must not be negative")
    return seconds


def _profile(item: Document, path: str, percentage: int) -> ProfileConfig:
    _check_keys(item, _PROFILE, path)
    plugins: Document = item.get("plugins") or {}
    _check_keys(plugins, _POINTS, f"{path}.plugins")
    sets = {point: _plugin_set(value or {}, f"{path}.plugins.{point}") for point, value in plugins.items()}
    own = _percentage(item.get("percentageOfNodesToScore"), f"{path}.percentageOfNodesToScore")
    return ProfileConfig(
        item.get("schedulerName") or DEFAULT_SCHEDULER_NAME,
        sets.pop(MULTI_POINT, PluginSet()),
        sets,
        _plugin_args(item.get("pluginConfig") or (), f"{path}.pluginConfig"),
        own or percentage,
    )


def _plugin_set(item: Document, path: str) -> PluginSet:
    _check_keys(item, frozenset({"enabled", "disabled"}), path)
    for entry in (*(item.get("enabled") or ()), *(item.get("disabled") or ())):
        _check_keys(entry, frozenset({"name", "weight"}), path)
    enabled = tuple((_name(entry, path), int(entry.get("weight") or 0)) for entry in item.get("enabled") or ())
    return PluginSet(enabled, frozenset(_name(entry, path) for entry in item.get("disabled") or ()))


def _plugin_args(entries: Sequence[Document], path: str) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        name = _name(entry, path)
        if name in found:
            raise ConfigError(f'{path}: repeated config for plugin "{name}"')
        args = entry.get("args") or {}
        found[name] = {key: value for key, value in args.items() if key not in ("apiVersion", "kind")}
    return found


def _name(entry: Document, path: str) -> str:
    name = entry.get("name")
    if not name:
        raise ConfigError(f"{path}: every entry needs a name")
    return str(name)


def _percentage(value: Any, path: str) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or not 0 <= value <= PERCENTAGE_MAX:
        raise ConfigError(f"{path}: must be a number from 0 to {PERCENTAGE_MAX}")
    return value


def _check_keys(document: Any, known: frozenset[str], path: str) -> None:
    if not isinstance(document, dict):
        raise ConfigError(f"{path or 'configuration'}: must be a map")
    for key in document:
        if key not in known:
            field_path = f"{path}.{key}" if path else str(key)
            raise ConfigError(f"{field_path}: not supported")
