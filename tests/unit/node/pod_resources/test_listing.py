"""What PodResources answers."""

from __future__ import annotations

import pytest

from dray.api.codec import from_document
from dray.api.document import NamespacedName
from dray.api.features import FeatureGates
from dray.api.gate_table import Release
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.node.devices.device_manager import HeldDevice
from dray.node.dra.claims import Device, class_name_of
from dray.node.pod_resources.listing import allocatable, alpha_pod_resources, find, in_order, listed, pod_resources
from dray.node.pod_resources.response_cache import ListResponseCache
from dray.node.pod_resources.server import gates_of
from dray.node.pod_resources.servicer import Gates
from dray.node.pod_resources.sources import Sources
from dray.node.rate_limit import Limiter
from dray.node.topology.memory_manager import Block
from dray.rpc.pb.podresources.v1 import api_pb2 as v1
from dray.rpc.pb.podresources.v1alpha1 import api_pb2 as v1alpha1
from tests.unit.node.devices.builders import BAR, FOO, Pods, asking, container, pod, sidecar
from tests.unit.node.pod_resources.fakes import Claims, CPUs, Devices, Memory, info, with_claims

HELD = Devices(
    {
        ("u1", "main"): [HeldDevice(BAR, "b", None), HeldDevice(FOO, "a", 0), HeldDevice(FOO, "a", 1)],
        ("u1", "side"): [HeldDevice(FOO, "s", 1)],
        ("u1", "init"): [HeldDevice(FOO, "i", 1)],
    }
)
POD = pod("u1", [container("main"), container("plain")], [container("init"), sidecar("side")])


def device(resource: str, name: str, *nodes: int) -> v1.ContainerDevices:
    topology = v1.TopologyInfo(nodes=[v1.NUMANode(id=node) for node in nodes]) if nodes else None
    return v1.ContainerDevices(resource_name=resource, device_ids=[name], topology=topology)


@pytest.mark.behaviour("PR-02", "PR-06", "PR-07")
def test_containers_and_devices() -> None:
    found = pod_resources(POD, Sources(Pods(), devices=HELD), dynamic=True)
    assert found == v1.PodResources(
        name="pod-u1",
        namespace="default",
        containers=[
            v1.ContainerResources(name="side", devices=[device(FOO, "s", 1)]),
            v1.ContainerResources(name="main", devices=[device(BAR, "b"), device(FOO, "a", 0), device(FOO, "a", 1)]),
            v1.ContainerResources(name="plain"),
        ],
    )
    assert not found.containers[1].devices[0].HasField("topology")


@pytest.mark.behaviour("N-138", "N-139")
def test_cpus_and_memory_of_the_pod_as_a_whole() -> None:
    blocks = {("u1", "main"): [Block((0,), "memory", 1024)], ("u1", "side"): [Block((1,), "memory", 2048)]}
    sources = Sources(Pods(), cpus=CPUs({("u1", "main"): {3, 2}, ("u1", "side"): {1}}), memory=Memory(blocks))
    whole = pod_resources(POD, sources, dynamic=True, pod_level=True)
    assert list(whole.cpu_ids) == [1, 2, 3]
    assert sorted(item.size for item in whole.memory) == [1024, 2048]
    # A container of the shared part has none of its own.
    assert [list(item.cpu_ids) for item in whole.containers] == [[1], [2, 3], []]
    without = pod_resources(POD, sources, dynamic=True)
    assert (list(without.cpu_ids), list(without.memory)) == ([], [])
    assert v1.PodResources.DESCRIPTOR.fields_by_name["cpu_ids"].number == 4
    assert v1.PodResources.DESCRIPTOR.fields_by_name["memory"].number == 5


@pytest.mark.behaviour("PR-04")
def test_the_first_version_has_devices_of_containers_alone() -> None:
    assert alpha_pod_resources(POD, Sources(Pods(), devices=HELD)) == v1alpha1.PodResources(
        name="pod-u1",
        namespace="default",
        containers=[
            v1alpha1.ContainerResources(
                name="main",
                devices=[
                    v1alpha1.ContainerDevices(resource_name=BAR, device_ids=["b"]),
                    v1alpha1.ContainerDevices(resource_name=FOO, device_ids=["a"]),
                ],
            ),
            v1alpha1.ContainerResources(name="plain"),
        ],
    )


@pytest.mark.behaviour("PR-08")
def test_cpus_and_memory() -> None:
    item = pod("u1", [container("main")])
    plain = pod_resources(item, Sources(Pods()), dynamic=True).containers[0]
    assert not plain.cpu_ids
    assert not plain.memory
    sources = Sources(Pods(), cpus=CPUs(), memory=Memory())
    entry = pod_resources(item, sources, dynamic=True).containers[0]
    assert list(entry.cpu_ids) == [1, 2]
    nodes = v1.TopologyInfo(nodes=[v1.NUMANode(id=0), v1.NUMANode(id=1)])
    assert list(entry.memory) == [v1.ContainerMemory(memory_type="memory", size=2048, topology=nodes)]
    other = pod_resources(pod("u2"), sources, dynamic=True).containers[0]
    assert other == v1.ContainerResources(name="main")


