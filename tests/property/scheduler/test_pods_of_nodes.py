"""A node to which several Pods are added at once, or removed, is the same as with one after the other."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.resources import Resources
from tests.unit.scheduler.builders import container, node_info, pod_info

TERM = {"topologyKey": "zone", "labelSelector": {}}
AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}


@st.composite
def pods(draw: st.DrawFn) -> list[PodInfo]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        amounts = draw(
            st.sets(st.sampled_from(("cpu", "memory", "ephemeral-storage", "example.com/a", "example.com/b")))
        )
        requests = {name: draw(st.sampled_from(("0", "1", "2"))) for name in amounts}
        ports = [{"containerPort": 80, "hostPort": draw(st.sampled_from((80, 81)))}] if draw(st.booleans()) else []
        words: dict[str, Any] = {"affinity": AFFINITY} if draw(st.booleans()) else {}
        info = pod_info(
            f"p{number}",
            containers=[container(requests, ports=ports)],
            priority=draw(st.integers(0, 3)),
            node="n",
            **words,
        )
        if draw(st.booleans()):
            info.device_resources = frozenset({"example.com/a"})
            info.requests, info.device_requests = info.requests.split(info.device_resources)
        found.append(info)
    return found


def content(node: NodeInfo) -> dict[str, Any]:
    found = {name: getattr(node, name) for name in NodeInfo.__slots__}
    found["pods"] = list(node.pods)
    return {name: _comparable(value) for name, value in found.items()}


def _comparable(value: Any) -> Any:
    if isinstance(value, Resources):
        return value.milli_cpu, value.memory, value.ephemeral_storage, dict(value.scalars)
    return value


@given(pods(), st.data())
def test_several_pods_at_once_are_the_same_as_one_by_one(infos: list[PodInfo], data: st.DataObject) -> None:
    node = node_info("n", pods=[])
    one_by_one = node
    for info in infos:
        one_by_one = one_by_one.with_pod(info)
    together = node.with_pods(infos)
    assert content(together) == content(one_by_one)
    removed = data.draw(st.lists(st.sampled_from(infos), unique_by=lambda info: info.uid)) if infos else []
    for info in removed:
        one_by_one = one_by_one.without_pod(info.uid)
    assert content(together.without_pods([info.uid for info in removed])) == content(one_by_one)
