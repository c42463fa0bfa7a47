"""Roles, cluster roles and their bindings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.rbac_v1 import (
    GROUP,
    validate_binding_update,
    validate_cluster_role,
    validate_cluster_role_binding,
    validate_role,
    validate_role_binding,
)
from dray.apiserver.registry.columns import AGE, NAME, text_cell
from dray.apiserver.registry.strategy import Column, ResourceDefinition, Strategy, WriteContext


class RbacStrategy(Strategy):
    """Strategy of roles and bindings; names are path segments, and PUT creates, as role reconcilers expect."""

    allow_create_on_update = True
    name_rule = "path-segment"

    def __init__(self, validate: Callable[[Document], FieldErrors], *, binding: bool) -> None:
        self._validate = validate
        self._binding = binding

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate the rules, or role and subjects."""
        return self._validate(obj)

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the object; a binding's role is immutable."""
        errors = self._validate(obj)
        return errors + validate_binding_update(obj, old) if self._binding else errors


_ROLE_COLUMNS: Final = (
    NAME,
    Column("Created At", "date", "When the role was created.", text_cell("metadata", "creationTimestamp")),
)


def _role(binding: Document, now: datetime) -> str:
    role = binding.get("roleRef") or {}
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _subjects(kind: str) -> Callable[[Document, datetime], str]:
    def cell(binding: Document, now: datetime) -> str:
        return ", ".join(
            f"{item.get('namespace', '')}/{item.get('name', '')}" if kind == "ServiceAccount" else item.get("name", "")
            for item in binding.get("subjects") or ()
            if item.get("kind") == kind
        )

    return cell


_BINDING_COLUMNS: Final = (
    NAME,
    Column("Role", "string", "The role that is granted.", _role),
    AGE,
    Column("Users", "string", "Users with the role.", _subjects("User"), priority=1),
    Column("Groups", "string", "Groups with the role.", _subjects("Group"), priority=1),
    Column("ServiceAccounts", "string", "Service accounts with the role.", _subjects("ServiceAccount"), priority=1),
)


def _definition(
    kind: str, validate: Callable[[Document], FieldErrors], *, namespaced: bool, binding: bool
) -> ResourceDefinition:
    return ResourceDefinition(
        group=GROUP,
        resource=f"{kind.lower()}s",
        singular=kind.lower(),
        kind=kind,
        namespaced=namespaced,
        versions=("v1",),
        storage_version="v1",
        strategy=RbacStrategy(validate, binding=binding),
        columns=_BINDING_COLUMNS if binding else _ROLE_COLUMNS,
    )


ROLES: Final = _definition("Role", validate_role, namespaced=True, binding=False)
CLUSTER_ROLES: Final = _definition("ClusterRole", validate_cluster_role, namespaced=False, binding=False)
ROLE_BINDINGS: Final = _definition("RoleBinding", validate_role_binding, namespaced=True, binding=True)
CLUSTER_ROLE_BINDINGS: Final = _definition(
    "ClusterRoleBinding", validate_cluster_role_binding, namespaced=False, binding=True
)

DEFINITIONS: Final = (ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS)
