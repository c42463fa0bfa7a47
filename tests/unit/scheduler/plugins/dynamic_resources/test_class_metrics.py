from __future__ import annotations

from dray.allocator.gates import Gates
from dray.api.features import FeatureGates
from dray.runtime.metrics import Metrics
from dray.scheduler.plugins.dynamic_resources.class_metrics import ClassCollector, ClassMeasure, classes_given, measure
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import GPU, claim, cluster, device, device_class, resource_slice


def measured(snapshot: Snapshot) -> dict[str, ClassMeasure]:
    return measure(snapshot.inventory(), snapshot.allocations(), Gates.of(FeatureGates()))


def test_what_is_held_tainted_or_in_a_torn_pool_is_not_free() -> None:
    assert measured(cluster()) == {"any": ClassMeasure(4, 1, 1), "gpu": ClassMeasure(3, 1, 1)}


def test_fragmentation_is_what_no_single_node_has() -> None:
    slices = [
        resource_slice(name, GPU, *(device(f"gpu-{number}") for number in range(count)), nodeName=name)
        for name, count in (("a", 3), ("b", 1))
    ]
    (gpu,) = measured(Snapshot.of([device_class("gpu", "true"), *slices])).values()
    assert (gpu.free, gpu.largest, gpu.fragmentation) == (4, 3, 0.25)
    assert ClassMeasure(4, 0, 0).fragmentation == 0.0


def test_a_slow_measure_is_taken_seldom() -> None:
    now = [0.0]
    taken = []

    def slow() -> dict[str, ClassMeasure]:
        taken.append(now[0])
        now[0] += 1.0
        return {"gpu": ClassMeasure(4, 4, 3)}

    metrics = Metrics()
    for _ in range(2):
        metrics.collect_once("x", lambda: ClassCollector(slow, lambda: now[0]))
    assert metrics.value("dray_class_fragmentation_ratio", {"class": "gpu"}) == 0.25
    now[0] += 98
    assert metrics.value("dray_class_devices", {"class": "gpu", "state": "free"}) == 4
    assert len(taken) == 1, "a second of work earns a hundred of rest"
    now[0] += 2
    metrics.exposition()
    assert len(taken) == 2


def test_only_the_alternative_that_was_chosen_has_waited() -> None:
    def wanted(name: str) -> dict[str, object]:
        return {"name": name, "deviceClassName": f"class-{name}", "allocationMode": "ExactCount", "count": 1}

    held = claim("c", f"{GPU}/node-a/gpu-0")
    held["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": [wanted("big"), wanted("small")]}]
    held["status"]["allocation"]["devices"]["results"][0]["request"] = "r/small"
    (typed,) = Snapshot.of([held]).claims
    assert typed.status.allocation is not None
    assert classes_given(typed, typed.status.allocation) == {"class-small"}
