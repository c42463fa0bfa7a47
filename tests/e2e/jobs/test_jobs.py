"""Six problems as users meet them, each on a real cluster, and what `dray explain` answers in one sentence.

The sentence has to name the cause and the one thing to do.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dray.api.document import Document
from dray.cmd.testing.cluster import Cluster, running_cluster
from dray.cmd.testing.stack import ClusterOptions
from dray.driver import Claim, ClaimError, Device, Driver, PreparedClaim, PreparedDevice, device
from tests.fork_server import run
from tests.unit.sim.cluster import GPU, device_class, exactly, resource_slice
from tests.unit.sim.cluster import device as published

H100 = f'device.attributes["{GPU}"].model == "H100"'
NODES = 2
SECONDS_MAX = 120.0


class BrokenLamps(Driver):
    """A driver whose devices can be allocated and not be prepared."""

    name = "lamp.example.com"

    def devices(self) -> Iterable[Device]:
        return [device("lamp-0")]

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        raise ClaimError("lamp-0 does not answer")

    def unprepare(self, claim: PreparedClaim) -> None:
        return


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node with a real agent and a broken driver, and simulated nodes with two H100 each, one with partitions."""
    with running_cluster(ClusterOptions(nodes=NODES)) as running:
        names = [item["metadata"]["name"] for item in running.list("nodes")]
        first, second = sorted(name for name in names if name != running.node_name)
        cards = [published(f"gpu-{n}", attributes={"model": {"string": "H100"}}) for n in range(2)]
        running.apply(
            [
                device_class("gpu", f'device.driver == "{GPU}"'),
                device_class("lamp", 'device.driver == "lamp.example.com"'),
                device_class("part", 'device.driver == "part.example.com"'),
                resource_slice(first, GPU, *cards, nodeName=first),
                resource_slice(second, GPU, *cards, nodeName=second),
                *partitions(first),
            ]
        )
        running.run_driver(BrokenLamps())
        yield running


def partitions(node: str) -> list[Document]:
    """A card of 80Gi, as a whole or in halves."""

    def part(name: str, memory: str) -> Document:
        return published(name, consumesCounters=[{"counterSet": "card", "counters": {"memory": {"value": memory}}}])

    pool = {"name": f"{node}-parts", "generation": 1, "resourceSliceCount": 2}
    parts = [part("whole", "80Gi"), part("half-0", "40Gi"), part("half-1", "40Gi")]
    counters = resource_slice(f"{node}-counters", "part.example.com", nodeName=node)
    counters["spec"] |= {"pool": pool, "sharedCounters": [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]}
    del counters["spec"]["devices"]
    devices = resource_slice(f"{node}-parts", "part.example.com", *parts, nodeName=node)
    devices["spec"]["pool"] = pool
    return [counters, devices]


def namespace(cluster: Cluster, name: str) -> str:
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def template(name: str, *requests: Document, **devices: Any) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": list(requests)} | devices}},
    }


def request(device_class_name: str, *expressions: str) -> Document:
    made = exactly(1, *expressions, name="device")
    made["exactly"]["deviceClassName"] = device_class_name
    return made


def pod(name: str, template_name: str, **spec: Any) -> Document:
    container = {"name": "main", "image": "none", "command": ["sleep", "600"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "device", "resourceClaimTemplateName": template_name}],
            "containers": [container | {"resources": {"claims": [{"name": "device"}]}}],
        }
        | spec,
    }


def answer(cluster: Cluster, *arguments: str) -> tuple[str, Document]:
    """The sentence of `dray explain`, and its JSON."""
    command = [sys.executable, "-m", "dray", "explain", *arguments]
    shown = run(command, env=cluster.environment)
    assert shown.returncode == 0, shown.stderr
    (found,) = json.loads(run([*command, "-o", "json"], env=cluster.environment).stdout)["items"]
    return shown.stdout.splitlines()[0], found


def is_unschedulable(item: Document) -> bool:
    conditions = item.get("status", {}).get("conditions", ())
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)


def test_a_deployment_that_a_quota_stops(cluster: Cluster) -> None:
    team = namespace(cluster, "quota")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}},
    }
    cluster.apply(quota, namespace=team)
    cluster.wait_for("resourcequota/small", lambda item: "used" in item.get("status", {}), namespace=team)
    labels = {"app": "web"}
    spec = {"containers": [{"name": "main", "image": "none"}]}
    web = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    cluster.apply(web, namespace=team)
    cluster.wait_for("deployment/web", "ReplicaFailure", namespace=team)
    sentence, found = answer(cluster, "deploy/web", "-n", team)
    assert sentence == (
        "deployment quota/web has 1 of 3 Pods: exceeded quota: small, requested: pods=1, used: pods=1, "
        "limited: pods=1; raise pods to 3 in quota small, or delete what uses it in namespace quota"
    )
    assert found["verdict"]["stage"] == "quota"
    # The advice is what works.
    quota["spec"] = {"hard": {"pods": "3"}}
    cluster.apply(quota, namespace=team)
    cluster.wait_for("deployment/web", lambda item: item["status"].get("replicas") == 3, namespace=team, timeout=60)


