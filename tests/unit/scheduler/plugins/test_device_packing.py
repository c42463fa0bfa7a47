"""Packing: which device of a node is taken, which node is preferred, and what is learnt from the Pods."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.openb import objects
from bench.openb.trace import TraceNode, TracePod
from dray.allocator.device_policy import BEST_FIT, DEVICE_POLICIES, FIRST, FRAGMENTATION
from dray.allocator.fills import typical_fills
from dray.allocator.fragmentation import FragmentationModel, NodeState
from dray.allocator.typical_pods import TypicalPods
from dray.allocator.units import PodKind, UnitTable
from dray.api.codec import from_document
from dray.api.types.core_v1 import Node, Pod
from dray.api.types.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from dray.client.resources import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from dray.scheduler.config import ConfigError, ProfileConfig
from dray.scheduler.named_profiles import NAMED_PROFILES
from dray.scheduler.registry import DEFAULT_PLUGINS
from dray.sim.placer import PlacedPod, Placer

PACK = NAMED_PROFILES["pack"]


def placer_for(profile: ProfileConfig, *nodes: TraceNode) -> Placer:
    placer = Placer(profile)
    placer.put(DEVICE_CLASSES, from_document(DeviceClass, objects.device_class()))
    for node in nodes:
        placer.put(NODES, from_document(Node, objects.node(node)))
        for item in objects.slices(node):
            placer.put(RESOURCE_SLICES, from_document(ResourceSlice, item))
    return placer


def place(placer: Placer, number: int, pod: TracePod, spec: dict[str, Any] | None = None) -> tuple[str, list[str]]:
    """Return the node and the devices of a new Pod."""
    names = {"name": f"claim-{number}", "namespace": objects.NAMESPACE, "uid": f"claim-{number}"}
    claims = [from_document(ResourceClaim, {"metadata": names, "spec": spec or objects.claim_spec(pod)})]
    document = objects.pod(number, pod, {"resourceClaimName": f"claim-{number}"} if pod.gpus else None)
    document["metadata"]["uid"] = f"pod-{number}"
    found = placer.place(from_document(Pod, document), claims if pod.gpus else ())
    assert isinstance(found, PlacedPod), found
    allocated = [claim.status.allocation for claim in found.claims]
    devices = [item.device for allocation in allocated if allocation for item in allocation.devices.results]
    return found.pod.spec.node_name or "", devices


def share(milli: int, gpus: int = 1, models: tuple[str, ...] = ()) -> TracePod:
    return TracePod(1000, 1024, gpus, milli, models)


NODE = TraceNode("n", 64_000, 65_536, 2, "T4")


@pytest.mark.parametrize(("policy", "last"), [(FIRST, "gpu-0"), (BEST_FIT, "gpu-1"), (FRAGMENTATION, "gpu-1")])
@pytest.mark.behaviour("PK-02")
def test_which_share_is_taken(policy: str, last: str) -> None:
    placer = placer_for(ProfileConfig(args={"DynamicResources": {"devicePolicy": policy}}), NODE)
    assert place(placer, 0, share(400)) == ("n", ["gpu-0"])
    assert place(placer, 1, share(700)) == ("n", ["gpu-1"])
    assert place(placer, 2, share(300)) == ("n", [last])
    if policy != FIRST:
        # Because the other device was left alone.
        assert place(placer, 3, share(600)) == ("n", ["gpu-0"])


@pytest.mark.parametrize("policy", DEVICE_POLICIES)
def test_several_devices_of_one_request_differ(policy: str) -> None:
    placer = placer_for(ProfileConfig(args={"DynamicResources": {"devicePolicy": policy}}), NODE)
    place(placer, 0, share(400))
    _, devices = place(placer, 1, share(500, gpus=2))
    assert sorted(devices) == ["gpu-0", "gpu-1"]


def partitioned_card() -> dict[str, Any]:
    """Return a slice: a card of four memory slices, its halves and quarters, two quarters of different halves first."""
    sets = {"full": (0, 1, 2, 3), "half-0": (0, 1), "half-1": (2, 3)}
    sets |= {f"quarter-{number}": (number,) for number in (0, 2, 1, 3)}
    devices = [
        {
            "name": name,
            "attributes": {"size": {"int": len(slices)}},
            "consumesCounters": [
                {"counterSet": "card", "counters": {f"slice-{number}": {"value": "1"} for number in slices}}
            ],
        }
        for name, slices in sets.items()
    ]
    counters = [{"name": "card", "counters": {f"slice-{number}": {"value": "1"} for number in range(4)}}]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 2}
    common = {"driver": objects.DRIVER, "nodeName": "n", "pool": pool}
    return {"devices": {**common, "devices": devices}, "counters": {**common, "sharedCounters": counters}}


def partition(size: int) -> dict[str, Any]:
    selector = {"cel": {"expression": f'device.attributes["{objects.DRIVER}"].size == {size}'}}
    exactly = {"deviceClassName": objects.CLASS, "selectors": [selector], "allocationMode": "ExactCount", "count": 1}
    return {"devices": {"requests": [{"name": "part", "exactly": exactly}]}}


@pytest.mark.parametrize(
    ("policy", "second"), [(FIRST, "quarter-2"), (BEST_FIT, "quarter-1"), (FRAGMENTATION, "quarter-1")]
)
@pytest.mark.behaviour("PK-03")
def test_a_partition_keeps_the_largest_ones_possible(policy: str, second: str) -> None:
    profile = ProfileConfig(args={"DynamicResources": {"devicePolicy": policy}})
    placer = placer_for(profile, replace(NODE, gpus=0))
    for name, spec in partitioned_card().items():
        placer.put(RESOURCE_SLICES, from_document(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    assert place(placer, 0, share(1), partition(1)) == ("n", ["quarter-0"])
    assert place(placer, 1, share(1), partition(1)) == ("n", [second])
    if policy != FIRST:
        assert place(placer, 2, share(1), partition(2)) == ("n", ["half-1"])


@pytest.mark.behaviour("PK-01")
def test_an_unknown_policy_is_refused() -> None:
    text = 'devicePolicy: Unsupported value: "worst": supported values: "first", "best-fit", "fragmentation"'
    with pytest.raises(ConfigError, match=text):
        Placer(ProfileConfig(args={"DynamicResources": {"devicePolicy": "worst"}}))


@pytest.mark.behaviour("PK-04")
def test_the_default_profile_is_that_of_kubernetes() -> None:
    assert "DeviceFragmentation" not in dict(DEFAULT_PLUGINS)
    placer = placer_for(ProfileConfig(), NODE)
    assert "DeviceFragmentation" not in placer.profile.plugins


# --- Nodes. ---


@pytest.mark.behaviour("PK-05")
def test_whole_nodes_are_kept_for_pods_that_need_them() -> None:
    nodes = [TraceNode(f"n{number}", 64_000, 65_536, 8, "G2") for number in range(3)]
    placer = placer_for(PACK, *nodes)
    found = [place(placer, number, share(1000, gpus=8 if number == 0 else 1))[0] for number in range(9)]
    assert len({*found[1:]}) == 1, "single devices are taken from one node"
    assert place(placer, 9, share(1000, gpus=8))[0] not in found[:9]


@pytest.mark.behaviour("PK-05")
def test_a_model_that_some_pods_need_is_left_to_them() -> None:
    nodes = [TraceNode("a-rare", 64_000, 65_536, 2, "P100"), TraceNode("common", 64_000, 65_536, 8, "G2")]
    placer = placer_for(PACK, *nodes)
    assert place(placer, 0, share(1000, models=("P100",)))[0] == "a-rare"
    assert {place(placer, number, share(1000))[0] for number in range(1, 8)} == {"common"}
    assert place(placer, 8, share(1000, models=("P100",)))[0] == "a-rare"


@pytest.mark.behaviour("PK-09")
def test_a_pod_without_devices_leaves_cpu_to_those_with() -> None:
    nodes = [TraceNode("a-devices", 8000, 65_536, 2, "T4"), TraceNode("b-none", 8000, 65_536, 0, "")]
    placer = placer_for(PACK, *nodes)
    assert place(placer, 0, TracePod(3000, 1024, 1, 1000))[0] == "a-devices"
    assert place(placer, 1, TracePod(4000, 1024, 0, 0))[0] == "b-none"


# Nodes with two devices each, and Pods in the order of their arrival: all of them fit, with nothing left.
ALL_FIT = {
    "shares of one node": (1, [share(400), share(700), share(300), share(600)]),
    "whole nodes after shares": (3, [share(1000, gpus=2), *[share(500)] * 4, share(1000, gpus=2)]),
    "large shares after small ones": (
        3,
        [share(1000, gpus=2), share(700), *[share(300)] * 2, share(700), *[share(500)] * 2, share(1000)],
    ),
}


def place_all(placer: Placer, wanted: Sequence[TracePod]) -> None:
    for number, pod in enumerate(wanted):
        place(placer, number, pod)


@pytest.mark.parametrize(
    ("profile", "name"),
    [("best-fit", "shares of one node"), *((name, case) for name in ("pack", "fragmentation") for case in ALL_FIT)],
)
@pytest.mark.behaviour("PK-10")
def test_everything_fits_where_spreading_fails(profile: str, name: str) -> None:
    count, wanted = ALL_FIT[name]
    nodes = [TraceNode(f"n{number}", 64_000, 65_536, 2, "T4") for number in range(count)]
    assert sum(pod.total_milli_gpu for pod in wanted) == 2000 * count, "the optimum uses all devices"
    place_all(placer_for(NAMED_PROFILES[profile], *nodes), wanted)
    with pytest.raises(AssertionError, match="Diagnosis"):
        place_all(placer_for(NAMED_PROFILES["spread"], *nodes), wanted)


# --- Learning. ---


def kinds(*shares: int) -> Sequence[PodKind]:
    return [PodKind(1000 + number, 1, ()) for number, count in enumerate(shares) for _ in range(count)]


def test_typical_pods_are_replaced_when_shares_change() -> None:
    typical = TypicalPods()
    for kind in kinds(95, 5):
        typical.add(kind)
    first = typical.changed()
    assert first is not None
    assert [kind.milli_cpu for kind, _ in first] == [1000]
    for kind in kinds(96, 4):
        typical.add(kind)
    assert typical.changed() is None, "the same shares"
    for kind in kinds(0, 0, 200):
        typical.add(kind)
    second = typical.changed()
    assert second is not None
    assert {kind.milli_cpu for kind, _ in second} == {1000, 1002}


@pytest.mark.behaviour("PK-06")
def test_what_is_typical_depends_on_pods_alone() -> None:
    one, other = TypicalPods(), TypicalPods()
    for kind in kinds(3, 2, 5):
        one.add(kind)
    for kind in reversed(kinds(3, 2, 5)):
        other.add(kind)
    assert one.changed() == other.changed()


@pytest.mark.behaviour("PK-06")
def test_running_pods_count_once() -> None:
    placer = placer_for(PACK, NODE)
    packing = placer.devices.packing
    document = objects.pod(7, share(500), {"resourceClaimName": "claim-7"})
    document["metadata"]["uid"] = "pod-7"
    document["spec"]["nodeName"] = "n"
    placer.add(from_document(Pod, document))
    placer.add(from_document(Pod, document))
    place(placer, 0, share(300))
    seen = packing._typical._counts
    assert sum(seen.values()) == 2


def test_values_need_no_typical_pods() -> None:
    model = FragmentationModel(UnitTable())
    state = model.state((), 1000, 1000)
    assert model.loss(state, PodKind(100, 100)) == 0


# --- Incremental. ---


@pytest.mark.behaviour("PK-07")
def test_the_kept_state_of_every_node_equals_a_computed_one() -> None:
    nodes = [TraceNode(f"n{number}", 32_000, 65_536, 4, "T4") for number in range(4)]
    placer = placer_for(PACK, *nodes)
    packing = placer.devices.packing
    for number in range(24):
        place(placer, number, share(100 + 150 * (number % 5)))
        if number % 3 == 2:
            placer.remove(f"pod-{number - 1}")
        placer._cache.update_snapshot(placer.snapshot)
        packing.refresh(placer.snapshot)
        kept = list(packing._states)
        packing._known.clear()
        assert kept == [packing._state(node) for node in placer.snapshot.nodes]
        assert packing._free == sum(state.free for state in kept)


def plain_fill(model: FragmentationModel, state: NodeState, fill: Sequence[PodKind]) -> int:
    """Return what the Pods of a fill take of the devices: each the fullest units that will do."""
    free = model.table.free
    cpu, memory = state.milli_cpu, state.memory
    units = sorted((unit for unit in state.units if free[unit]), key=free.__getitem__)
    for kind in fill:
        if kind.milli_cpu > cpu or kind.memory > memory:
            continue
        for demand, count in kind.demands:
            suitable = [(at, after) for at, unit in enumerate(units) if (after := model.best_after(unit, demand)) >= 0]
            if len(suitable) < count:
                break
            for at, after in suitable[:count]:
                units[at] = after
            units.sort(key=free.__getitem__)
        else:
            cpu -= kind.milli_cpu
            memory -= kind.memory
    return state.free - sum(free[unit] for unit in units)


@pytest.mark.behaviour("PK-07")
@pytest.mark.parametrize("seed", range(6))
def test_what_stays_free_is_the_same_from_kept_fills_as_from_computed_ones(seed: int) -> None:
    rng = random.Random(seed)
    # CPU is short on some nodes and plentiful on others, with equal devices.
    nodes = [TraceNode(f"n{number}", 4_000 + 9_000 * number, 65_536, 2, "T4") for number in range(5)]
    placer = placer_for(PACK, *nodes)
    for number in range(16):
        gpus, milli = rng.choice(((0, 0), (1, 100), (1, 250), (1, 400), (1, 550), (2, 300)))
        place(placer, number, TracePod(rng.choice((500, 1500, 2500)), 1024, gpus, milli))
    model = placer.devices.packing.model
    states = [state for state in model._states.values() if state.usable is not None]
    limited = 0
    for state in states:
        computed = [plain_fill(model, state, fill) for fill in typical_fills(model.typical)]
        limited += computed != [known.devices for known in state.unit_set.fills]
        assert state.unfilled == state.free - sum(computed) // len(computed)
    assert 0 < limited < len(states)
