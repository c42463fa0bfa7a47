"""A node with its Pods."""

from __future__ import annotations

from dray.api.types.core_v1 import Node, Pod
from dray.api.types.meta_v1 import ObjectMeta
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo


def test_a_node_with_one_more_pod_keeps_everything_else() -> None:
    node = NodeInfo(Node(metadata=ObjectMeta(name="a", labels={"zone": "z"})))
    pod = PodInfo(Pod(metadata=ObjectMeta(name="p", namespace="default", uid="u")))
    back = node.with_pod(pod).without_pod("u")
    differing = [name for name in NodeInfo.__slots__ if getattr(back, name) != getattr(node, name)]
    # The lowest priority is not raised again: that would take a look at all Pods.
    assert differing == ["priority_floor"]
