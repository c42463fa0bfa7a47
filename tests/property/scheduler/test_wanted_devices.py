"""Every Pod that fits when devices are freed is found by the keys of the change, and few others are."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.types.core_v1 import Pod
from dray.client.resources import RESOURCE_CLAIMS
from tests.unit.scheduler.preemption.device_cluster import DRIVER, DeviceCluster, request

MODELS = ("a100", "h100", "t4")


def device(name: str, model: str, **more: Any) -> Document:
    return {"name": name, "attributes": {"model": {"string": model}}, **more}


def of_model(model: str) -> Document:
    return {"selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{model}"'}}]}


def prioritized(*models: str) -> Document:
    alternatives = [{"name": model, "deviceClassName": "gpu", "count": 1, **of_model(model)} for model in models]
    return {"name": "r", "firstAvailable": alternatives}


def partition(name: str, model: str, slices: int) -> Document:
    consumed = {"counterSet": "card", "counters": {"slices": {"value": str(slices)}}}
    return device(name, model, consumesCounters=[consumed])


CARD = [{"name": "card", "counters": {"slices": {"value": "4"}}}]


def make_cluster(rng: random.Random) -> tuple[DeviceCluster, list[str]]:
    """Return a cluster whose devices are in use, and the names of the claims that have them."""
    cluster = DeviceCluster()
    used: list[str] = []
    for number in range(4):
        node = f"n{number}"
        if number % 2:
            cluster.add_node(
                node, partition("whole", "h100", 4), partition("half", "a100", 2), partition("rest", "t4", 2),
                sharedCounters=CARD,
            )  # fmt: skip
            devices: list[str] = rng.choice((["whole"], ["half", "rest"]))
        else:
            devices = [f"d{index}" for index in range(2)]
            cluster.add_node(node, *(device(name, rng.choice(MODELS)) for name in devices))
        for name in devices:
            used.append(f"{node}-{name}")
            cluster.run(used[-1], node, name)
    return cluster, used


def make_pending(rng: random.Random, cluster: DeviceCluster) -> list[Pod]:
    pods: list[Pod] = []
    for number in range(8):
        model = rng.choice(MODELS)
        wanted = rng.choice(
            (request(1, **of_model(model)), request(2), request(), prioritized(model, rng.choice(MODELS)))
        )
        pods.append(cluster.pending(f"p{number}", wanted))
    return pods


@pytest.mark.parametrize("seed", range(40))
def test_whoever_fits_is_found(seed: int) -> None:
    rng = random.Random(seed)
    cluster, used = make_cluster(rng)
    pods = make_pending(rng, cluster)
    hints = cluster.devices._hints
    waiting = {pod.metadata.name: set(hints.keys_of_pod(pod)) for pod in pods if not cluster.node_of(pod)}
    rng.shuffle(used)
    for name in used:
        old = cluster.informers.informer(RESOURCE_CLAIMS).get(name, "default")
        if rng.random() < 0.5:
            cluster.free(name)
        else:
            cluster.deallocate(name)
        found = hints.keys_of_claim(old, cluster.informers.informer(RESOURCE_CLAIMS).get(name, "default"))
        assert found is not None
        keys = set(found)
        fitting = {pod.metadata.name for pod in pods if pod.metadata.name in waiting and cluster.node_of(pod)}
        assert fitting <= {pod for pod, wanted in waiting.items() if wanted & keys}
        # They were tried, and got a node.
        for pod in fitting:
            del waiting[pod]


def test_pods_that_want_other_devices_are_not_found() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", device("d0", "a100"), device("d1", "t4"))
    cluster.run("a", "n", "d0")
    pods = [cluster.pending(f"p-{model}", request(**of_model(model))) for model in MODELS]
    pods.append(cluster.pending("either", prioritized("h100", "a100")))
    pods.append(cluster.pending("extended", requests={"example.com/gpu": "1"}))
    pods.append(cluster.pending("without-claim", claims=["missing"]))
    hints = cluster.devices._hints
    waiting = {pod.metadata.name: set(hints.keys_of_pod(pod)) for pod in pods}
    old = cluster.informers.informer(RESOURCE_CLAIMS).get("a", "default")
    cluster.free("a")
    keys = set(hints.keys_of_claim(old, None) or ())
    assert [name for name, wanted in waiting.items() if wanted & keys] == ["p-a100", "either", "extended"]


def test_a_partition_frees_other_partitions_of_its_card() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", partition("whole", "h100", 4), partition("half", "a100", 2), sharedCounters=CARD)
    cluster.run("a", "n", "whole")
    half = cluster.pending("half", request(**of_model("a100")))
    hints = cluster.devices._hints
    wanted = set(hints.keys_of_pod(half))
    old = cluster.informers.informer(RESOURCE_CLAIMS).get("a", "default")
    cluster.free("a")
    assert cluster.node_of(half) == "n"
    assert wanted & set(hints.keys_of_claim(old, None) or ())


def test_a_device_that_is_gone_concerns_everybody() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", device("d0", "a100"))
    cluster.run("a", "n", "d1")
    old = cluster.informers.informer(RESOURCE_CLAIMS).get("a", "default")
    cluster.free("a")
    assert cluster.devices._hints.keys_of_claim(old, None) is None


def test_a_device_that_is_in_use_again_concerns_nobody() -> None:
    cluster = DeviceCluster()
    cluster.add_node("n", device("d0", "a100"))
    cluster.run("a", "n", "d0")
    waiting = cluster.pending("p", request())
    hints = cluster.devices._hints
    wanted = set(hints.keys_of_pod(waiting))
    old = cluster.informers.informer(RESOURCE_CLAIMS).get("a", "default")
    cluster.free("a")
    assert wanted & set(hints.keys_of_claim(old, None) or ())
    cluster.run("b", "n", "d0")
    assert not wanted & set(hints.keys_of_claim(old, None) or ())
