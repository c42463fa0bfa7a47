"""Fields that workloads share: a template with its selector, and integers or percentages."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, required
from dray.api.limits import INTEGER_DIGITS_MAX
from dray.api.names import pattern_message
from dray.api.selectors import LabelSelector, SelectorError
from dray.api.validation.core_v1_pod import validate_template
from dray.api.validation.meta_v1 import NOT_NEGATIVE, validate_label_selector

SPEC: Final = Path("spec")
MISMATCH: Final = "`selector` does not match template `labels`"
_PERCENT_PATTERN: Final = "[0-9]+%"
_matches_percent: Final = re.compile(_PERCENT_PATTERN, re.ASCII).fullmatch
_BAD_PERCENT: Final = pattern_message(
    "a valid percent string must be a numeric string followed by an ending '%'", _PERCENT_PATTERN, "1%", "93%"
)
_WHOLE: Final = 100


def not_negative(document: Document, path: Path, *fields: str) -> FieldErrors:
    """Validate that the numbers are not negative, if set."""
    return [
        invalid(path.child(field), document[field], NOT_NEGATIVE) for field in fields if (document.get(field) or 0) < 0
    ]


def template_labels(spec: Document) -> dict[str, str]:
    """Return the labels of the workload's pods."""
    return ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}


def validate_selected_template(spec: Document, path: Path, *, empty_text: str) -> FieldErrors:
    """Validate a selector that is set, not empty, and matches the template."""
    selector = spec.get("selector")
    template_path = path.child("template")
    if selector is None:
        return [required(path.child("selector")), *validate_template(spec.get("template"), template_path)]
    errors = validate_label_selector(selector, path.child("selector"))
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(invalid(path.child("selector"), selector, empty_text))
    errors += _validate_match(selector, spec, path)
    return errors + validate_template(spec.get("template"), template_path)


def _validate_match(selector: Document, spec: Document, path: Path) -> FieldErrors:
    if spec.get("template") is None:
        return []
    try:
        parsed = LabelSelector.from_document(selector)
    except SelectorError:
        return [invalid(path.child("selector"), selector, "invalid label selector")]
    labels = template_labels(spec)
    if parsed.is_everything or parsed.matches(labels):
        return []
    return [invalid(path.child("template", "metadata", "labels"), labels, MISMATCH)]


def validate_int_or_percent(value: Any, path: Path) -> FieldErrors:
    """Validate an integer or a percentage."""
    if isinstance(value, str):
        return [] if _matches_percent(value) else [invalid(path, value, _BAD_PERCENT)]
    return [invalid(path, value, NOT_NEGATIVE)] if value < 0 else []


def validate_at_most_whole(value: Any, path: Path) -> FieldErrors:
    """Validate that a percentage is at most 100%."""
    share = percent(value)
    return [invalid(path, value, "must not be greater than 100%")] if share is not None and share > _WHOLE else []


def percent(value: Any) -> int | None:
    """Return the number before the percent sign, None for integers and other text."""
    if not isinstance(value, str) or not _matches_percent(value):
        return None
    # Beyond what is converted, any number is far more than all.
    return int(value[:-1]) if len(value) <= INTEGER_DIGITS_MAX else sys.maxsize


def is_zero(value: Any) -> bool:
    """Report whether an integer or percentage is zero."""
    return percent(value) == 0 if isinstance(value, str) else value == 0