@pytest.mark.behaviour("PR-09")
def test_allocatable() -> None:
    held = Devices({})
    held.all = [HeldDevice(FOO, "a", 1), HeldDevice(FOO, "b", None)]
    claims = Claims(info("c", driver=[Device("p", "d")]))
    found = allocatable(Sources(Pods(), held, CPUs(), Memory(), (claims,)))
    assert list(found.devices) == [device(FOO, "a", 1), device(FOO, "b")]
    assert list(found.cpu_ids) == [1, 2, 3]
    assert [(item.memory_type, item.size) for item in found.memory] == [("memory", 4096), ("hugepages-2Mi", 64)]
    assert allocatable(Sources(Pods())) == v1.AllocatableResourcesResponse()


GPU = info(
    "gpus",
    drv=[
        Device("pool", "gpu-0", None, ("one",), ("v.com/gpu=0", "v.com/all=x")),
        Device("pool", "gpu-1", "share-7", ("two",), ("v.com/gpu=1",)),
    ],
    other=[Device("p2", "nic", None, (), ("o.com/nic=0",))],
)


def claim_resource(driver: str, pool: str, name: str, *cdi: str, share: str | None = None) -> v1.ClaimResource:
    devices = [v1.CDIDevice(name=one) for one in cdi]
    return v1.ClaimResource(driver_name=driver, pool_name=pool, device_name=name, cdi_devices=devices, share_id=share)


FIRST = claim_resource("drv", "pool", "gpu-0", "v.com/gpu=0", "v.com/all=x")
SECOND = claim_resource("drv", "pool", "gpu-1", "v.com/gpu=1", share="share-7")
NIC = claim_resource("other", "p2", "nic", "o.com/nic=0")


def dynamic(item: Pod, claims: Claims, *, on: bool = True) -> dict[str, list[v1.DynamicResource]]:
    sources = Sources(Pods(), claims=(claims,))
    found = pod_resources(item, sources, dynamic=on)
    return {entry.name: list(entry.dynamic_resources) for entry in found.containers}


def resource(*parts: v1.ClaimResource, name: str = "gpus") -> v1.DynamicResource:
    return v1.DynamicResource(
        class_name=f"class-of-{name}", claim_name=name, claim_namespace="default", claim_resources=parts
    )


@pytest.mark.behaviour("PR-10", "PR-11", "PR-12", "PR-13")
def test_claims() -> None:
    item = with_claims(
        "u1",
        {"g": "gpus"},
        {"all": [("g", "")], "one": [("g", "one")], "both": [("g", "two"), ("g", "one")], "none": []},
    )
    assert dynamic(item, Claims(GPU)) == {
        "all": [resource(FIRST, SECOND, NIC)],
        "one": [resource(FIRST, NIC)],
        "both": [resource(FIRST, SECOND, NIC)],
        "none": [],
    }


@pytest.mark.behaviour("PR-12")
def test_a_claim_of_two_pods_shows_in_both() -> None:
    for uid in ("u1", "u2"):
        assert dynamic(with_claims(uid, {"g": "gpus"}, {"c": [("g", "two")]}), Claims(GPU)) == {
            "c": [resource(SECOND, NIC)]
        }


@pytest.mark.behaviour("PR-14")
def test_a_claim_that_is_not_prepared_is_left_out() -> None:
    item = with_claims("u1", {"g": "gpus", "x": "unknown"}, {"c": [("g", ""), ("x", "")], "d": [("g", "one")]})
    assert dynamic(item, Claims(GPU)) == {"c": [], "d": [resource(FIRST, NIC)]}
    template = with_claims("u1", {}, {"c": [("g", "")]})
    assert dynamic(template, Claims(GPU)) == {"c": []}


@pytest.mark.behaviour("PR-10", "XR-36")
def test_the_claim_of_extended_resources() -> None:
    mapping = {"containerName": "main", "resourceName": FOO, "requestName": "one"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "gpus", "requestMappings": [mapping]}}
    item = pod("u1", [container("main", {FOO: 1}), container("other", {FOO: 1})], status=status)
    assert dynamic(item, Claims(GPU)) == {"main": [resource(FIRST, NIC)], "other": []}


@pytest.mark.behaviour("PR-19", "NG-08")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Gates()),
        ("PodResourcesGet=true", Gates()),
        ("PodLevelResourceManagers=true", Gates(pod_level=True)),
        ("PodResourcesDynamicResources=true", Gates()),
        ("KubeletPodResourcesListUseActivePods=false", Gates(active_only=False)),
    ],
)
def test_gates(text: str, expected: Gates) -> None:
    assert gates_of(FeatureGates.parse(text)) == expected


@pytest.mark.behaviour("PR-19")
def test_what_pods_have_is_listed_while_claims_are_disabled() -> None:
    off = (
        "DynamicResourceAllocation=false,DRAAdminAccess=false,DRAPrioritizedList=false,DRASchedulerFilterTimeout=false"
    )
    assert gates_of(FeatureGates.parse(off, Release(1, 34))) == Gates()


