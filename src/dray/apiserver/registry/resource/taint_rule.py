"""DeviceTaintRules: taints that administrators set on devices."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.timestamps import format_time
from dray.api.validation.resource_slice import validate_taint_rule, validate_taint_rule_status
from dray.apiserver.registry.columns import AGE, NAME, since, text_cell
from dray.apiserver.registry.resource.group import (
    GROUP,
    restore_for_status,
    restore_status,
)
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    WriteContext,
    carry_generation,
    spec_changed,
    start_generation,
)


class TaintRuleStrategy(Strategy):
    """Strategy of taint rules."""

    def prepare_for_create(self, obj: Document, context: WriteContext) -> None:
        """Reset the status, and set the generation."""
        obj["status"] = {}
        start_generation(obj)

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the rule."""
        return validate_taint_rule(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status, reset the taint's time when its effect changed, and increment the generation."""
        restore_status(obj, old)
        taint, old_taint = _taint(obj), _taint(old)
        # `timeAdded` is the start of the effect, from which toleration seconds are counted.
        if taint.get("effect") != old_taint.get("effect") and taint.get("timeAdded") == old_taint.get("timeAdded"):
            taint["timeAdded"] = format_time(context.now)
        carry_generation(obj, old, changed=spec_changed(obj, old))

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the rule; an unchanged effect is ratcheted."""
        return validate_taint_rule(obj, old)


class TaintRuleStatusStrategy(Strategy):
    """Strategy of the status."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore spec and metadata."""
        restore_for_status(obj, old)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the conditions."""
        return validate_taint_rule_status(obj)


def _taint(rule: Document) -> Document:
    taint: Document = (rule.get("spec") or {}).get("taint") or {}
    return taint


def _time_added(rule: Document, now: datetime) -> str:
    return since(_taint(rule).get("timeAdded"), now)


TAINT_RULES: Final = ResourceDefinition(
    group=GROUP,
    resource="devicetaintrules",
    singular="devicetaintrule",
    kind="DeviceTaintRule",
    namespaced=False,
    versions=("v1", "v1beta2", "v1alpha3"),
    # As in Kubernetes, so that an earlier release can read them.
    storage_version="v1beta2",
    conditional_versions=("v1",),
    strategy=TaintRuleStrategy(),
    status_strategy=TaintRuleStatusStrategy(),
    columns=(
        NAME,
        Column("Key", "string", "The key of the taint.", text_cell("spec", "taint", "key")),
        Column("Value", "string", "The value of the taint.", text_cell("spec", "taint", "value")),
        Column("Effect", "string", "The effect of the taint.", text_cell("spec", "taint", "effect")),
        Column("TimeAdded", "string", "The time since the taint was added.", _time_added),
        AGE,
    ),
)
