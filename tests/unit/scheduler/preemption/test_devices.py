"""Preemption with devices: whose claims are released, what a nomination holds, and that nobody goes in vain."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import pytest

from dray.allocator import Allocator, SearchStoppedError, StopReason
from dray.api.document import Document, NamespacedName
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import AllocationResult, ResourceClaimConsumerReference
from dray.client.resources import RESOURCE_CLAIMS
from dray.framework.node_info import NodeInfo
from dray.framework.pod_info import PodInfo
from dray.framework.status import Code, Status
from dray.scheduler.cycle import Placement
from dray.scheduler.filter_runner import runner_of
from dray.scheduler.plugins.dynamic_resources.preemption import SETTLING
from dray.scheduler.preemption.dry_run import Candidate, DryRun
from tests.unit.scheduler.builders import pod as pod_object
from tests.unit.scheduler.preemption.device_cluster import DRIVER, DeviceCluster, allocation, request
from tests.unit.scheduler.test_group_queue import pod_group

HIGH: dict[str, Any] = {"priority": 100}


def full(*, gates: str = "", nodes: int = 1, each: int = 2) -> DeviceCluster:
    """Every device is used by a Pod of its own: n0-0 uses d0 on n0, and so on."""
    cluster = DeviceCluster(gates)
    for number in range(nodes):
        cluster.add_node(f"n{number}", *(f"d{device}" for device in range(each)))
        for device in range(each):
            cluster.run(f"n{number}-{device}", f"n{number}", f"d{device}", priority=number)
    return cluster


@pytest.mark.behaviour("PE-51", "PE-53", "PE-66")
def test_a_device_is_taken_from_a_pod_of_lower_priority() -> None:
    cluster = full(nodes=2)
    urgent = cluster.pending("urgent", request(), **HIGH)
    result, status = cluster.preempt(urgent)
    assert status.message == ("preemption: found a potential placement for pod on node n0, preempting 1 victims")
    assert result is not None
    # The least important of all victims.
    (candidate,) = cluster.started
    assert (candidate.node_name, [pod.key.name for pod in candidate.victims]) == ("n0", ["n0-1"])
    assert len(cluster.held(urgent)) == 1


@pytest.mark.behaviour("PE-50")
def test_without_the_gate_nobody_goes_for_devices() -> None:
    cluster = full(gates="DRAPreemption=false")
    result, status = cluster.preempt(cluster.pending("urgent", request(), **HIGH))
    assert status.message.endswith("1 Preemption is not helpful for scheduling.")
    assert result is not None
    assert not result.nominated_node_name
    assert not cluster.started


@pytest.mark.behaviour("PE-50")
def test_without_the_gate_the_devices_of_victims_stay_counted() -> None:
    """Processors can be freed, but the device cannot."""
    cluster = DeviceCluster("DRAPreemption=false")
    cluster.add_node("n", "d")
    cluster.run("low", "n", "d", requests={"cpu": "8"})
    urgent = cluster.pending("urgent", request(), requests={"cpu": "8"}, **HIGH)
    assert cluster.victims(urgent, "n") == []
    cluster.preempt(urgent)
    assert not cluster.started
    assert cluster.nominated(cluster.pending("processors", requests={"cpu": "8"}, **HIGH)) == ["low"]


@pytest.mark.behaviour("PE-53")
def test_codes_of_nodes() -> None:
    cluster = full()
    cluster.add_node("equal", "d0")
    cluster.run("equal", "equal", "d0", priority=100)
    cluster.add_node("plain")
    cluster.run("plain", "plain", requests={"cpu": "1"})
    _, found = cluster.place(cluster.pending("urgent", request(), **HIGH))
    codes = {name: status.code for name, status in found.statuses.items()}
    unresolvable = Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert codes == {"n0": Code.UNSCHEDULABLE, "equal": unresolvable, "plain": unresolvable}


@pytest.mark.behaviour("PE-52", "PE-57")
@pytest.mark.parametrize(
    ("users", "expected"),
    [
        pytest.param([("a", "n", 1)], ["a"], id="one user"),
        pytest.param([("a", "n", 1), ("b", "n", 1)], ["a", "b"], id="two users on the node"),
        pytest.param([("a", "n", 1), ("b", "n", 100)], [], id="one of equal priority"),
        pytest.param([("a", "n", 1), ("b", "m", 1)], [], id="one on another node"),
    ],
)
def test_a_shared_claim(users: list[tuple[str, str, int]], expected: list[str]) -> None:
    """A named claim is released with its last user, or not at all."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d")
    cluster.add_node("m")
    cluster.add_claim("shared")
    cluster.allocate("shared", "n", "d", users=[name for name, _, _ in users])
    for name, node, priority in users:
        cluster.run(name, node, claims=["shared"], priority=priority)
    assert cluster.victims(cluster.pending("urgent", request(), **HIGH), "n") == expected