def phase(uid: str, name: str, namespace: str, value: str) -> Pod:
    return pod(uid, name=name, namespace=namespace, status={"phase": value})


@pytest.mark.behaviour("PR-03")
def test_finished_pods_are_left_out() -> None:
    pods = Pods(phase("1", "b", "x", "Running"), phase("2", "a", "x", "Succeeded"), phase("3", "z", "a", "Pending"))
    sources = Sources(pods)
    assert [item.metadata.uid for item in in_order(listed(sources, active_only=True))] == ["3", "1"]
    assert [item.metadata.uid for item in in_order(listed(sources, active_only=False))] == ["3", "2", "1"]


@pytest.mark.behaviour("PR-17")
def test_finding_one() -> None:
    pods = Pods(
        phase("1", "a", "x", "Succeeded"),
        phase("2", "a", "x", "Running"),
        phase("3", "a", "y", "Failed"),
        phase("4", "b", "y", "Running"),
    )

    def uid(namespace: str, name: str, *, active_only: bool = True) -> str | None:
        found = find(Sources(pods), NamespacedName(namespace, name), active_only=active_only)
        return None if found is None else found.metadata.uid

    assert uid("x", "a") == "2"
    assert uid("y", "a") is None
    assert uid("y", "a", active_only=False) == "3"
    assert uid("x", "b") is None
    assert uid("y", "b") == "4"


@pytest.mark.behaviour("PR-16", "PR-17")
def test_get_finds_only_what_is_listed() -> None:
    """A Pod that was rejected is not active, though the API server may not have its status yet."""
    pods = Pods(phase("1", "a", "x", "Pending"), phase("2", "b", "x", "Pending"))
    pods.inactive.add("1")
    sources = Sources(pods)
    assert [item.metadata.uid for item in listed(sources, active_only=True)] == ["2"]
    assert find(sources, NamespacedName("x", "a"), active_only=True) is None
    assert find(sources, NamespacedName("x", "b"), active_only=True) is pods.get("2")
    assert find(sources, NamespacedName("x", "a"), active_only=False) is pods.get("1")


@pytest.mark.behaviour("PR-21")
def test_the_bound() -> None:
    limiter = Limiter(100, 10, now=0.0)
    assert [limiter.allow(0.0) for _ in range(11)] == [True] * 10 + [False]
    assert limiter.allow(0.0101)
    assert not limiter.allow(0.0102)
    assert sum(limiter.allow(100.0) for _ in range(20)) == 10


@pytest.mark.behaviour("PR-24")
def test_numbers_of_both_forms() -> None:
    """A client of Kubernetes passes over number 1, one of KEP-3695 finds class and claim name at theirs."""
    content = resource(FIRST).SerializeToString()
    numbers = {field.number: field.name for field in v1.DynamicResource.DESCRIPTOR.fields}
    assert numbers == {1: "class_name", 2: "claim_name", 3: "claim_namespace", 4: "claim_resources"}
    assert content.startswith(b"\x0a\x0dclass-of-gpus\x12\x04gpus\x1a\x07default\x22")
    # What a later version adds is kept apart and does no harm.
    assert v1.DynamicResource.FromString(content + b"\xfa\x01\x01x").claim_name == "gpus"


@pytest.mark.behaviour("PR-11")
def test_class_names() -> None:
    claim = from_document(
        ResourceClaim,
        {
            "spec": {
                "devices": {
                    "requests": [
                        {"name": "a", "exactly": {"deviceClassName": "gpu"}},
                        {
                            "name": "b",
                            "firstAvailable": [
                                {"name": "x", "deviceClassName": "nic"},
                                {"name": "y", "deviceClassName": "gpu"},
                            ],
                        },
                    ]
                }
            }
        },
    )
    assert class_name_of(claim) == "gpu,nic"
    assert class_name_of(ResourceClaim()) == ""


def test_an_answer_is_made_again_when_a_pod_or_what_it_has_is_another() -> None:
    first, second = asking("u1"), asking("u2")
    devices = Devices({("u1", "main"): [HeldDevice(FOO, "a", 1)]})
    answers = ListResponseCache(Sources(Pods(), devices), dynamic=True)
    before = answers.all((first,))
    assert answers.all((first,)) is before
    # An equal Pod that is another object may have changed.
    again = answers.all((asking("u1"),))
    assert again == before
    assert again is not before
    both = v1.ListPodResourcesResponse.FromString(answers.all((second, first)))
    assert both == v1.ListPodResourcesResponse(pod_resources=[answers.one(first), answers.one(second)])
    renamed = pod("u1", name="renamed")
    found = v1.ListPodResourcesResponse.FromString(answers.all((second, renamed)))
    assert [item.name for item in found.pod_resources] == ["pod-u2", "renamed"]
    assert answers.all(()) == b""
    devices.held = {("u1", "main"): [HeldDevice(FOO, "b", 1)]}
    devices.revision += 1
    (entry,) = v1.ListPodResourcesResponse.FromString(answers.all((first,))).pod_resources
    assert list(entry.containers[0].devices) == [device(FOO, "b", 1)]
