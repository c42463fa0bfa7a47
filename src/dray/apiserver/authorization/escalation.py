"""Privilege escalation checks on writes of roles and bindings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from dray.api.document import Document, GroupResource, NamespacedName, key_of
from dray.api.errors import ForbiddenError, NotFoundError
from dray.api.field_errors import quote
from dray.apiserver.authorization.rbac import API_GROUP, Decision, RBACIndex
from dray.apiserver.authorization.rules import (
    ALL,
    Rule,
    TooManyPermissionsError,
    compact,
    not_covered,
    quoted,
    read_rules,
)
from dray.apiserver.request import Attributes, UserInfo

MASTERS: Final = "system:masters"
_FULL_AUTHORITY: Final = (Rule((ALL,), (ALL,), (ALL,)), Rule((ALL,), urls=(ALL,)))
_RESOURCES: Final = {
    "Role": "roles",
    "ClusterRole": "clusterroles",
    "RoleBinding": "rolebindings",
    "ClusterRoleBinding": "clusterrolebindings",
}
# managedFields change with any other field.
_GARBAGE_COLLECTION_FIELDS: Final = frozenset({"finalizers", "ownerReferences", "managedFields"})

Authorize: TypeAlias = Callable[[Attributes], Decision]


def check_role_write(
    index: RBACIndex, user: UserInfo, new: Document, old: Document | None, authorize: Authorize
) -> None:
    """Reject a role with rules that its writer lacks; `escalate` and system:masters are exempt.

    An update needs all rules of the role, whatever it changes: labels decide which roles aggregate them.
    """
    kind, key = new["kind"], key_of(new)
    if MASTERS in user.groups or _is_allowed(authorize, user, "escalate", kind, key):
        return
    if old is not None and _differs_for_garbage_collection_only(new, old):
        return
    resource = GroupResource(API_GROUP, _RESOURCES[kind])
    owned = index.rules_for(user, key.namespace).rules
    _reject_missing(resource, key.name, user, owned, read_rules(new.get("rules")))
    if (_aggregates(new) or _aggregates(old)) and not_covered(owned, _FULL_AUTHORITY):
        raise ForbiddenError(resource, key.name, "must have cluster-admin privileges to use the aggregationRule")


def check_binding_write(
    index: RBACIndex, user: UserInfo, new: Document, old: Document | None, authorize: Authorize
) -> None:
    """Reject a binding to a role with rules that its writer lacks; `bind` and system:masters are exempt."""
    kind, key = new["kind"], key_of(new)
    reference = new["roleRef"]
    role_namespace = key.namespace if reference["kind"] == "Role" else ""
    if MASTERS in user.groups:
        return
    # `bind` is checked in the binding's namespace, even for a cluster role.
    if _is_allowed(authorize, user, "bind", reference["kind"], NamespacedName(key.namespace, reference["name"])):
        return
    if old is not None and _differs_for_garbage_collection_only(new, old):
        return
    rules = index.role_rules(reference["kind"], NamespacedName(role_namespace, reference["name"]))
    if rules is None:
        raise NotFoundError(GroupResource(API_GROUP, _RESOURCES[reference["kind"]]), reference["name"])
    owned = index.rules_for(user, key.namespace).rules
    _reject_missing(GroupResource(API_GROUP, _RESOURCES[kind]), key.name, user, owned, rules)


def _is_allowed(authorize: Authorize, user: UserInfo, verb: str, kind: str, key: NamespacedName) -> bool:
    attributes = Attributes(
        user,
        verb,
        group=API_GROUP,
        version="*",
        resource=_RESOURCES[kind],
        namespace=key.namespace,
        name=key.name,
    )
    return authorize(attributes).allowed


def _aggregates(role: Document | None) -> bool:
    return bool(((role or {}).get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _differs_for_garbage_collection_only(new: Document, old: Document) -> bool:
    """Return whether at most finalizers and owner references changed, so that anyone can complete a deletion."""
    return _without_garbage_collection(new) == _without_garbage_collection(old)


def _without_garbage_collection(document: Document) -> Document:
    metadata = {key: value for key, value in document["metadata"].items() if key not in _GARBAGE_COLLECTION_FIELDS}
    return {**document, "metadata": metadata}


def _reject_missing(
    resource: GroupResource, name: str, user: UserInfo, owned: Sequence[Rule], wanted: Sequence[Rule]
) -> None:
    try:
        missing = not_covered(owned, wanted)
    except TooManyPermissionsError as error:
        raise ForbiddenError(resource, name, str(error)) from error
    if not missing:
        return
    listed = "\n".join(sorted({str(rule) for rule in compact(missing)}))
    who = f"user {quote(user.name)} (groups={quoted(user.groups)})"
    raise ForbiddenError(resource, name, f"{who} is attempting to grant RBAC permissions not currently held:\n{listed}")
