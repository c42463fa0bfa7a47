"""The default roles and bindings as documents, and the writes that reconcile them.

Reconciling only adds: rules, labels and subjects of an administrator stay. A role or binding annotated
`rbac.authorization.kubernetes.io/autoupdate: "false"` is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dray.api.document import Document, key_of
from dray.apiserver.authorization import bootstrap_roles
from dray.apiserver.authorization.rbac import API_GROUP
from dray.apiserver.authorization.rules import not_covered, read_rules

AUTOUPDATE: Final = "rbac.authorization.kubernetes.io/autoupdate"
_API_VERSION: Final = f"{API_GROUP}/v1"
# All controllers run in one process with one certificate; the service account is Kubernetes' own subject.
_CONTROLLER_MANAGER: Final = ("User", "system:kube-controller-manager")
# The namespace of service accounts.
_SYSTEM: Final = "kube-system"


class Verb(StrEnum):
    """The kind of a write."""

    CREATE = "create"
    UPDATE = "update"
    # A binding's role is immutable.
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class BootstrapWrite:
    """One write, to be made in order; updates have a resourceVersion."""

    verb: Verb
    document: Document


def bootstrap_documents() -> list[Document]:
    """Return every default role and binding, roles first."""
    roles = [_role(name, rules) for name, rules in bootstrap_roles.CLUSTER_ROLES.items()]
    roles += [_aggregated(name, label) for name, label in bootstrap_roles.AGGREGATED.items()]
    bindings = [_binding(name, name, subjects) for name, subjects in bootstrap_roles.BINDINGS.items()]
    for controller, rules in bootstrap_roles.CONTROLLER_ROLES.items():
        name = f"system:controller:{controller}"
        roles.append(_role(name, rules))
        bindings.append(_binding(name, name, (("ServiceAccount", controller), _CONTROLLER_MANAGER)))
    roles += [_role(name, rules, namespace) for (namespace, name), rules in bootstrap_roles.ROLES.items()]
    bindings += [
        _binding(name, role, subjects, namespace)
        for (namespace, name), (role, subjects) in bootstrap_roles.ROLE_BINDINGS.items()
    ]
    return roles + bindings


def plan_bootstrap(existing: Iterable[Document]) -> list[BootstrapWrite]:
    """Return the writes that bring the existing roles and bindings to the default ones."""
    have = {(document["kind"], key_of(document)): document for document in existing}
    writes: list[BootstrapWrite] = []
    for wanted in bootstrap_documents():
        found = have.get((wanted["kind"], key_of(wanted)))
        if found is None:
            writes.append(BootstrapWrite(Verb.CREATE, wanted))
        elif (found["metadata"].get("annotations") or {}).get(AUTOUPDATE) != "false":
            writes.extend(_reconcile(found, wanted))
    return writes


def _reconcile(found: Document, wanted: Document) -> list[BootstrapWrite]:
    if "roleRef" in wanted and found.get("roleRef") != wanted["roleRef"]:
        return [BootstrapWrite(Verb.DELETE, found), BootstrapWrite(Verb.CREATE, wanted)]
    merged = copy.deepcopy(found)
    for field in ("labels", "annotations"):
        # An administrator's value wins.
        merged["metadata"][field] = wanted["metadata"][field] | (merged["metadata"].get(field) or {})
    if "roleRef" in wanted:
        _add_subjects(merged, wanted)
    elif "aggregationRule" in wanted:
        _add_selectors(merged, wanted)
    else:
        _add_rules(merged, wanted)
    return [] if merged == found else [BootstrapWrite(Verb.UPDATE, merged)]


def _add_rules(merged: Document, wanted: Document) -> None:
    held = merged.get("rules") or []
    added = [rule for rule in wanted["rules"] if not_covered(read_rules(held), read_rules([rule]))]
    if added:
        merged["rules"] = [*held, *added]


def _add_subjects(merged: Document, wanted: Document) -> None:
    held = merged.get("subjects") or []
    added = [subject for subject in wanted["subjects"] if subject not in held]
    if added:
        merged["subjects"] = [*held, *added]


def _add_selectors(merged: Document, wanted: Document) -> None:
    selectors = (merged.get("aggregationRule") or {}).get("clusterRoleSelectors") or []
    added = [item for item in wanted["aggregationRule"]["clusterRoleSelectors"] if item not in selectors]
    if added:
        merged["aggregationRule"] = {"clusterRoleSelectors": [*selectors, *added]}


def _metadata(name: str, namespace: str = "") -> Document:
    return {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}
        | {_aggregate_label(to): "true" for to in bootstrap_roles.AGGREGATED_LABELS.get(name, ())},
        "annotations": {AUTOUPDATE: "true"},
    }


def _aggregate_label(to: str) -> str:
    return f"rbac.authorization.k8s.io/aggregate-to-{to}"


def _role(name: str, rules: Iterable[Document], namespace: str = "") -> Document:
    return {
        "apiVersion": _API_VERSION,
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": _metadata(name, namespace),
        "rules": [copy.deepcopy(rule) for rule in rules],
    }


def _aggregated(name: str, label: str) -> Document:
    selector = {"matchLabels": {_aggregate_label(label): "true"}}
    return {
        "apiVersion": _API_VERSION,
        "kind": "ClusterRole",
        "metadata": _metadata(name),
        "aggregationRule": {"clusterRoleSelectors": [selector]},
        "rules": [],
    }


def _binding(name: str, role: str, subjects: Iterable[tuple[str, str]], namespace: str = "") -> Document:
    """Return a binding; one in a namespace is to a role in that namespace."""
    return {
        "apiVersion": _API_VERSION,
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": API_GROUP, "kind": "Role" if namespace else "ClusterRole", "name": role},
        "subjects": [_subject(kind, subject) for kind, subject in subjects],
    }


def _subject(kind: str, name: str) -> Document:
    if kind == "ServiceAccount":
        return {"kind": kind, "name": name, "namespace": _SYSTEM}
    return {"apiGroup": API_GROUP, "kind": kind, "name": name}