@pytest.mark.behaviour("PE-52")
@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize(
    ("priority", "user_priority", "expected"),
    [
        pytest.param(2, 1, ["binding", "user"], id="more important than the user"),
        pytest.param(1, 2, ["binding", "user"], id="less important than the user"),
        pytest.param(100, 1, [], id="cannot be preempted"),
    ],
)
def test_a_pod_that_is_being_bound_uses_a_claim_before_it_is_reserved(
    priority: int, user_priority: int, expected: list[str], monotonic: bool
) -> None:
    """The user of a claim does not go in vain if another Pod is about to use it, too."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d")
    cluster.add_claim("shared")
    cluster.allocate("shared", "n", "d", users=["user"])
    cluster.run("user", "n", claims=["shared"], priority=user_priority)
    cluster.assume(PodInfo(cluster.pending("binding", claims=["shared"], priority=priority)), "n")
    state, _ = cluster.place(cluster.pending("urgent", request(), **HIGH))
    runner = runner_of(cluster.profile, state, cluster.handle.nominations)
    node = cluster.handle.snapshot.get("n")
    assert node is not None
    found = DryRun(runner, state, (), monotonic=monotonic).on(node)
    victims = found.victims if isinstance(found, Candidate) else ()
    assert sorted(victim.key.name for victim in victims) == expected


@pytest.mark.behaviour("PE-52")
@pytest.mark.parametrize("how", ["gone", "replaced", "other kind"])
def test_users_that_are_no_pods_of_the_node(how: str) -> None:
    """A user whose Pod does not exist any more does not keep a claim; another kind of user does."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d")
    cluster.add_claim("shared")
    cluster.run("a", "n", claims=["shared"])
    cluster.allocate("shared", "n", "d", users=["a", "b"])
    if how == "replaced":
        cluster.run("b", "n", uid="another", priority=100)
    if how == "other kind":
        objects = cluster.informers.informer(RESOURCE_CLAIMS)
        current = objects.get("shared", "default")
        group = ResourceClaimConsumerReference(api_group="example.com", resource="jobs", name="b", uid="uid-b")
        users = (current.status.reserved_for[0], group)
        objects.apply(
            msgspec.structs.replace(current, status=msgspec.structs.replace(current.status, reserved_for=users))
        )
    expected = [] if how == "other kind" else ["a"]
    assert cluster.victims(cluster.pending("urgent", request(), **HIGH), "n") == expected


