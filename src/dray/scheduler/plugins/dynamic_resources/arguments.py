"""The plugin's arguments: DynamicResourcesArgs of kubescheduler.config.k8s.io/v1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dray.allocator.device_policy import DEVICE_POLICIES, FIRST
from dray.api.features import FeatureGates
from dray.api.timestamps import TimeFormatError, parse_duration

_META: Final = frozenset({"apiVersion", "kind"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """The timeouts of the plugin, and which of several devices it takes."""

    # For one node; 0 means no limit.
    filter_timeout_seconds: float = 10.0
    # From the allocation until all binding conditions are true.
    binding_timeout_seconds: float = 600.0
    # One of DEVICE_POLICIES; Dray's own.
    device_policy: str = FIRST


def read_arguments(given: Mapping[str, Any], gates: FeatureGates) -> Arguments:
    """Read `pluginConfig` args; raises `ValueError` naming what is wrong."""
    unknown = sorted(given.keys() - _META - {"filterTimeout", "bindingTimeout", "devicePolicy"})
    if unknown:
        raise ValueError(f"{unknown[0]}: not supported")
    defaults = Arguments()
    filter_timeout = _seconds(given, "filterTimeout", defaults.filter_timeout_seconds)
    if not gates.enabled("DRASchedulerFilterTimeout"):
        filter_timeout = 0.0
    binding_timeout = _seconds(given, "bindingTimeout", defaults.binding_timeout_seconds)
    if binding_timeout < 1:
        raise ValueError(f'bindingTimeout: Invalid value: "{given["bindingTimeout"]}": must be at least 1 second')
    policy = given.get("devicePolicy") or FIRST
    if policy not in DEVICE_POLICIES:
        listed = ", ".join(f'"{item}"' for item in DEVICE_POLICIES)
        raise ValueError(f'devicePolicy: Unsupported value: "{policy}": supported values: {listed}')
    return Arguments(filter_timeout, binding_timeout, policy)


def _seconds(given: Mapping[str, Any], name: str, default: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    try:
        seconds = parse_duration(str(text)).total_seconds()
    except TimeFormatError as error:
        raise ValueError(f"{name}: {error}") from error
    if seconds < 0:
        raise ValueError(f'{name}: Invalid value: "{text}": must be zero or positive')
    return seconds
