"""The built-in plugins, the default ones, and the construction of profiles from their configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dray.framework.plugins import BIND, EXTENSION_POINTS, QUEUE_SORT, SCORE, ExtensionPoint, Plugin
from dray.scheduler.config import ConfigError, PluginSet, ProfileConfig
from dray.scheduler.handle import Handle, PluginFactory
from dray.scheduler.plugins.arguments import Arguments
from dray.scheduler.plugins.balanced_allocation import BalancedAllocation
from dray.scheduler.plugins.classic_resources.plugin import make_classic_resources
from dray.scheduler.plugins.default_binder import DefaultBinder
from dray.scheduler.plugins.default_preemption import DefaultPreemption
from dray.scheduler.plugins.device_fragmentation import DeviceFragmentation
from dray.scheduler.plugins.dynamic_resources.plugin import make_dynamic_resources
from dray.scheduler.plugins.gang_scheduling import make_gang_scheduling
from dray.scheduler.plugins.image_locality import ImageLocality
from dray.scheduler.plugins.inter_pod_affinity.plugin import InterPodAffinity
from dray.scheduler.plugins.node_affinity import NodeAffinity
from dray.scheduler.plugins.node_declared_features import NodeDeclaredFeatures
from dray.scheduler.plugins.node_name import NodeName
from dray.scheduler.plugins.node_ports import NodePorts
from dray.scheduler.plugins.node_resources_fit import NodeResourcesFit
from dray.scheduler.plugins.node_unschedulable import NodeUnschedulable
from dray.scheduler.plugins.optional_claims import OptionalClaims
from dray.scheduler.plugins.pod_topology_spread.plugin import PodTopologySpread
from dray.scheduler.plugins.queueing import PrioritySort, SchedulingGates
from dray.scheduler.plugins.taint_toleration import TaintToleration
from dray.scheduler.plugins.volume_binding import VolumeBinding
from dray.scheduler.plugins.volume_restrictions import VolumeRestrictions
from dray.scheduler.profile import Profile


def _plain(make: Callable[[Handle], Plugin]) -> PluginFactory:
    """Return the factory of a plugin without arguments."""

    def factory(args: Mapping[str, Any], handle: Handle) -> Plugin:
        Arguments(args).end()
        return make(handle)

    return factory


BUILT_IN: Final[Mapping[str, PluginFactory]] = {
    "SchedulingGates": _plain(lambda _handle: SchedulingGates()),
    "PrioritySort": _plain(lambda _handle: PrioritySort()),
    "NodeUnschedulable": _plain(NodeUnschedulable),
    "NodeName": _plain(lambda _handle: NodeName()),
    "TaintToleration": _plain(TaintToleration),
    "NodeAffinity": NodeAffinity,
    "NodePorts": _plain(lambda _handle: NodePorts()),
    "NodeResourcesFit": NodeResourcesFit,
    "VolumeRestrictions": _plain(VolumeRestrictions),
    "VolumeBinding": VolumeBinding,
    "PodTopologySpread": PodTopologySpread,
    "InterPodAffinity": InterPodAffinity,
    "ClassicResources": make_classic_resources,
    "DynamicResources": make_dynamic_resources,
    "OptionalClaims": _plain(lambda _handle: OptionalClaims()),
    "DefaultPreemption": DefaultPreemption,
    "NodeResourcesBalancedAllocation": BalancedAllocation,
    "ImageLocality": _plain(ImageLocality),
    "DefaultBinder": _plain(DefaultBinder),
    "GangScheduling": make_gang_scheduling,
    "NodeDeclaredFeatures": _plain(lambda _handle: NodeDeclaredFeatures()),
    # Not among the defaults.
    "DeviceFragmentation": _plain(DeviceFragmentation),
}

# Kubernetes' order and weights; filters run in this order, and the first rejection is reported.
DEFAULT_PLUGINS: Final[tuple[tuple[str, int], ...]] = (
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeName", 0),
    ("NodeUnschedulable", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("VolumeRestrictions", 0),
    ("VolumeBinding", 0),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    # Scores only Pods with unallocated claims.
    ("ClassicResources", 5),
    ("DynamicResources", 2),
    # Getting the requested claims outweighs everything else.
    ("OptionalClaims", 20),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
    ("NodeDeclaredFeatures", 0),
    ("GangScheduling", 0),
)


def make_profiles(
    configs: Sequence[ProfileConfig], factories: Mapping[str, PluginFactory], handle: Handle
) -> dict[str, Profile]:
    """Return the profiles by schedulerName; raises `ConfigError`."""
    profiles = {config.scheduler_name: make_profile(config, factories, handle) for config in configs}
    first = profiles[configs[0].scheduler_name].queue_sort_name
    for name, profile in profiles.items():
        if profile.queue_sort_name != first:
            text = f'different queue sort plugins for profile "{name}": "{profile.queue_sort_name}", first: "{first}"'
            raise ConfigError(text)
    return profiles


def make_profile(config: ProfileConfig, factories: Mapping[str, PluginFactory], handle: Handle) -> Profile:
    """Return a profile: the defaults, changed by the configuration."""
    multi_point = _merged(tuple(item for item in DEFAULT_PLUGINS if item[0] in factories), config.multi_point)
    names = [name for name, _ in multi_point]
    names += [name for point in config.points.values() for name, _ in point.enabled]
    plugins = _make_plugins(names, config, factories, handle)
    weights = dict(multi_point)
    points: dict[str, list[Plugin]] = {}
    for point in EXTENSION_POINTS.values():
        chosen = config.points.get(point.name, PluginSet())
        points[point.name] = [plugins[name] for name in _names_of_point(point, multi_point, chosen, plugins)]
        if point is SCORE:
            weights |= {name: weight for name, weight in chosen.enabled if weight}
    _check_points(points, config.scheduler_name)
    positive = {name: weight or 1 for name, weight in weights.items()}
    return Profile(config.scheduler_name, points, positive, config.percentage_of_nodes_to_score)


def _merged(defaults: tuple[tuple[str, int], ...], chosen: PluginSet) -> tuple[tuple[str, int], ...]:
    """Return the enabled defaults with configured weights, and the added plugins."""
    given = dict(chosen.enabled)
    stays = [(name, given.get(name) or weight) for name, weight in defaults if not chosen.disables(name)]
    known = {name for name, _ in stays}
    return (*stays, *((name, weight) for name, weight in chosen.enabled if name not in known))


def _make_plugins(
    names: Sequence[str], config: ProfileConfig, factories: Mapping[str, PluginFactory], handle: Handle
) -> dict[str, Plugin]:
    plugins: dict[str, Plugin] = {}
    for name in dict.fromkeys(names):
        factory = factories.get(name)
        if factory is None:
            text = f"creating profile for scheduler name {config.scheduler_name}"
            raise ConfigError(f'{text}: plugin "{name}" does not exist')
        try:
            plugins[name] = factory(config.args.get(name, {}), handle)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(_argument_errors(name, config, error)) from error
    for name in config.args:
        if name not in factories:
            at = config.args_paths.get(name, "pluginConfig").removesuffix(".args")
            raise ConfigError(f'{at}.name: Invalid value: "{name}": no such plugin')
    return plugins


def _argument_errors(name: str, config: ProfileConfig, error: Exception) -> str:
    """Return what is wrong with the arguments of a plugin; several errors as kube-scheduler lists them."""
    path = config.args_paths.get(name)
    if path is None:
        return f'creating profile for scheduler name {config.scheduler_name}: initializing plugin "{name}": {error}'
    found = [f"{path}.{text}" for text in error.args]
    return found[0] if len(found) == 1 else f"[{', '.join(found)}]"


def _names_of_point(
    point: ExtensionPoint[Any], multi_point: Sequence[tuple[str, int]], chosen: PluginSet, plugins: Mapping[str, Plugin]
) -> list[str]:
    """Return the names in Kubernetes' order: reordered defaults, other defaults, additions of the point."""
    listed = [name for name, _ in chosen.enabled]
    for name in listed:
        if not point.has(plugins[name]):
            raise ConfigError(f'plugin "{name}" does not extend {point.name} plugin')
    general = [name for name, _ in multi_point if point.has(plugins[name])]
    general = [name for name in general if name in listed or not chosen.disables(name)]
    reordered = [name for name in listed if name in general]
    return [
        *reordered,
        *(name for name in general if name not in reordered),
        *(name for name in listed if name not in general),
    ]


def _check_points(points: Mapping[str, Sequence[Plugin]], scheduler_name: str) -> None:
    if len(points[QUEUE_SORT.name]) != 1:
        count = f'with scheduler name "{scheduler_name}", but got {len(points[QUEUE_SORT.name])}'
        raise ConfigError(f"only one queue sort plugin required for profile {count}")
    if not points[BIND.name]:
        raise ConfigError(f'at least one bind plugin is needed for profile with scheduler name "{scheduler_name}"')
