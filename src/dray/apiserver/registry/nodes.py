"""Nodes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from dray.api.document import Document
from dray.api.field_errors import FieldErrors
from dray.api.validation.core_v1_node import validate_node, validate_node_update
from dray.apiserver.registry.columns import AGE, NAME, UNKNOWN
from dray.apiserver.registry.strategy import (
    Column,
    ResourceDefinition,
    Strategy,
    WriteContext,
    proxy_of,
    restore,
)

_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
_ROLE_LABEL: Final = "kubernetes.io/role"
_NONE: Final = "<none>"


class NodeStrategy(Strategy):
    """Strategy of nodes; a kubelet registers its node including the status."""

    def validate_create(self, obj: Document, context: WriteContext) -> FieldErrors:
        """Validate taints and capacity."""
        return validate_node(obj)

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the status."""
        restore(obj, old, "status")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate the changes."""
        return validate_node_update(obj, old)


class NodeStatusStrategy(Strategy):
    """Strategy of the status."""

    def prepare_for_update(self, obj: Document, old: Document, context: WriteContext) -> None:
        """Restore the spec."""
        restore(obj, old, "spec")

    def validate_update(self, obj: Document, old: Document, context: WriteContext) -> FieldErrors:
        """Validate capacity and addresses."""
        return validate_node_update(obj, old)


def _status(node: Document, now: datetime) -> str:
    state = "Unknown"
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready":
            state = "Ready" if condition.get("status") == "True" else "NotReady"
    return f"{state},SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else state


def _roles(node: Document, now: datetime) -> str:
    labels = (node.get("metadata") or {}).get("labels") or {}
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    roles.add(labels.get(_ROLE_LABEL, ""))
    return ",".join(sorted(filter(None, roles))) or _NONE


def _address(kind: str) -> Callable[[Document, datetime], str]:
    def cell(node: Document, now: datetime) -> str:
        for address in (node.get("status") or {}).get("addresses") or ():
            if address.get("type") == kind:
                return address.get("address") or _NONE
        return _NONE

    return cell


def _info(field: str, unset: str = UNKNOWN) -> Callable[[Document, datetime], str]:
    def cell(node: Document, now: datetime) -> str:
        return ((node.get("status") or {}).get("nodeInfo") or {}).get(field) or unset

    return cell


NODES: Final = ResourceDefinition(
    group="",
    resource="nodes",
    singular="node",
    kind="Node",
    namespaced=False,
    versions=("v1",),
    storage_version="v1",
    strategy=NodeStrategy(),
    status_strategy=NodeStatusStrategy(),
    subresources=(proxy_of("Node"),),
    short_names=("no",),
    columns=(
        NAME,
        Column("Status", "string", "Whether the node is ready, and whether it takes new pods.", _status),
        Column("Roles", "string", "The roles that the node's labels name.", _roles),
        AGE,
        Column("Version", "string", "The version of the node's kubelet.", _info("kubeletVersion", "")),
        Column("Internal-IP", "string", "The address inside the cluster.", _address("InternalIP"), priority=1),
        Column("External-IP", "string", "The address from outside.", _address("ExternalIP"), priority=1),
        Column("OS-Image", "string", "The operating system.", _info("osImage"), priority=1),
        Column("Kernel-Version", "string", "The kernel.", _info("kernelVersion"), priority=1),
        Column(
            "Container-Runtime",
            "string",
            "What runs the containers, and its version.",
            _info("containerRuntimeVersion"),
            priority=1,
        ),
    ),
    selectable_fields={
        "spec.unschedulable": lambda node: "true" if (node.get("spec") or {}).get("unschedulable") else "false",
    },
)

DEFINITIONS: Final = (NODES,)