@pytest.mark.behaviour("PE-52")
@pytest.mark.parametrize(
    ("deleting", "expected"),
    [
        pytest.param({}, [], id="not being deleted"),
        pytest.param({"priority": 100}, ["a"], id="equal priority"),
        pytest.param({"priority": 1, "node": "m"}, ["a"], id="on another node"),
        pytest.param({"priority": 1}, ["a", "b"], id="a victim itself"),
    ],
)
def test_users_that_are_being_deleted(deleting: dict[str, Any], expected: list[str]) -> None:
    """They do not keep a claim; one that can be a victim here counts when it is removed."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d")
    cluster.add_node("m")
    cluster.add_claim("shared")
    cluster.run("a", "n", claims=["shared"])
    at = deleting.pop("node", "n")
    cluster.run("b", at, claims=["shared"], deleted=bool(deleting), **(deleting or HIGH))
    cluster.allocate("shared", "n", "d", users=["a", "b"])
    assert cluster.victims(cluster.pending("urgent", request(), **HIGH), "n") == expected


@pytest.mark.behaviour("PE-55")
def test_the_claims_of_a_victim() -> None:
    """By their real names, each once; what was not created, is not needed, or is deleted, is left out."""
    cluster = DeviceCluster()
    for name in ("named", "victim-generated-x7x2q", "special"):
        cluster.add_claim(name)
    entries: list[Document] = [
        {"name": "named", "resourceClaimName": "named"},
        {"name": "again", "resourceClaimName": "named"},
        {"name": "generated", "resourceClaimTemplateName": "template"},
        {"name": "unneeded", "resourceClaimTemplateName": "template"},
        {"name": "uncreated", "resourceClaimTemplateName": "template"},
        {"name": "deleted", "resourceClaimName": "deleted"},
    ]
    status: Document = {
        "resourceClaimStatuses": [
            {"name": "generated", "resourceClaimName": "victim-generated-x7x2q"},
            {"name": "unneeded"},
        ],
        "extendedResourceClaimStatus": {"resourceClaimName": "special", "requestMappings": []},
    }
    victim = pod_object("victim", resourceClaims=entries, status=status)
    preemption = cluster.devices._preempting.preemption
    assert preemption is not None
    found = [claim.metadata.name for claim in preemption.claims_of(victim)]
    assert found == ["named", "victim-generated-x7x2q", "special"]


@pytest.mark.behaviour("PE-52", "PE-59")
@pytest.mark.parametrize(("selection", "expected"), [({"nodeName": "n"}, ["low"]), ({"allNodes": True}, [])])
def test_a_claim_in_flight_is_released_with_the_pod_that_is_being_bound(
    selection: Document, expected: list[str]
) -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d", selection=selection)
    low = cluster.pending("low", request(), requests={"cpu": "1"})
    state, found = cluster.place(low)
    assert found.node_name == "n"
    assert cluster.devices.reserve(state, low, "n").is_success
    cluster.assume(state.pod_on("n"), "n")
    assert cluster.victims(cluster.pending("urgent", request(), **HIGH), "n") == expected


@pytest.mark.behaviour("PE-56")
def test_removing_and_adding_are_inverses_in_any_order() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1")
    cluster.add_claim("shared")
    cluster.allocate("shared", "n", "d0", users=["a", "b"])
    pods = [cluster.run("a", "n", claims=["shared"]), cluster.run("b", "n", claims=["shared"])]
    pods.append(cluster.run("c", "n", "d1"))
    urgent = cluster.pending("urgent", request(2), **HIGH)
    node = cluster.handle.snapshot.get("n")
    assert node is not None
    keys = [f"{DRIVER}/n/d0", f"{DRIVER}/n/d1"]
    for out, back in itertools.product(itertools.permutations(pods), repeat=2):
        state, _ = cluster.place(urgent)
        state = state.clone()
        own = state["DynamicResources"]
        for pod in out:
            cluster.devices.remove_pod(state, urgent, pod, node)
        assert [own.dry_run.overlay.in_use(key, shareable=False) for key in keys] == [False, False]
        freed = {"a": "d0", "b": "d0", "c": "d1"}
        put_back: set[str] = set()
        for pod in back:
            cluster.devices.add_pod(state, urgent, pod, node)
            put_back.add(freed[pod.key.name])
            # A shared claim comes back with its first user.
            assert [own.dry_run.overlay.in_use(key, shareable=False) for key in keys] == [
                name in put_back for name in ("d0", "d1")
            ]
        assert not own.dry_run.removed
        assert not own.dry_run.released


@pytest.mark.behaviour("PE-58")
def test_the_preemptors_own_claims_are_not_released() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0")
    cluster.add_node("m", "d0")
    cluster.add_claim("shared")
    cluster.run("a", "n", claims=["shared"])
    cluster.allocate("shared", "n", "d0", users=["a"])
    cluster.run("b", "m", "d0", priority=1)
    urgent = cluster.pending("urgent", claims=["shared"], requests={"cpu": "8"}, **HIGH)
    # It wants to share the claim of Pod a, which does not keep it from anything but the processors.
    assert cluster.node_of(urgent) == "n"
    cluster.run("c", "n", requests={"cpu": "1"})
    assert cluster.victims(urgent, "n") == ["c"]
    assert cluster.victims(urgent, "m") == []
    # Nor is the device of the shared claim free for another claim of the Pod.
    both = cluster.pending("both", request(), claims=["shared"], **HIGH)
    assert cluster.victims(both, "n") == []
    cluster.add_node("l", "d0", "d1")
    cluster.add_claim("there")
    cluster.run("e", "l", "d1", claims=["there"])
    cluster.allocate("there", "l", "d0", users=["e"])
    assert cluster.victims(cluster.pending("second", request(), claims=["there"], **HIGH), "l") == ["e"]
    assert cluster.victims(cluster.pending("third", request(2), claims=["there"], **HIGH), "l") == []


@pytest.mark.behaviour("PE-59")
@pytest.mark.parametrize("selection", [{"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": []}}])
def test_devices_that_other_nodes_can_use_are_not_released(selection: Document) -> None:
    cluster = DeviceCluster()
    term = {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}
    if "nodeSelector" in selection:
        selection = {"nodeSelector": {"nodeSelectorTerms": [term]}}
    cluster.add_node("n", "d0", selection=selection)
    cluster.run("a", "n", "d0")
    assert cluster.victims(cluster.pending("urgent", request(), **HIGH), "n") == []


@pytest.mark.behaviour("PE-59")
def test_one_device_that_other_nodes_can_use_keeps_the_whole_claim() -> None:
    cluster = DeviceCluster()
    selection = {"perDeviceNodeSelection": True}
    cluster.add_node("n", {"name": "own", "nodeName": "n"}, {"name": "all", "allNodes": True}, selection=selection)
    cluster.run("a", "n", "own", "all")
    urgent = cluster.pending("urgent", request(), **HIGH)
    assert cluster.victims(urgent, "n") == []
    cluster.deallocate("a")
    cluster.allocate("a", "n", "own", users=["a"])
    cluster.run("b", "n", "all", priority=200)
    assert cluster.victims(urgent, "n") == ["a"]


@pytest.mark.behaviour("PE-55", "PE-60")
def test_extended_resources_by_devices() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0")
    cluster.add_claim("special")
    cluster.allocate("special", "n", "d0", users=["a"])
    status = {
        "extendedResourceClaimStatus": {
            "resourceClaimName": "special",
            "requestMappings": [{"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}],
        }
    }
    cluster.run("a", "n", requests={"example.com/gpu": "1"}, status=status)
    assert cluster.victims(cluster.pending("urgent", request(), **HIGH), "n") == ["a"]
    asking = cluster.pending("asking", requests={"example.com/gpu": "1"}, **HIGH)
    assert cluster.victims(asking, "n") == ["a"]
    cluster.nominated(asking)
    assert cluster.held(asking) == ["d0"]


def share(device: str, amount: str, number: int) -> Document:
    uid = f"00000000-0000-0000-0000-{number:012}"
    return {"device": device, "shareID": uid, "consumedCapacity": {"memory": amount}}


def shared_device(name: str, amount: str) -> Document:
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": {"value": amount}}}


def some(amount: str) -> Document:
    return request(capacity={"requests": {"memory": amount}})


@pytest.mark.behaviour("PE-61")
def test_devices_of_a_former_plugin_are_given_back() -> None:
    """Which of them the Pod has is not known; without it all are free."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1")
    # Since then the plugin has been replaced by the driver: the node itself has no such resource any more.
    cluster.run("old", "n", requests={"example.com/gpu": "2"})
    urgent = cluster.pending("urgent", request(), **HIGH)
    _, found = cluster.place(urgent)
    assert found.statuses["n"].code is Code.UNSCHEDULABLE
    assert cluster.nominated(urgent) == ["old"]
    # No record beyond the nomination is needed: what the Pod has is free when its object is gone.
    cluster.delete("old")
    assert cluster.node_of(urgent) == "n"


@pytest.mark.behaviour("PE-61")
def test_devices_of_a_plugin_are_free_when_their_pod_is_gone() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", amounts={"example.com/card": "2"})
    cluster.run("a", "n", requests={"example.com/card": "1"}, priority=1)
    cluster.run("b", "n", requests={"example.com/card": "1"}, priority=2)
    urgent = cluster.pending("urgent", requests={"example.com/card": "1"}, **HIGH)
    assert cluster.nominated(urgent) == ["a"]
    assert not cluster.held(urgent)
    cluster.delete("a")
    assert cluster.node_of(cluster.pending("equal", requests={"example.com/card": "1"}, **HIGH)) == ""
    assert cluster.node_of(urgent) == "n"