def test_a_driver_that_cannot_prepare(cluster: Cluster) -> None:
    team = namespace(cluster, "prepare")
    cluster.apply([template("lamp", request("lamp")), pod("reader", "lamp")], namespace=team)
    cluster.wait_for("pod/reader", lambda item: bool(item["spec"].get("nodeName")), namespace=team)
    wait_for_event(cluster, team, "reader", "FailedPrepareDynamicResources")
    sentence, found = answer(cluster, "pod", "reader", "-n", team)
    assert sentence.startswith("pod prepare/reader is on node-1, but its devices cannot be prepared: ")
    assert "lamp-0 does not answer" in sentence
    assert sentence.endswith("; check driver lamp.example.com on node-1")
    assert found["verdict"]["stage"] == "prepare"
    cluster.delete("pod/reader", namespace=team)


def wait_for_event(cluster: Cluster, team: str, name: str, reason: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not any(event["reason"] == reason for event in cluster.events(name, namespace=team)):
        assert time.monotonic() < deadline, f"no event {reason} of pod {name}"


def test_counters_that_are_used_up(cluster: Cluster) -> None:
    team = namespace(cluster, "counters")
    half = request("part", 'device.capacity["part.example.com"].memory == quantity("40Gi")')
    cluster.apply([template("any", request("part")), pod("first", "any")], namespace=team)
    cluster.wait_for("pod/first", "Ready", namespace=team)
    cluster.apply([template("half", half), pod("second", "half")], namespace=team)
    cluster.wait_for("pod/second", is_unschedulable, namespace=team)
    sentence, found = answer(cluster, "pod/second", "-n", team)
    (holder,) = [
        item["metadata"]["name"] for item in cluster.claims(namespace=team) if item["status"].get("allocation")
    ]
    node = found["groups"][0]["examples"][0]
    assert sentence.startswith(f"pod counters/second is pending, 0 of 3 nodes fit: {node}: of 3 devices ")
    assert "2 lack counter memory" in sentence
    assert f"; free claim counters/{holder} (Pod first, for " in sentence
    assert sentence.endswith(f" (fits on {node})")
    assert found["verdict"]["stage"] == "devices"
    # The advice is what works.
    cluster.delete("pod/first", namespace=team)
    cluster.wait_for("pod/second", "Ready", namespace=team)


def test_a_misspelt_model(cluster: Cluster) -> None:
    team = namespace(cluster, "typo")
    typo = template("typo", request("gpu", H100.replace("H100", "H1OO")))
    cluster.apply([typo, pod("train", "typo")], namespace=team)
    cluster.wait_for("pod/train", is_unschedulable, namespace=team)
    sentence, _ = answer(cluster, "po", "train", "-n", team)
    assert sentence.startswith(
        "pod typo/train is pending: model `H1OO` matches nothing; 4 devices have `H100`; "
        "write H100 instead of H1OO (fits on "
    )


def test_a_constraint_that_cannot_be_met(cluster: Cluster) -> None:
    team = namespace(cluster, "constraint")
    pair = [exactly(1, name="one"), exactly(1, name="two")]
    same = {"requests": ["one", "two"], "matchAttribute": f"{GPU}/serial"}
    cluster.apply([template("pair", *pair, constraints=[same]), pod("train", "pair")], namespace=team)
    cluster.wait_for("pod/train", is_unschedulable, namespace=team)
    sentence, _ = answer(cluster, "pod", "train", "-n", team)
    assert sentence.startswith(
        "pod constraint/train is pending: no device has gpu.example.com/serial, which a constraint needs; "
        "drop the constraint on attribute gpu.example.com/serial (fits on "
    )


def test_a_drained_node(cluster: Cluster) -> None:
    team = namespace(cluster, "drained")
    name = cluster.node_name
    cluster.kubectl("cordon", name)
    asks = pod("here", "", nodeSelector={"kubernetes.io/hostname": name})
    del asks["spec"]["resourceClaims"], asks["spec"]["containers"][0]["resources"]
    cluster.apply(asks, namespace=team)
    cluster.wait_for("pod/here", is_unschedulable, namespace=team)
    sentence, _ = answer(cluster, "pod", "here", "-n", team)
    others = f"{NODES} more for other reasons"
    assert sentence == (
        f"pod drained/here is pending, 0 of {NODES + 1} nodes fit: {name}: cordoned; {others}; uncordon {name}"
    )
    # The advice is what works.
    cluster.kubectl("uncordon", name)
    cluster.wait_for("pod/here", "Running", namespace=team)
    cluster.delete("pod/here", namespace=team)
