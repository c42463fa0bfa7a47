"""DaemonSets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.pod_warnings import workload_warnings
from dray.api.validation.apps_v1 import validate_daemon_set, validate_daemon_set_status, validate_daemon_set_update
from dray.apiserver.registry.columns import AGE, NAME, TEMPLATE_COLUMNS, status_number
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    WriteContext,
    carry_generation,
    restore,
    restore_metadata,
    spec_changed,
    start_generation,
)

_COUNTS: Final = (
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
)


class DaemonSetStrategy(Strategy):
    """Strategy of DaemonSets; users own the spec, the controller the status."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status."""
        obj["status"] = dict.fromkeys(_COUNTS, 0)
        start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec."""
        return validate_daemon_set(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status."""
        restore(obj, old, "status")
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the spec; the selector is immutable."""
        return validate_daemon_set_update(obj, old)

    def warnings(self, obj: Document, old: Document | None, context: WriteContext) -> Sequence[str]:
        """Warn of what is probably not meant."""
        return workload_warnings(obj, old, names_pods=False)


class DaemonSetStatusStrategy(Strategy):
    """Strategy of the status."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the spec."""
        restore(obj, old, "spec")
        restore_metadata(obj, old, "generation")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the counts."""
        return validate_daemon_set_status(obj)


def _number(field: str) -> Callable[[Document, datetime], int]:
    return lambda daemon_set, now: status_number(daemon_set, field)


def _node_selector(daemon_set: Document, now: datetime) -> str:
    template = (daemon_set.get("spec") or {}).get("template") or {}
    selector = (template.get("spec") or {}).get("nodeSelector") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items())) or "<none>"


DAEMON_SETS: Final = ResourceDefinition(
    group="apps",
    resource="daemonsets",
    singular="daemonset",
    kind="DaemonSet",
    namespaced=True,
    versions=("v1",),
    storage_version="v1",
    strategy=DaemonSetStrategy(),
    status_strategy=DaemonSetStatusStrategy(),
    short_names=("ds",),
    categories=("all",),
    columns=(
        NAME,
        Column("Desired", "integer", "Nodes that should run the pod.", _number("desiredNumberScheduled")),
        Column("Current", "integer", "Nodes that run the pod.", _number("currentNumberScheduled")),
        Column("Ready", "integer", "Nodes whose pod is ready.", _number("numberReady")),
        Column("Up-to-date", "integer", "Nodes with the current template.", _number("updatedNumberScheduled")),
        Column("Available", "integer", "Nodes whose pod has been ready long enough.", _number("numberAvailable")),
        Column("Node Selector", "string", "The labels of eligible nodes.", _node_selector),
        AGE,
        *TEMPLATE_COLUMNS,
    ),
)

DEFINITIONS: Final = (DAEMON_SETS,)
