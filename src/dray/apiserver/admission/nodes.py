"""Plugins about nodes: NodeRestriction and TaintNodesByCondition."""

from __future__ import annotations

from typing import Final

from dray.api.document import Document, GroupResource
from dray.apiserver.admission.plugin import AdmissionAttributes, AdmissionPlugin, Operation
from dray.apiserver.authorization.escalation import Authorize
from dray.apiserver.authorization.node import node_name_of
from dray.apiserver.authorization.node_index import NodeIndex
from dray.apiserver.authorization.node_restriction import check_node_write
from dray.apiserver.object_cache import NODES
from dray.apiserver.request import Attributes

_NOT_READY_TAINT: Final = "node.kubernetes.io/not-ready"


class NodeRestriction(AdmissionPlugin):
    """Refuses writes of a node's agent to what does not belong to its node."""

    name = "NodeRestriction"
    validates_nodes_only = True

    def __init__(self, nodes: NodeIndex, authorize: Authorize) -> None:
        self._nodes = nodes
        self._authorize = authorize

    def handles(self, _resource: GroupResource, _subresource: str, _operation: Operation) -> bool:
        """Take part in every write of a node: an agent that names no node may write nothing."""
        return True

    async def validate(self, attributes: AdmissionAttributes) -> None:
        """Check the write if a node's agent made it."""
        if node_name_of(attributes.user) is not None:
            new, old = attributes.object, attributes.old_object
            check_node_write(_request(attributes), new, old, self._nodes, self._authorize)


def _request(attributes: AdmissionAttributes) -> Attributes:
    return Attributes(
        user=attributes.user,
        verb="delete" if attributes.operation is Operation.DELETE else attributes.verb,
        group=attributes.resource.group,
        version=attributes.version,
        resource=attributes.resource.resource,
        subresource=attributes.subresource,
        namespace=attributes.namespace,
        name=attributes.name,
    )


class TaintNodesByCondition(AdmissionPlugin):
    """Taints new nodes, so that they get no Pods until the node lifecycle controller has seen them ready."""

    name = "TaintNodesByCondition"

    def handles(self, resource: GroupResource, subresource: str, operation: Operation) -> bool:
        """Take part in creates of nodes."""
        return operation is Operation.CREATE and resource == NODES and not subresource

    async def admit(self, attributes: AdmissionAttributes) -> None:
        """Add the taint if the node does not have it."""
        node = attributes.object
        assert node is not None
        spec: Document = node.setdefault("spec", {})
        taints = list(spec.get("taints") or ())
        if not any((item.get("key"), item.get("effect")) == (_NOT_READY_TAINT, "NoSchedule") for item in taints):
            spec["taints"] = [*taints, {"key": _NOT_READY_TAINT, "effect": "NoSchedule"}]
