"""The status of a definition: accepted names and conditions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dray.api.document import Document

FINALIZER: Final = "customresourcecleanup.apiextensions.k8s.io"
NAMES_ACCEPTED: Final = "NamesAccepted"
ESTABLISHED: Final = "Established"
TERMINATING: Final = "Terminating"
# Of earlier releases, which did not call conversion webhooks.
_CONVERTIBLE: Final = "Convertible"


def condition(kind: str, status: str, reason: str, message: str) -> Document:
    """Return a condition without its time."""
    return {"type": kind, "status": status, "reason": reason, "message": message}


NO_CONFLICTS: Final = condition(NAMES_ACCEPTED, "True", "NoConflicts", "no conflicts found")
_INSTALLED: Final = condition(ESTABLISHED, "True", "InitialNamesAccepted", "the initial names have been accepted")
_NOT_ACCEPTED: Final = condition(ESTABLISHED, "False", "NotAccepted", "not all names are accepted")
DELETION_PENDING: Final = condition(
    TERMINATING,
    "True",
    "InstanceDeletionPending",
    "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
)
DELETION_IN_PROGRESS: Final = condition(
    TERMINATING, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress"
)


def needs_webhook(definition: Document) -> bool:
    """Return whether objects are converted between several versions by a webhook."""
    spec = definition["spec"]
    return len(spec["versions"]) > 1 and (spec.get("conversion") or {}).get("strategy") == "Webhook"


def is_true(definition: Document, kind: str) -> bool:
    """Report whether a condition is true."""
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == kind and item.get("status") == "True" for item in conditions)


def set_condition(status: Document, wanted: Document, now: str) -> None:
    """Set a condition in place; its time is that of the last transition."""
    conditions: list[Document] = list(status.get("conditions") or ())
    for position, item in enumerate(conditions):
        if item.get("type") == wanted["type"]:
            if any(item.get(name) != value for name, value in wanted.items()):
                since = item.get("lastTransitionTime", now) if item.get("status") == wanted["status"] else now
                conditions[position] = _timed(wanted, since)
            break
    else:
        conditions.append(_timed(wanted, now))
    status["conditions"] = conditions


def _timed(wanted: Document, since: str) -> Document:
    return {
        "type": wanted["type"],
        "status": wanted["status"],
        "lastTransitionTime": since,
        "reason": wanted["reason"],
        "message": wanted["message"],
    }


class _Names:
    """Compares wanted names with those of other definitions in the group."""

    def __init__(self, definition: Document, others: Iterable[Document]) -> None:
        self._accepted: Mapping[str, object] = (definition.get("status") or {}).get("acceptedNames") or {}
        self._resources: set[str] = set()
        self._kinds: set[str] = set()
        for other in others:
            names = (other.get("status") or {}).get("acceptedNames") or {}
            self._resources.update((names.get("plural") or "", names.get("singular") or ""))
            self._resources.update(names.get("shortNames") or ())
            self._kinds.update((names.get("kind") or "", names.get("listKind") or ""))

    def problem(self, field: str, name: str) -> str:
        """Return the reason why the name is not available, or the empty text."""
        taken = self._kinds if field in ("kind", "listKind") else self._resources
        if not name or name == self._accepted.get(field) or name not in taken:
            return ""
        return f'"{name}" is already in use'

    def short_name_problem(self, name: str) -> str:
        """Return the reason for one of several short names."""
        known = self._accepted.get("shortNames") or ()
        if isinstance(known, list) and name in known:
            return ""
        return f'"{name}" is already in use' if name in self._resources else ""


_FIELDS: Final = (
    ("plural", "PluralConflict"),
    ("singular", "SingularConflict"),
    ("shortNames", "ShortNamesConflict"),
    ("kind", "KindConflict"),
    ("listKind", "ListKindConflict"),
)


def plan_names(definition: Document, others: Iterable[Document]) -> tuple[Document, Document]:
    """Return the accepted names and the NamesAccepted condition, given the other definitions of the group."""
    wanted = definition["spec"]["names"]
    names = _Names(definition, others)
    accepted = dict((definition.get("status") or {}).get("acceptedNames") or {})
    result = NO_CONFLICTS
    for field, reason in _FIELDS:
        problem = _problem(names, field, wanted)
        if problem:
            result = condition(NAMES_ACCEPTED, "False", reason, problem)
        else:
            _copy(accepted, wanted, field)
    _copy(accepted, wanted, "categories")
    return accepted, result


def _problem(names: _Names, field: str, wanted: Document) -> str:
    if field != "shortNames":
        return names.problem(field, wanted.get(field) or "")
    problems = [problem for name in wanted.get(field) or () if (problem := names.short_name_problem(name))]
    return problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]" if problems else ""


def _copy(accepted: Document, wanted: Document, field: str) -> None:
    if wanted.get(field):
        accepted[field] = wanted[field]
    else:
        accepted.pop(field, None)


def plan_status(definition: Document, others: Iterable[Document], now: str) -> Document:
    """Return the status that the definition should have."""
    status: Document = dict(definition.get("status") or {})
    accepted, result = plan_names(definition, others)
    status["acceptedNames"] = accepted
    set_condition(status, result, now)
    if not is_true(definition, ESTABLISHED):
        set_condition(status, _INSTALLED if result is NO_CONFLICTS else _NOT_ACCEPTED, now)
    status["conditions"] = [item for item in status["conditions"] if item.get("type") != _CONVERTIBLE]
    return status


def is_served(definition: Document, others: Callable[[], Iterable[Document]]) -> bool:
    """Report whether the definition's objects are served: it is established, or about to be."""
    return is_true(definition, ESTABLISHED) or plan_names(definition, others())[1] is NO_CONFLICTS