@pytest.mark.behaviour("PE-81")
def test_what_was_lost_in_a_restart_is_recorded_when_it_is_free() -> None:
    """Another Pod of the same priority does not get the device of a Pod whose nomination is all that is left."""
    cluster = full(each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    cluster.handle.nominations.set(PodInfo(urgent), "n0")
    equal = cluster.pending("equal", request(), **HIGH)
    assert cluster.node_of(equal) == ""
    assert not cluster.held(urgent), "the device is in use, so that nobody can take it"
    cluster.delete("n0-0")
    cluster.free("n0-0")
    assert cluster.node_of(equal) == ""
    assert cluster.held(urgent) == ["d0"]
    assert cluster.node_of(cluster.pending("higher", request(), priority=200)) == "n0"
    assert cluster.node_of(urgent) == "n0"
    cluster.handle.nominations.set(PodInfo(urgent), "")
    assert cluster.node_of(equal) == "n0"


@pytest.mark.behaviour("PE-81")
def test_what_a_dry_run_frees_is_not_recorded() -> None:
    cluster = full(each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    cluster.handle.nominations.set(PodInfo(urgent), "n0")
    equal = cluster.pending("equal", request(), **HIGH)
    cluster.preempt(equal)
    assert not cluster.started, "the only device is what the nominated Pod waits for"
    assert not cluster.held(urgent)


@pytest.mark.behaviour("PE-62")
def test_one_of_two_shares_is_enough() -> None:
    """Capacity 10, two Pods use 4 each, and 6 are needed: exactly one of them goes."""
    cluster = DeviceCluster()
    cluster.add_node("n", shared_device("d", "10Gi"))
    cluster.run("a", "n", share("d", "4Gi", 1), priority=2)
    cluster.run("b", "n", share("d", "4Gi", 2), priority=1)
    assert cluster.victims(cluster.pending("urgent", some("6Gi"), **HIGH), "n") == ["b"]
    assert cluster.victims(cluster.pending("huge", some("7Gi"), **HIGH), "n") == ["a", "b"]


def partition(name: str, amount: str) -> Document:
    return {
        "name": name,
        "attributes": {"size": {"string": amount}},
        "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": amount}}}],
    }


def card(cluster: DeviceCluster) -> None:
    """A card of 40Gi that can be used whole or in partitions."""
    devices = [partition("whole", "40Gi"), *(partition(f"part{number}", "10Gi") for number in range(4))]
    counters = [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]
    cluster.add_node("n", *devices, sharedCounters=counters)
    cluster.add_class("whole", f'device.attributes["{DRIVER}"].size == "40Gi"')
    cluster.add_class("part", f'device.attributes["{DRIVER}"].size == "10Gi"')


@pytest.mark.behaviour("PE-62")
def test_all_partitions_of_a_card_go_for_the_whole_card() -> None:
    cluster = DeviceCluster()
    card(cluster)
    for number in range(3):
        cluster.run(f"p{number}", "n", f"part{number}")
    urgent = cluster.pending("urgent", request(device_class="whole"), **HIGH)
    assert cluster.victims(urgent, "n") == ["p0", "p1", "p2"]
    cluster.run("p3", "n", "part3")
    part = cluster.pending("part", request(device_class="part"), **HIGH)
    assert len(cluster.victims(part, "n")) == 1


@pytest.mark.behaviour("PE-63")
def test_admin_access_gives_nothing_and_all_needs_everything() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1")
    cluster.run("a", "n", "d0", priority=1)
    cluster.run("b", "n", "d1", priority=2)
    cluster.run("watcher", "n", {"device": "d0", "adminAccess": True})
    every = cluster.pending(
        "every", {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}, **HIGH
    )
    assert cluster.victims(every, "n") == ["a", "b"]
    assert cluster.victims(cluster.pending("one", request(), **HIGH), "n") == ["a"]
    # Nobody goes for admin access alone: devices in use will do, and more than there are do not exist.
    assert cluster.node_of(cluster.pending("admin", request(2, adminAccess=True), **HIGH)) == "n"
    assert cluster.victims(cluster.pending("greedy", request(3, adminAccess=True), **HIGH), "n") == []


@pytest.mark.behaviour("PE-64")
def test_prioritized_lists() -> None:
    cluster = DeviceCluster()
    cluster.add_class("big", f'device.attributes["{DRIVER}"].size == "big"')
    cluster.add_class("small", f'device.attributes["{DRIVER}"].size == "small"')

    def sized(name: str, size: str) -> Document:
        return {"name": name, "attributes": {"size": {"string": size}}}

    choice: Document = {
        "name": "r",
        "firstAvailable": [{"name": "a", "deviceClassName": "big"}, {"name": "b", "deviceClassName": "small"}],
    }
    cluster.add_node("n", sized("big", "big"), sized("small", "small"))
    cluster.run("on-big", "n", "big", priority=5)
    cluster.add_node("m", sized("small", "small"))
    urgent = cluster.pending("urgent", choice, **HIGH)
    # A lesser alternative is free: nobody goes for the better one.
    assert cluster.node_of(urgent) != ""
    cluster.run("on-small", "n", "small", priority=1)
    cluster.run("elsewhere", "m", "small", priority=9)
    # Whoever is on the better device is reprieved if the lesser one will do.
    assert cluster.victims(urgent, "n") == ["on-small"]
    assert cluster.nominated(urgent) == ["on-small"]
    assert cluster.held(urgent) == ["small"]


