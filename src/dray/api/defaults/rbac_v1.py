"""Defaults of role bindings: the API groups of roles and subjects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from dray.api.document import Document, GroupVersion, GroupVersionKind

GROUP: Final = "rbac.authorization.k8s.io"


def _default_binding(obj: Document, _now: datetime) -> None:
    role = obj.get("roleRef")
    if role is not None and not role.get("apiGroup"):
        role["apiGroup"] = GROUP
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = GROUP


_V1: Final = GroupVersion(GROUP, "v1")

DEFAULTERS: Final[Mapping[GroupVersionKind, Callable[[Document, datetime], None]]] = {
    _V1.kind("RoleBinding"): _default_binding,
    _V1.kind("ClusterRoleBinding"): _default_binding,
}
