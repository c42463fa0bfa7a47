"""From registration to a container's options, over real sockets."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dray.driver.device_plugin import Device
from dray.node.devices.device_manager import DeviceSettings
from dray.node.resource_manager import HostDevice, Rejection, ResourceError
from dray.node.topology.hints import Policy, Scope
from dray.node.topology.topology_manager import Alignment
from tests.e2e.node_devices.harness import Foo, node, plugin, until
from tests.unit.node.devices.builders import FOO, asking, container, pod, sidecar


@pytest.mark.behaviour("DP-01", "DP-02", "DP-08", "DP-16", "DP-22", "DP-24")
async def test_a_container_gets_devices(folder: str) -> None:
    foo = Foo("a", "b", Device("c", healthy=False))
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(3, 2)
        assert await here.admit(asking("u1", 2)) is None
        assert foo.allocated == [["a", "b"]]
        options = here.manager.container_options(here.pods.items["u1"], "main")
        assert options.envs == {"FOO": "a,b"}
        assert options.devices == (HostDevice("/dev/a", "/dev/a", "rw"), HostDevice("/dev/b", "/dev/b", "rw"))
        assert await here.admit(asking("u2")) == Rejection(
            "UnexpectedAdmissionError",
            "Allocate failed due to requested number of devices unavailable for vendor.com/foo. "
            "Requested: 1, Available: 0, which is unexpected",
        )
        await here.manager.release(here.pods.items["u1"])
        assert await here.admit(asking("u3")) is None
        assert here.held("u3") == ["a"]


class Careful(Foo):
    """Has preferences and wants to know of starts."""

    def __init__(self, *ids: str | Device) -> None:
        super().__init__(*ids)
        self.asked: list[tuple[list[str], list[str], int]] = []
        self.started: list[list[str]] = []
        self.preference: list[str] = []
        self.pre_start_failure = ""

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        self.asked.append((list(available), list(must_include), size))
        return self.preference

    def pre_start(self, ids: Sequence[str]) -> None:
        if self.pre_start_failure:
            raise RuntimeError(self.pre_start_failure)
        self.started.append(list(ids))


@pytest.mark.behaviour("DP-28")
async def test_the_plugin_is_asked_and_its_answer_is_a_hint(folder: str) -> None:
    foo = Careful("a", "b", "c", "d")
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(4, 4)
        foo.preference = ["d", "nonsense"]
        assert await here.admit(asking("u1", 2)) is None
        assert foo.asked == [(["a", "b", "c", "d"], [], 2)]
        assert foo.allocated == [["a", "d"]]
        foo.preference = ["d"]
        assert await here.admit(asking("u2", 1)) is None
        assert foo.asked[1:] == [(["b", "c"], [], 1)]
        assert here.held("u2") == ["b"]


@pytest.mark.behaviour("DP-28")
async def test_a_plugin_without_preferences_is_not_asked(folder: str) -> None:
    async with node(folder) as here, plugin(folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        endpoint = here.devices.plugin_handler.get(FOO)
        assert endpoint is not None
        assert not endpoint.options.get_preferred_allocation_available
        assert not endpoint.options.pre_start_required
        assert await here.admit(asking("u1")) is None


@pytest.mark.behaviour("DP-33")
async def test_pre_start_comes_before_each_start_and_can_hold_it_back(folder: str) -> None:
    foo = Careful("a", "b")
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(2, 2)
        pod_ = asking("u1", 2)
        assert await here.admit(pod_) is None
        for _ in range(2):
            await here.manager.pre_start(pod_, "main")
        assert foo.started == [["a", "b"], ["a", "b"]]
        foo.pre_start_failure = "too hot"
        with pytest.raises(ResourceError) as caught:
            await here.manager.pre_start(pod_, "main")
        assert caught.value.reason == "Failed"
        assert caught.value.message == (
            "device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown desc = too hot"
        )


@pytest.mark.behaviour("DP-23", "DP-31")
async def test_a_failed_allocate_rejects_the_pod_and_gives_the_devices_back(folder: str) -> None:
    foo = Foo("a")
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(1, 1)
        foo.failure = "broken"
        assert await here.admit(asking("u1")) == Rejection(
            "UnexpectedAdmissionError",
            "Allocate failed due to rpc error: code = Unknown desc = broken, which is unexpected",
        )
        foo.failure = ""
        assert await here.admit(asking("u2")) is None
        assert here.held("u2") == ["a"]


@pytest.mark.behaviour("DP-23")
async def test_a_rejected_pod_holds_nothing(folder: str) -> None:
    async with node(folder) as here, plugin(folder, Foo("a", "b")):
        await here.until_amounts(2, 2)
        greedy = pod("u1", [container("one", {FOO: 1}), container("two", {FOO: 2})])
        assert await here.admit(greedy) is not None
        assert await here.admit(asking("u2", 2)) is None


@pytest.mark.behaviour("DP-29", "DP-30")
async def test_init_containers_leave_their_devices(folder: str) -> None:
    foo = Foo("a", "b", "c")
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(3, 3)
        item = pod(
            "u1",
            [container("main", {FOO: 2})],
            [container("first", {FOO: 2}), sidecar("side", {FOO: 1}), container("second", {FOO: 1})],
        )
        assert await here.admit(item) is None
        held = {name: here.held("u1", name) for name in ("first", "side", "second", "main")}
        assert held == {"first": ["a", "b"], "side": ["a"], "second": ["b"], "main": ["b", "c"]}
        assert foo.allocated == [["a", "b"], ["a"], ["b"], ["b", "c"]]


@pytest.mark.behaviour("DP-34")
async def test_a_plugin_that_comes_after_admission_still_serves_the_pod(folder: str) -> None:
    async with node(folder) as here:
        item = asking("u1")
        assert await here.admit(item) is None
        async with plugin(folder, Foo("a", "b")):
            await here.until_amounts(2, 2)
            with pytest.raises(ResourceError) as caught:
                here.manager.container_options(item, "main")
            assert caught.value.message == (
                "no devices found allocated in local cache for pod u1, container main, resource vendor.com/foo"
            )
            await until(lambda: here.held("u1") == ["a"])
            assert here.manager.container_options(item, "main").envs == {"FOO": "a"}
            other = asking("u2")
            here.pods.add(other)
            await here.manager.prepare(other)
            assert here.manager.container_options(other, "main").envs == {"FOO": "b"}


@pytest.mark.behaviour("DP-35")
async def test_devices_of_pods_that_are_gone_come_back_when_the_next_one_asks(folder: str) -> None:
    ready = [True]
    async with node(folder, ready=lambda: ready[0]) as here, plugin(folder, Foo("a")):
        await here.until_amounts(1, 1)
        assert await here.admit(asking("u1")) is None
        here.pods.remove("u1")
        assert await here.admit(asking("u2")) is None
        assert (here.held("u1"), here.held("u2")) == ([], ["a"])
        ready[0] = False
        here.pods.remove("u2")
        assert await here.admit(asking("u3")) is not None
        assert here.held("u2") == ["a"]


@pytest.mark.behaviour("DP-37")
async def test_the_time_of_allocate_is_measured(folder: str) -> None:
    foo = Foo("a")
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(1, 1)
        assert await here.admit(asking("u1")) is None
        count = "kubelet_device_plugin_alloc_duration_seconds_count"
        assert here.metrics.value(count, {"resource_name": FOO}) == 1
        # As in kubelet, calls that fail count as well.
        await here.manager.release(here.pods.items["u1"])
        foo.failure = "broken"
        assert await here.admit(asking("u2")) is not None
        assert here.metrics.value(count, {"resource_name": FOO}) == 2


@pytest.mark.behaviour("DP-18", "DP-19")
@pytest.mark.parametrize("fails", [True, False])
async def test_health_of_devices_in_use(folder: str, fails: bool) -> None:
    foo = Foo("a", "b")
    async with node(folder, settings=DeviceSettings(fail_unhealthy=fails)) as here, plugin(folder, foo):
        await here.until_amounts(2, 2)
        item = asking("u1")
        assert await here.admit(item) is None
        here.changes.clear()
        foo.set(Device("a"), Device("b", healthy=False))
        await here.until_amounts(2, 1)
        assert ("u1",) not in here.changes
        foo.set(Device("a", healthy=False), Device("b", healthy=False))
        await here.until_amounts(2, 0)
        await until(lambda: ("u1",) in here.changes)
        status = [{"name": FOO, "resources": [{"resourceID": "a", "health": "Unhealthy"}]}]
        assert list(here.manager.container_resources(item, "main")) == status
        assert (here.manager.check_health(item) is not None) == fails
        assert here.held("u1") == ["a"]
        foo.set(Device("a"), Device("b"))
        await here.until_amounts(2, 2)
        assert here.manager.check_health(item) is None


@pytest.mark.behaviour("DP-13")
async def test_a_plugin_that_goes_fails_no_pod(folder: str) -> None:
    async with node(folder) as here:
        async with plugin(folder, Foo("a")):
            await here.until_amounts(1, 1)
            item = asking("u1")
            assert await here.admit(item) is None
        await here.until_amounts(1, 0)
        assert here.manager.check_health(item) is None
        assert here.manager.container_options(item, "main").envs == {"FOO": "a"}
        assert here.manager.container_resources(item, "main")[0]["resources"][0]["health"] == "Unknown"


@pytest.mark.behaviour("DP-21")
async def test_what_is_in_use_counts_as_allocatable_for_those_who_have_it(folder: str) -> None:
    foo = Foo("a", "b")
    async with node(folder) as here, plugin(folder, foo):
        await here.until_amounts(2, 2)
        item = asking("u1", 2)
        assert await here.admit(item) is None
        foo.set(Device("a"))
        await here.until_amounts(1, 1)
        assert here.devices.effective_allocatable(item, {FOO: 1, "cpu": 4}) == {FOO: 2, "cpu": 4}
        assert here.devices.effective_allocatable(asking("u2"), {FOO: 1}) == {FOO: 1}


@pytest.mark.behaviour("DP-39")
async def test_devices_and_numa_nodes(folder: str) -> None:
    foo = Foo(*(Device(f"d{node_}{number}", numa_nodes=(node_,)) for node_ in (0, 1) for number in (0, 1, 2)))
    aligned = Alignment(Policy.SINGLE_NUMA_NODE, Scope.CONTAINER, 0b11)
    async with node(folder, alignment=aligned) as here, plugin(folder, foo):
        await here.until_amounts(6, 6)
        assert await here.admit(asking("u1", 2)) is None
        assert here.held("u1") == ["d00", "d01"]
        assert await here.admit(asking("u2", 3)) is None
        assert here.held("u2") == ["d10", "d11", "d12"]
        assert await here.admit(asking("u3", 2)) == Rejection(
            "TopologyAffinityError", "Resources cannot be allocated with Topology locality"
        )
        assert await here.admit(asking("u4", 1)) is None
        assert here.held("u4") == ["d02"]