@pytest.mark.behaviour("PE-64")
def test_the_best_alternative_without_all_victims_is_kept() -> None:
    """It may be better than the one that decided who has to go."""
    cluster = DeviceCluster()
    for size in ("big", "small"):
        cluster.add_class(size, f'device.attributes["{DRIVER}"].size == "{size}"')
    cluster.add_node("n", *({"name": size, "attributes": {"size": {"string": size}}} for size in ("big", "small")))
    cluster.run("low", "n", "big", "small")
    choice: Document = {
        "name": "r",
        "firstAvailable": [{"name": "a", "deviceClassName": "big"}, {"name": "b", "deviceClassName": "small"}],
    }
    urgent = cluster.pending("urgent", choice, **HIGH)
    state, _ = cluster.place(urgent)
    node = cluster.handle.snapshot.get("n")
    assert node is not None
    runner = runner_of(cluster.profile, state, cluster.handle.nominations)
    copy, without = DryRun(runner, state, ()).without(list(node.pods.values()), node)
    own = copy["DynamicResources"]
    # As if the last Pod that was put back had left the lesser one.
    own.dry_run.overlay.add("other", [msgspec.convert(allocation("n", "big"), AllocationResult)])
    assert runner.run(copy, without).is_success
    assert [item.device for item in own.dry_run.last_found[2][0].devices.results] == ["small"]
    own.dry_run.overlay.discard("other")
    assert cluster.devices.pod_nominated(copy, urgent, without).is_success
    assert cluster.held(urgent) == ["big"]


# --- Nominations. ---


