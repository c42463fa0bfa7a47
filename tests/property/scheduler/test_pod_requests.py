"""What a Pod requests is the same whether it is computed from the Pod, or known from the requests of its containers."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from dray.api.codec import from_document
from dray.api.types.core_v1 import Pod
from dray.framework.pod_info import PodInfo
from dray.framework.resources import CPU, DEFAULT_MEMORY, DEFAULT_MILLI_CPU, MEMORY, Resources, pod_requests

AMOUNTS = st.dictionaries(st.sampled_from((CPU, MEMORY, "pods", "example.com/gpu")), st.sampled_from(("0", "1", "2")))
STATUSES = st.lists(st.fixed_dictionaries({"name": st.sampled_from("ab"), "allocatedResources": AMOUNTS}), max_size=1)
# What the devices of a Pod use of its node.
CLAIM_STATUSES = ({"resourceClaimName": "claim", "containers": ["a"], "mapping": [{"name": CPU, "quantity": "1"}]},)


def pod_of(spec: dict[str, Any], status: dict[str, Any]) -> Pod:
    return from_document(Pod, {"metadata": {"name": "p", "namespace": "n"}, "spec": spec, "status": status})


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    names = draw(st.lists(st.sampled_from("ab"), unique=True))
    sidecars = draw(st.lists(st.sampled_from("cd"), unique=True, max_size=1))
    spec: dict[str, Any] = {
        "containers": [{"name": name, "resources": {"requests": draw(AMOUNTS)}} for name in names],
        "initContainers": [{"name": name, "resources": {"requests": draw(AMOUNTS)}} for name in sidecars],
    }
    if draw(st.booleans()):
        spec["overhead"] = draw(AMOUNTS)
    if draw(st.booleans()):
        spec["resources"] = {"requests": draw(AMOUNTS)}
    if draw(st.booleans()):
        spec["nodeName"] = "node"
    status = {
        "containerStatuses": draw(STATUSES),
        "initContainerStatuses": draw(STATUSES),
        "nodeAllocatableResourceClaimStatuses": draw(st.sampled_from(((), CLAIM_STATUSES))),
    }
    return pod_of(spec, status)


@given(pods())
@example(Pod())
@example(pod_of({"nodeName": "node"}, {"nodeAllocatableResourceClaimStatuses": CLAIM_STATUSES}))
def test_requests_are_those_of_the_pod(pod: Pod) -> None:
    info = PodInfo(pod)
    assert info.requests == Resources.of(pod_requests(pod))
    counted = pod_requests(pod, {CPU: DEFAULT_MILLI_CPU, MEMORY: DEFAULT_MEMORY})
    assert (info.non_zero_milli_cpu, info.non_zero_memory) == (counted.get(CPU, 0), counted.get(MEMORY, 0))
