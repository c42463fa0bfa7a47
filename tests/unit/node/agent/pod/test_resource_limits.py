"""Limits of containers and Pods, with what the devices of their claims use of the node (N-47 to N-51)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.node.agent.admission import own_requests
from dray.node.agent.pod.resource_limits import limits_of, pod_limits_of
from dray.node.runtimes.runtime import Limits

MI = 1024**2
GI = 1024**3
# One claim of both containers: two CPUs, and memory that its driver needs.
CLAIM = {
    "resourceClaimName": "claim",
    "containers": ["a", "b"],
    "mapping": [{"name": "cpu", "quantity": "2"}],
    "overhead": [{"name": "memory", "perPod": "64Mi", "perContainer": "16Mi"}],
}


def container(name: str = "a", requests: Document | None = None, **limits: Any) -> Document:
    return {"name": name, "image": "i", "resources": {"requests": requests or {}, "limits": limits}}


def pod(*containers: Document, claims: list[Document] | None = None, qos: str = "Burstable", **spec: Any) -> Pod:
    document = {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": list(containers), "nodeName": "n", **spec},
        "status": {"qosClass": qos, "nodeAllocatableResourceClaimStatuses": claims or []},
    }
    return msgspec.convert(document, Pod)


def first(subject: Pod, memory: int = 0) -> Limits:
    return limits_of(subject, subject.spec.containers[0], memory)


def test_limits() -> None:
    found = first(pod(container(requests={"cpu": "250m"}, cpu="500m", memory="64Mi")))
    assert (found.cpu_shares, found.cpu_quota_microseconds, found.memory_bytes) == (256, 50_000, 64 * MI)
    nothing = first(pod(container()))
    assert (nothing.cpu_shares, nothing.cpu_quota_microseconds, nothing.memory_bytes) == (2, 0, 0)


@pytest.mark.behaviour("N-48")
def test_a_containers_own_limit_grows_by_what_its_claims_use() -> None:
    found = first(pod(container(requests={"cpu": "500m"}, cpu="1", memory="100Mi"), claims=[CLAIM]))
    assert found.cpu_quota_microseconds == 300_000
    assert found.memory_bytes == 180 * MI
    # The shares stay those of the request.
    assert found.cpu_shares == 512


@pytest.mark.behaviour("N-48")
def test_shares_without_a_request_are_those_of_the_limit_alone() -> None:
    assert first(pod(container(cpu="1"), claims=[CLAIM])).cpu_shares == 1024


@pytest.mark.behaviour("N-48")
def test_without_a_limit_of_its_own_nothing_is_limited() -> None:
    found = first(pod(container(), claims=[CLAIM], resources={"limits": {"cpu": "4", "memory": "1Gi"}}))
    assert (found.cpu_quota_microseconds, found.memory_bytes) == (0, 0)


@pytest.mark.behaviour("N-48")
def test_another_container_is_left_alone() -> None:
    found = first(pod(container("other", cpu="1", memory="100Mi"), claims=[CLAIM]))
    assert (found.cpu_quota_microseconds, found.memory_bytes) == (100_000, 100 * MI)


PAGES = {**CLAIM, "mapping": [{"name": "hugepages-2Mi", "quantity": "4Mi"}], "overhead": []}


@pytest.mark.behaviour("N-49")
@pytest.mark.parametrize(
    ("limits", "resources", "expected"),
    [
        pytest.param({"hugepages-2Mi": "8Mi"}, None, 12 * MI, id="added to the container's limit"),
        pytest.param({}, None, 4 * MI, id="the limit"),
        pytest.param({}, {"limits": {"hugepages-2Mi": "16Mi"}}, 16 * MI, id="the limit of the Pod"),
    ],
)
def test_huge_pages(limits: Document, resources: Document | None, expected: int) -> None:
    assert first(pod(container(**limits), claims=[PAGES], resources=resources)).huge_pages == (("2MB", expected),)


@pytest.mark.parametrize(
    ("name", "size"), [("hugepages-2Mi", "2MB"), ("hugepages-1Gi", "1GB"), ("hugepages-64Ki", "64KB")]
)
def test_names_of_page_sizes(name: str, size: str) -> None:
    limits: dict[str, Any] = {name: "1Gi"}
    assert first(pod(container(**limits))).huge_pages == ((size, GI),)


@pytest.mark.behaviour("N-50")
@pytest.mark.parametrize(
    ("qos", "requested", "claims", "expected"),
    [
        ("Guaranteed", "1Gi", [], -997),
        ("BestEffort", "0", [], 1000),
        ("Burstable", "1Gi", [], 750),
        ("Burstable", "0", [], 999),
        ("Burstable", "4Gi", [], 3),
        # 1Gi, half of 64Mi, and 16Mi of 4Gi.
        ("Burstable", "1Gi", [CLAIM], 739),
    ],
)
def test_oom_scores(qos: str, requested: str, claims: list[Document], expected: int) -> None:
    subject = pod(container(requests={"memory": requested}), claims=claims, qos=qos)
    assert first(subject, memory=4 * GI).oom_score_adj == expected


@pytest.mark.behaviour("N-47")
def test_the_pods_cgroup_has_the_requests_and_all_amounts() -> None:
    both = (container("a", {"cpu": "1"}, cpu="1", memory="100Mi"), container("b", {"cpu": "1"}, cpu="2", memory="1Mi"))
    found = pod_limits_of(pod(*both, claims=[CLAIM]))
    assert found.cpu_shares == 4 * 1024
    assert found.cpu_quota_microseconds == 500_000
    assert found.memory_bytes == (101 + 64 + 2 * 16) * MI


@pytest.mark.behaviour("N-47")
def test_the_pods_cgroup_is_limited_only_where_every_container_is() -> None:
    found = pod_limits_of(pod(container("a", cpu="1", memory="100Mi"), container("b", memory="1Mi"), claims=[PAGES]))
    assert found.cpu_quota_microseconds == 0
    assert found.memory_bytes == 101 * MI
    assert found.huge_pages == (("2MB", 4 * MI),)
    assert pod_limits_of(pod(container())).cpu_shares == 2


@pytest.mark.behaviour("N-47")
def test_resources_of_the_pod_as_a_whole_include_its_claims() -> None:
    resources = {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}
    found = pod_limits_of(pod(container("a", {"cpu": "500m"}), claims=[CLAIM], resources=resources))
    assert (found.cpu_shares, found.cpu_quota_microseconds) == (3 * 1024, 400_000)


@pytest.mark.behaviour("N-43")
def test_admission_counts_what_claims_use() -> None:
    assert own_requests(pod(container(requests={"cpu": "1"}), claims=[CLAIM])) == {"cpu": 3000, "memory": 96 * MI}