@pytest.mark.behaviour("PE-68", "PE-74")
def test_two_preemptors_share_the_devices_of_one_victim() -> None:
    """The victim has two devices; both preemptors get one, and it is evicted once."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1")
    cluster.run("v", "n", "d0", "d1")
    first = cluster.pending("first", request(), **HIGH)
    second = cluster.pending("second", request(), **HIGH)
    assert cluster.nominated(first) == ["v"]
    assert cluster.nominated(second) == ["v"]
    assert sorted(cluster.held(first) + cluster.held(second)) == ["d0", "d1"]
    third = cluster.pending("third", request(), **HIGH)
    _, status = cluster.preempt(third)
    assert not status.is_success
    # The Pod object is gone, the claim is not deallocated yet: nobody gets anything.
    cluster.delete("v")
    for pod in (first, second, third):
        assert cluster.node_of(pod) == ""
    cluster.free("v")
    assert (cluster.node_of(first), cluster.node_of(second), cluster.node_of(third)) == ("n", "n", "")


@pytest.mark.behaviour("PE-68", "PE-69")
def test_a_surplus_is_free_when_the_claim_is_deallocated() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1")
    cluster.run("v", "n", "d0", "d1")
    first = cluster.pending("first", request(), **HIGH)
    cluster.nominated(first)
    cluster.delete("v")
    second = cluster.pending("second", request(), **HIGH)
    low = cluster.pending("low", request())
    assert (cluster.node_of(second), cluster.node_of(low)) == ("", "")
    result, status = cluster.preempt(second)
    assert result is not None
    assert not status.is_success
    cluster.free("v")
    assert cluster.held(first) == ["d0"]
    state, found = cluster.place(second)
    assert found.node_name == "n"
    (given,) = state["DynamicResources"].results.found_on("n")
    assert given.devices.results[0].device == "d1"


@pytest.mark.behaviour("PE-69")
def test_a_device_that_is_free_already_can_be_used_beside_claims_that_are_going() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1", "d2")
    cluster.run("v", "n", "d0", "d1")
    cluster.run("w", "n", "d2", priority=200)
    first = cluster.pending("first", request(2), **HIGH)
    cluster.nominated(first)
    cluster.delete("v")
    cluster.delete("w")
    cluster.free("w")
    state, found = cluster.place(cluster.pending("second", request(), **HIGH))
    assert found.node_name == "n"
    (given,) = state["DynamicResources"].results.found_on("n")
    assert given.devices.results[0].device == "d2"


@pytest.mark.behaviour("PE-62", "PE-74")
def test_another_victim_may_go_while_a_share_is_settling() -> None:
    """80Gi, two Pods with 40Gi each: the first preemptor takes one's place, the second the other's."""
    cluster = DeviceCluster()
    cluster.add_node("n", shared_device("d", "80Gi"))
    cluster.run("v1", "n", share("d", "40Gi", 1), priority=1)
    cluster.run("v2", "n", share("d", "40Gi", 2), priority=2)
    assert cluster.nominated(cluster.pending("first", some("40Gi"), **HIGH)) == ["v1"]
    cluster.delete("v1")
    assert cluster.nominated(cluster.pending("second", some("40Gi"), **HIGH)) == ["v2"]


@pytest.mark.behaviour("PE-70", "PE-71", "PE-82")
def test_a_preemptor_waits_until_the_claims_of_its_victims_are_deallocated() -> None:
    """With a claim controller that is down it waits with its node, and nobody else is evicted."""
    cluster = full(nodes=2, each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    assert cluster.nominated(urgent) == ["n0-0"]
    cluster.delete("n0-0")
    for _ in range(3):
        result, status = cluster.preempt(urgent)
        assert (result, status.message) == (None, f"preemption: {SETTLING}")
    assert cluster.handle.nominations.node_of("uid-urgent") == "n0"
    cluster.free("n0-0")
    assert cluster.node_of(urgent) == "n0"
    # Somebody of higher priority was faster: the Pod may preempt again at once.
    cluster.run("faster", "n0", "d0", priority=200)
    assert cluster.nominated(urgent) == ["n1-0"]
    assert len(cluster.started) == 2


@pytest.mark.behaviour("PE-67", "PE-72")
def test_what_was_kept_ends_with_the_nomination() -> None:
    cluster = full(each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    cluster.nominated(urgent)
    cluster.delete("n0-0")
    cluster.handle.nominations.set(PodInfo(urgent), "")
    assert cluster.held(urgent) == []
    # Before the claim is deallocated, its own event will come.
    assert not cluster.notified
    assert cluster.devices.check_preemption(urgent, cluster.handle.snapshot.nodes[0]).reasons == (SETTLING,)
    cluster.free("n0-0")
    cluster.run("n0-0", "n0", "d0")
    cluster.nominated(urgent)
    cluster.delete("n0-0")
    cluster.free("n0-0")
    low = cluster.pending("low", request())
    assert cluster.node_of(low) == ""
    cluster.handle.nominations.set(PodInfo(urgent), "")
    (event,) = cluster.notified
    assert (event[0].label, event[1].status.allocation is None) == ("ResourceClaimNominationEnded", False)
    assert cluster.node_of(low) == "n0"


@pytest.mark.behaviour("PE-67", "PE-71")
def test_an_eviction_that_failed_keeps_nobody_waiting() -> None:
    """The claims of a Pod that is not evicted after all are not waited for."""
    cluster = full(each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    cluster.nominated(urgent)
    assert cluster.devices.check_preemption(urgent, cluster.handle.snapshot.nodes[0]).is_success
    cluster.handle.nominations.set(PodInfo(urgent), "")
    cluster.started.clear()
    assert cluster.nominated(urgent) == ["n0-0"]


@pytest.mark.behaviour("PE-67")
def test_a_pod_that_is_placed_has_no_record_any_more_and_others_may_get_what_it_did_not_take() -> None:
    cluster = full(each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    cluster.nominated(urgent)
    cluster.delete("n0-0")
    cluster.free("n0-0")
    cluster.handle.nominations.remove("uid-urgent")
    assert cluster.held(urgent) == []
    assert [event.label for event, _, _ in cluster.notified] == ["ResourceClaimNominationEnded"]


@pytest.mark.behaviour("PE-72")
def test_hints_for_preemptors() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1")
    cluster.add_node("m", "d0")
    for name, node, device in (("a", "n", "d0"), ("b", "n", "d1")):
        cluster.run(name, node, device)
    cluster.run("c", "m", "d0", priority=1)
    both = cluster.pending("both", request(2), **HIGH)
    one = cluster.pending("one", request(), **HIGH)
    cluster.nominated(both)
    cluster.nominated(one)
    cluster.delete("a")
    cluster.delete("b")
    cluster.delete("c")
    objects = cluster.informers.informer(RESOURCE_CLAIMS)
    other = cluster.pending("other", request())

    def woken(name: str) -> list[str]:
        """Who is tried again when the claim is deallocated."""
        old = objects.get(name, "default")
        hints = cluster.devices._hints
        waiting = {pod.metadata.name or "": set(hints.keys_of_pod(pod)) for pod in (both, one, other)}
        cluster.free(name)
        keys = set(hints.keys_of_claim(old, None) or ())
        assert keys, "the claim of a victim does not concern everybody"
        pods = {"both": both, "one": one, "other": other}
        queued = [each for each, pod in pods.items() if hints.claim_changed(pod, old, None).value == "Queue"]
        # The quick way to find the Pods concerned leaves none out, and no preemptor of another node in.
        assert all(keys & waiting[each] for each in queued)
        assert not any(keys & waiting[each] for each in ("both", "one") if each not in queued and name == "c")
        return queued

    assert woken("a") == ["other"]
    assert woken("b") == ["both", "other"]
    assert woken("c") == ["one", "other"]


@pytest.mark.behaviour("PE-74")
def test_a_higher_priority_ignores_the_record() -> None:
    cluster = full(each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    cluster.nominated(urgent)
    cluster.delete("n0-0")
    cluster.free("n0-0")
    assert cluster.node_of(cluster.pending("equal", request(), **HIGH)) == ""
    assert cluster.node_of(cluster.pending("higher", request(), priority=101)) == "n0"


@pytest.mark.behaviour("PE-75")
def test_nobody_goes_if_it_does_not_help() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1")
    cluster.run("low", "n", "d0")
    cluster.run("equal", "n", "d1", priority=100)
    assert cluster.victims(cluster.pending("urgent", request(2), **HIGH), "n") == []
    # Nor a Pod without devices that matter.
    cluster.run("plain", "n", requests={"cpu": "1"})
    assert cluster.victims(cluster.pending("one", request(), **HIGH), "n") == ["low"]


@pytest.mark.behaviour("PE-75")
def test_processors_and_devices_together() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1", cpu="4")
    cluster.run("device", "n", "d0", priority=5)
    cluster.run("both", "n", "d1", requests={"cpu": "2"}, priority=3)
    cluster.run("processors", "n", requests={"cpu": "2"}, priority=1)
    urgent = cluster.pending("urgent", request(), requests={"cpu": "2"}, **HIGH)
    assert cluster.victims(urgent, "n") in (["both"], ["both", "processors"])
    found = cluster.dry_run(urgent, "n")
    assert not isinstance(found, Status)


@pytest.mark.behaviour("PE-80")
def test_optional_claims_evict_nobody() -> None:
    cluster = full(each=1)
    cluster.add_claim("wish")
    entries = [{"name": "wish", "resourceClaimName": "wish", "optional": True}]
    optional = pod_object("urgent", resourceClaims=entries, **HIGH)
    assert cluster.node_of(optional) == "n0"


@pytest.mark.behaviour("PE-83")
def test_a_recorded_device_that_is_gone() -> None:
    """The attempt fails on the node, and the Pod may preempt again."""
    cluster = full(nodes=2, each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    assert cluster.nominated(urgent) == ["n0-0"]
    cluster.delete("n0-0")
    cluster.free("n0-0")
    taint = {"taints": [{"key": "broken", "effect": "NoSchedule"}]}
    cluster.add_node("n0", {"name": "d0"} | taint)
    assert cluster.nominated(urgent) == ["n1-0"]


@pytest.mark.behaviour("PE-54")
@pytest.mark.parametrize("reason", [StopReason.STEPS, StopReason.DEADLINE])
def test_nobody_goes_on_a_guess(reason: StopReason, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is given up, after too many steps or too long, counts as one that finds nothing."""
    cluster = full(each=1)
    urgent = cluster.pending("urgent", request(), **HIGH)
    assert cluster.victims(urgent, "n0") == ["n0-0"]

    state, found = cluster.place(urgent)

    def give_up(*_arguments: object, **_words: object) -> None:
        raise SearchStoppedError(reason, "too many", 7)

    monkeypatch.setattr(cluster.devices._filtering.devices._allocator, "_search", give_up)
    result, status = cluster.post_filter(state, urgent, found.statuses)
    assert status.code is Code.UNSCHEDULABLE
    assert "1 cannot allocate all claims (search given up after 7 steps)" in status.message
    assert result is not None
    assert not result.nominated_node_name
    assert not cluster.started


