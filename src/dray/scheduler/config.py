"""KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1): profiles, plugins with weights, plugin arguments.

A subset: what is not known is refused by name, never ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dray.api.document import Document
from dray.api.timestamps import parse_duration
from dray.framework.plugins import EXTENSION_POINTS
from dray.scheduler.plugins.arguments import Arguments
from dray.scheduler.profile import DEFAULT_SCHEDULER_NAME
from dray.scheduler.queue import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, Backoff

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
KIND: Final = "KubeSchedulerConfiguration"
MULTI_POINT: Final = "multiPoint"
ALL_PLUGINS: Final = "*"
PERCENTAGE_MAX: Final = 100
# Kubernetes' type of weights is int32, so that the sum of all scores is an int64.
WEIGHT_MAX: Final = 2**31 - 1

PARALLELISM: Final = 16
# client-go multiplies the period between attempts by up to this.
JITTER: Final = 1.2
# Extension points of groups; plugins cannot be configured there.
_GROUP_POINTS: Final = frozenset({"placementGenerate", "placementScore", "podGroupPostFilter"})
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
    # Where the arguments of a plugin are in the file, by its name.
    args_paths: Mapping[str, str] = field(default_factory=dict)
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
    try:
        return _config(document)
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, ConfigError) else ConfigError(str(error)) from error


def _config(document: Document) -> SchedulerConfig:
    if not isinstance(document, dict):
        raise ConfigError("configuration: must be a map")
    given = Arguments(document)
    if (given.value("apiVersion"), given.value("kind")) != (API_VERSION, KIND):
        raise ConfigError(f"must be {KIND} of {API_VERSION}")
    percentage = _percentage(given, "")
    backoff = _backoff(given)
    listed = given.items("profiles") or ({},)
    profiles = tuple(_profile(item, f"profiles[{index}]", percentage) for index, item in enumerate(listed))
    election = _leader_election(given.mapping("leaderElection"), "leaderElection")
    _check_without_effect(given)
    given.end()
    names = [profile.scheduler_name for profile in profiles]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f'profiles[{index}].schedulerName: Duplicate value: "{name}"')
    return SchedulerConfig(profiles, backoff, election)


def _check_without_effect(given: Arguments) -> None:
    """Read the fields without an effect: flags configure clients, a cycle uses one core, and nothing is profiled.

    Extenders, and a cache that is filled when the scheduler leads, are accepted only if they are not wanted.
    """
    for name in ("enableProfiling", "enableContentionProfiling"):
        given.boolean(name)
    parallelism = given.integer("parallelism", PARALLELISM, -sys.maxsize, None)
    if parallelism <= 0:
        raise ConfigError(f"parallelism: Invalid value: {parallelism}: should be an integer value greater than zero")
    client = Arguments(given.mapping("clientConnection"), "clientConnection")
    for name in ("kubeconfig", "acceptContentTypes", "contentType"):
        client.text(name)
    client.number("qps")
    burst = client.integer("burst", 0, -sys.maxsize, None)
    if burst < 0:
        raise ConfigError(f"clientConnection.burst: Invalid value: {burst}: must be non-negative")
    client.end()
    if given.items("extenders"):
        raise ConfigError("extenders: not supported")
    if given.boolean("delayCacheUntilActive"):
        raise ConfigError("delayCacheUntilActive: not supported")


def _backoff(given: Arguments) -> Backoff:
    first = given.integer("podInitialBackoffSeconds", int(BACKOFF_FIRST_SECONDS), -sys.maxsize, None)
    longest = given.integer("podMaxBackoffSeconds", int(BACKOFF_MAX_SECONDS), -sys.maxsize, None)
    if first <= 0:
        raise ConfigError(f"podInitialBackoffSeconds: Invalid value: {first}: must be greater than 0")
    if longest < first:
        text = "must be greater than or equal to PodInitialBackoffSeconds"
        raise ConfigError(f"podMaxBackoffSeconds: Invalid value: {longest}: {text}")
    return Backoff(float(first), float(longest))


def _leader_election(item: Mapping[str, Any], path: str) -> LeaderElectionConfig:
    given = Arguments(item, path)
    is_wanted, lock = given.boolean("leaderElect", default=True), given.text("resourceLock")
    if is_wanted and lock not in ("", "leases"):
        raise ConfigError(f'{path}.resourceLock: Invalid value: "{lock}": resourceLock value must be "leases"')
    standard = LeaderElectionConfig()
    found = LeaderElectionConfig(
        is_wanted,
        given.text("resourceNamespace") or standard.namespace,
        given.text("resourceName") or standard.name,
        _seconds(given, "leaseDuration", path) or standard.lease_seconds,
        _seconds(given, "renewDeadline", path) or standard.renew_deadline_seconds,
        _seconds(given, "retryPeriod", path) or standard.retry_seconds,
    )
    given.end()
    if is_wanted and found.lease_seconds <= found.renew_deadline_seconds:
        text = "LeaseDuration must be greater than RenewDeadline"
        raise ConfigError(f'{path}.leaseDuration: Invalid value: "{found.renew_deadline_seconds:g}s": {text}')
    if is_wanted and found.renew_deadline_seconds <= found.retry_seconds * JITTER:
        text = f"renewDeadline must be greater than retryPeriod*JitterFactor ({JITTER})"
        raise ConfigError(f"{path}.renewDeadline: {text}")
    return found


def _seconds(given: Arguments, name: str, path: str) -> float:
    """Return a duration; 0 if it is absent or zero, which means the default."""
    value = given.text(name)
    try:
        seconds = parse_duration(value).total_seconds() if value else 0.0
    except ValueError as error:
        raise ConfigError(f'{path}.{name}: must be a duration such as "15s"') from error
    if seconds < 0:
        raise ConfigError(f'{path}.{name}: Invalid value: "{value}": must be greater than zero')
    return seconds


def _profile(item: Mapping[str, Any], path: str, percentage: int) -> ProfileConfig:
    given = Arguments(item, path)
    plugins = given.mapping("plugins")
    points = Arguments(plugins, f"{path}.plugins")
    sets = {point: _plugin_set(points.mapping(point), f"{path}.plugins.{point}") for point in plugins}
    for name in [name for name in sets if name not in _POINTS]:
        # kube-scheduler writes the points that it has, even if nothing is configured there.
        if name not in _GROUP_POINTS or sets.pop(name) != PluginSet():
            raise ConfigError(f"{path}.plugins.{name}: not supported")
    args = _plugin_args(given.items("pluginConfig"), f"{path}.pluginConfig")
    config = ProfileConfig(
        given.text("schedulerName") or DEFAULT_SCHEDULER_NAME,
        sets.pop(MULTI_POINT, PluginSet()),
        sets,
        {name: found for name, (_, found) in args.items()},
        {name: at for name, (at, _) in args.items()},
        _percentage(given, f"{path}.") or percentage,
    )
    given.end()
    return config


def _plugin_set(item: Mapping[str, Any], path: str) -> PluginSet:
    given = Arguments(item, path)
    enabled = [_plugin(entry, f"{path}.enabled[{i}]") for i, entry in enumerate(given.items("enabled"))]
    disabled = [_plugin(entry, f"{path}.disabled[{i}]") for i, entry in enumerate(given.items("disabled"))]
    given.end()
    names = [name for name, _ in enabled]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(f'{path}.enabled[{index}]: plugin "{name}" already registered')
    return PluginSet(tuple(enabled), frozenset(name for name, _ in disabled))


def _plugin(entry: Mapping[str, Any], path: str) -> tuple[str, int]:
    given = Arguments(entry, path)
    name, weight = given.text("name"), given.integer("weight", 0, 0, WEIGHT_MAX)
    given.end()
    return _required(name, path), weight


def _plugin_args(entries: Sequence[Mapping[str, Any]], path: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the arguments of each plugin with their path."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for index, entry in enumerate(entries):
        at = f"{path}[{index}]"
        given = Arguments(entry, at)
        name, args = _required(given.text("name"), at), given.mapping("args")
        given.end()
        if name in found:
            raise ConfigError(f'{at}: Duplicate value: "{name}"')
        for field_name, wanted in (("apiVersion", API_VERSION), ("kind", f"{name}Args")):
            if args.get(field_name, wanted) != wanted:
                raise ConfigError(
                    f'{at}.args.{field_name}: Unsupported value: "{args[field_name]}": must be "{wanted}"'
                )
        kept = {key: value for key, value in args.items() if key not in ("apiVersion", "kind")}
        found[name] = f"{at}.args", kept
    return found


def _required(name: str, path: str) -> str:
    if not name:
        raise ConfigError(f"{path}.name: Required value")
    return name


def _percentage(given: Arguments, path: str) -> int:
    name = "percentageOfNodesToScore"
    value = given.integer(name, 0, -sys.maxsize, None)
    if not 0 <= value <= PERCENTAGE_MAX:
        raise ConfigError(f"{path}{name}: Invalid value: {value}: not in valid range [0-{PERCENTAGE_MAX}]")
    return value
