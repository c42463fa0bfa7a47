"""The plugin's arguments: ClassicResourcesArgs, in the manner of kubescheduler.config.k8s.io/v1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dray.api.timestamps import TimeFormatError, parse_duration

_META: Final = frozenset({"apiVersion", "kind"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """How long things may take."""

    # For a driver to allocate what a Pod can do without; the Pod keeps its place on the node meanwhile.
    optional_timeout_seconds: float = 10.0


def read_arguments(given: Mapping[str, Any]) -> Arguments:
    """Read `pluginConfig` args; raises `ValueError` naming what is wrong."""
    unknown = sorted(given.keys() - _META - {"optionalTimeout"})
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    text = given.get("optionalTimeout")
    if text is None:
        return Arguments()
    try:
        seconds = parse_duration(str(text)).total_seconds()
    except TimeFormatError as error:
        raise ValueError(f"optionalTimeout: {error}") from error
    if seconds < 0:
        raise ValueError("optionalTimeout: must be zero or greater")
    return Arguments(seconds)