def searches(cluster: DeviceCluster, pod: Pod, *, monotonic: bool) -> int:
    """How often the allocator searches in a dry run that finds victims on node n."""
    state, _ = cluster.place(pod)
    node = cluster.handle.snapshot.get("n")
    assert node is not None
    runner = runner_of(cluster.profile, state, cluster.handle.nominations)
    with mock.patch.object(Allocator, "_search", autospec=True, side_effect=Allocator._search) as search:
        assert isinstance(DryRun(runner, state, (), monotonic=monotonic).on(node), Candidate)
    return search.call_count


@pytest.mark.behaviour("PE-84")
@pytest.mark.parametrize("seed", range(20))
def test_how_often_the_allocator_searches_on_a_node(seed: int) -> None:
    """Without all potential victims, and once for each of them."""
    choice = random.Random(seed)
    cluster = DeviceCluster()
    count, plain = choice.randint(1, 8), choice.randint(0, 8)
    cluster.add_node("n", *(f"d{number}" for number in range(count)), cpu="100")
    for number in range(count):
        cluster.run(f"p{number}", "n", f"d{number}", priority=choice.randint(0, 3))
    for number in range(plain):
        cluster.run(f"plain{number}", "n", requests={"cpu": "1"}, priority=choice.randint(0, 3))
    urgent = cluster.pending("urgent", request(choice.randint(1, count)), **HIGH)
    assert searches(cluster, urgent, monotonic=False) <= 1 + count
    # One or two more if many are put back at once, and that is too many.
    assert searches(cluster, urgent, monotonic=True) <= 3 + count + plain


@pytest.mark.behaviour("PE-84")
@pytest.mark.parametrize("monotonic", [False, True])
def test_no_search_for_pods_whose_devices_do_not_matter(monotonic: bool) -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", "d", cpu="100")
    cluster.run("holder", "n", "d", priority=5)
    for number in range(16):
        cluster.run(f"plain{number}", "n", requests={"cpu": "1"}, priority=number)
    assert searches(cluster, cluster.pending("urgent", request(), **HIGH), monotonic=monotonic) == 2


@pytest.mark.behaviour("PE-84", "SC-10")
def test_dry_runs_are_cached_for_preemptors_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = full(nodes=6, each=2)
    runs: list[str] = []
    original = DryRun.on

    def counted(self: DryRun, node: NodeInfo) -> Candidate | Status:
        runs.append(node.name)
        return original(self, node)

    monkeypatch.setattr(DryRun, "on", counted)
    assert cluster.nominated(cluster.pending("first", request(), **HIGH)) == ["n0-1"]
    # Each node once.
    assert runs == ["n0", "n1", "n2", "n3", "n4", "n5"]
    runs.clear()
    cluster.nominated(cluster.pending("second", request(), **HIGH))
    # What has changed.
    assert runs == ["n0"]
    runs.clear()
    cluster.handle.nominations.set(PodInfo(cluster.pending("nominee", **HIGH)), "n0")
    cluster.nominated(cluster.pending("third", request(), **HIGH))
    assert runs == ["n0"]
    runs.clear()
    cluster.nominated(cluster.pending("different", request(2), **HIGH))
    assert len(set(runs)) == 6


# What nobody has a log of -> whether the chosen node is tried again.
UNLOGGED: dict[str, tuple[Callable[[DeviceCluster], None], bool]] = {
    "nothing": (lambda _: None, False),
    "the same users": (lambda cluster: cluster.allocate("n1-low", "n1", "d0", users=["n1-low"]), True),
    "another user": (lambda cluster: cluster.allocate("n1-low", "n1", "d0", users=["n1-low", "n2-low"]), True),
    "a claim elsewhere": (lambda cluster: cluster.allocate("n2-low", "n2", "d0", users=["n2-low", "n1-low"]), False),
}


@pytest.mark.behaviour("PE-84")
@pytest.mark.parametrize("case", UNLOGGED)
def test_when_a_cached_result_is_confirmed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, is_repeated = UNLOGGED[case]
    cluster = DeviceCluster()
    for name in ("n0", "n1", "n2"):
        cluster.add_node(name, "d0")
        cluster.run(f"{name}-low", name, "d0")
    assert cluster.nominated(cluster.pending("first", request(), **HIGH)) == ["n0-low"]
    change(cluster)
    runs: list[str] = []
    original = DryRun.on

    def counted(self: DryRun, node: NodeInfo) -> Candidate | Status:
        runs.append(node.name)
        return original(self, node)

    monkeypatch.setattr(DryRun, "on", counted)
    cluster.nominated(cluster.pending("second", request(), **HIGH))
    assert runs == ["n0", *(["n1"] if is_repeated else [])]


@pytest.mark.behaviour("PE-84")
def test_a_cached_result_is_confirmed_for_a_preemptor_that_uses_a_claim_of_a_victim() -> None:
    """Its own claim is not released; without a node selector, it does not tell the Pod from others of its class."""
    cluster = DeviceCluster()
    claims = cluster.informers.informer(RESOURCE_CLAIMS)
    for name in ("n0", "n1", "n2"):
        cluster.add_node(name, "d0")
        cluster.run(f"{name}-low", name, "d0")
        held = claims.get(f"{name}-low", "default")
        anywhere = msgspec.structs.replace(held.status.allocation, node_selector=None)
        claims.apply(msgspec.structs.replace(held, status=msgspec.structs.replace(held.status, allocation=anywhere)))
    assert cluster.nominated(cluster.pending("first", request(), **HIGH)) == ["n0-low"]
    assert cluster.nominated(cluster.pending("second", request(), claims=["n1-low"], **HIGH)) == ["n2-low"]
    assert cluster.nominated(cluster.pending("third", request(), **HIGH)) == ["n1-low"]


@pytest.mark.behaviour("PE-84")
def test_a_result_from_before_the_last_group_was_deleted_is_not_used() -> None:
    """Until then the priority of a Pod was that of its group."""
    cluster = DeviceCluster()
    groups, key = cluster.handle.pod_groups, NamespacedName("default", "team")
    for name in ("n0", "n1"):
        cluster.add_node(name, "d0", "d1")
        cluster.run(f"{name}-low", name, "d0", priority=1)
        cluster.run(f"{name}-member", name, "d1", priority=500, schedulingGroup={"podGroupName": "team"})
    groups.set(key, pod_group(priority=0))
    assert cluster.nominated(cluster.pending("first", request(), priority=100)) == ["n0-member"]
    groups.set(key, None)
    victims = [cluster.nominated(cluster.pending(name, request(), priority=100)) for name in ("second", "third")]
    assert sorted(victims) == [["n0-low"], ["n1-low"]]


@pytest.mark.behaviour("PE-84")
def test_a_claim_in_flight_is_part_of_what_a_result_depends_on() -> None:
    """It may pass from one Pod of a group to another, which changes no allocation."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d")
    cluster.add_claim("shared")
    cluster.run("low", "n", claims=["shared"])
    cluster.run("high", "n", claims=["shared"], **HIGH)
    tracker = cluster.devices._tracker
    shared = cluster.informers.informer(RESOURCE_CLAIMS).get("shared", "default")
    tracker.start_in_flight(shared, msgspec.convert(allocation("n", "d"), AllocationResult), "uid-low")
    tracker.share_in_flight(shared, "uid-high")

    def dependencies() -> Any:
        state, _ = cluster.place(cluster.pending("urgent", request(), **HIGH))
        node = cluster.handle.snapshot.get("n")
        assert node is not None
        return cluster.devices.dry_run_dependencies(state, [node.pods["uid-low"]])

    before = dependencies()
    assert before == dependencies()
    tracker.end_in_flight(shared, "uid-low")
    assert before != dependencies()


@pytest.mark.behaviour("PE-75", "PE-84")
def test_a_cached_result_is_confirmed_before_anybody_goes() -> None:
    """Another user of a shared claim does not change the node; the cached dry run does not know of it."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d")
    cluster.add_node("m", "d")
    cluster.add_claim("shared")
    cluster.run("a", "n", claims=["shared"], priority=1)
    cluster.allocate("shared", "n", "d", users=["a"])
    cluster.run("b", "m", "d", priority=5)
    assert cluster.nominated(cluster.pending("first", request(), **HIGH)) == ["a"]
    cluster.handle.nominations.set(PodInfo(cluster.pending("first", **HIGH)), "")
    cluster.run("high", "m", claims=["shared"], priority=100)
    cluster.allocate("shared", "n", "d", users=["a", "high"])
    assert cluster.nominated(cluster.pending("second", request(), **HIGH)) == ["b"]


@pytest.mark.behaviour("PE-75", "PE-84")
def test_a_cached_result_depends_on_pods_that_were_put_back_after_the_victim() -> None:
    """The eviction of the least important Pod did not help, as long as a Pod elsewhere used its claim, too."""
    cluster = DeviceCluster()
    cluster.add_node("n", "d0", "d1")
    cluster.add_node("m", "d")
    cluster.run("important", "n", "d0", priority=5)
    cluster.add_claim("shared")
    cluster.run("least", "n", claims=["shared"], priority=1)
    cluster.run("elsewhere", "m", claims=["shared"], priority=100)
    cluster.allocate("shared", "n", "d1", users=["least", "elsewhere"])
    cluster.run("low", "m", "d", priority=0)
    assert cluster.victims(cluster.pending("probe", request(), **HIGH), "n") == ["important"]
    # The result on the other node is cached, too.
    assert cluster.nominated(cluster.pending("first", request(), **HIGH)) == ["low"]
    cluster.allocate("shared", "n", "d1", users=["least"])
    assert cluster.nominated(cluster.pending("second", request(), **HIGH)) == ["least"]


@pytest.mark.behaviour("PE-19")
@pytest.mark.parametrize("seed", range(40))
def test_putting_back_several_at_once_is_the_same_as_one_by_one(seed: int) -> None:
    choice = random.Random(seed)
    cluster = DeviceCluster()
    cluster.add_node("n", *(f"d{number}" for number in range(6)), cpu="12")
    for number in range(6):
        devices = [f"d{number}"] if choice.random() < 0.7 else []
        amount = {"cpu": str(choice.randint(1, 2))}
        cluster.run(f"p{number}", "n", *devices, requests=amount, priority=choice.randint(0, 3))
    count, cpu = choice.randint(1, 4), choice.randint(1, 8)
    urgent = cluster.pending("urgent", request(count), requests={"cpu": str(cpu)}, **HIGH)
    state, found = cluster.place(urgent)
    if isinstance(found, Placement):
        return
    node = cluster.handle.snapshot.get("n")
    assert node is not None
    runner = runner_of(cluster.profile, state, cluster.handle.nominations)
    results = [DryRun(runner, state, (), monotonic=monotonic).on(node) for monotonic in (False, True)]
    names = [[pod.key.name for pod in item.victims] if isinstance(item, Candidate) else item for item in results]
    assert names[0] == names[1]
