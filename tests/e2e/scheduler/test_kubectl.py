"""`dray up` as its users see it: kubectl, nodes made by hand, Pods that get their places or are told why not."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.scheduler.cluster import node, pod
from tests.servers import Server

SECONDS_MAX = 120.0


class Kubectl:
    """Runs kubectl in a namespace of its own."""

    def __init__(self, server: Server, namespace: str) -> None:
        self._environment = server.environment
        self.namespace = namespace
        self("create", "namespace", namespace)
        self.eventually(lambda: self("get", "serviceaccount", "-o", "name"), lambda text: "default" in text)

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        command = ["kubectl", "-n", self.namespace, *arguments]
        done = subprocess.run(command, env=self._environment, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *documents: dict[str, Any]) -> None:
        items = []
        for document in documents:
            kind = "Pod" if "containers" in document["spec"] else "Node"
            metadata = {key: value for key, value in document["metadata"].items() if key != "namespace"}
            items.append({"apiVersion": "v1", "kind": kind, **document, "metadata": metadata})
        self("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def node_of(self, name: str) -> str:
        return self.eventually(lambda: self("get", "pod", name, "-o", "jsonpath={.spec.nodeName}"), bool)

    def message(self, name: str, containing: str) -> str:
        path = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}"
        return self.eventually(lambda: self("get", "pod", name, "-o", path), lambda text: containing in text)

    def eventually(self, read: Callable[[], str], good: Callable[[str], bool]) -> str:
        deadline = time.monotonic() + SECONDS_MAX
        while not good(found := read()):
            assert time.monotonic() < deadline, f"still {found!r}"
        return found


@pytest.fixture
def kubectl(server: Server, namespace_name: str) -> Iterator[Kubectl]:
    """Leaves no node behind."""
    kubectl = Kubectl(server, namespace_name)
    yield kubectl
    kubectl("delete", "nodes", "--all")


def test_pods_find_their_places(kubectl: Kubectl) -> None:
    taint = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    kubectl.apply(
        node("plain", labels={"disk": "hdd"}),
        node("fast", labels={"disk": "ssd"}, cpu="2"),
        node("gpu", labels={"disk": "none"}, taints=[taint]),
    )
    kubectl.apply(
        pod("selected", nodeSelector={"disk": "ssd"}),
        pod("tolerant", tolerations=[taint], nodeSelector={"disk": "none"}),
        pod("big", cpu="3900m"),
    )
    assert kubectl.node_of("selected") == "fast"
    assert (kubectl.node_of("big"), kubectl.node_of("tolerant")) == ("plain", "gpu")
    kubectl.apply(pod("huge", cpu="3900m"), pod("lost", nodeSelector={"disk": "tape"}))
    text = "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu."
    assert kubectl.message("huge", "0/3").startswith(text)
    reasons = "1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node affinity/selector."
    assert kubectl.message("lost", "0/3").startswith(f"0/3 nodes are available: {reasons}")
    assert "FailedScheduling" in kubectl("describe", "pod", "huge")
    described = kubectl.eventually(lambda: kubectl("describe", "pod", "selected"), lambda text: "Scheduled" in text)
    assert f"Successfully assigned {kubectl.namespace}/selected to fast" in described
    kubectl("delete", "pod", "big", "--grace-period=0", "--force")
    assert kubectl.node_of("huge") == "plain"


def test_cordon_and_uncordon(kubectl: Kubectl) -> None:
    kubectl.apply(node("lonely"))
    kubectl("cordon", "lonely")
    kubectl.apply(pod("waits"))
    assert "1 node(s) were unschedulable" in kubectl.message("waits", "unschedulable")
    kubectl("uncordon", "lonely")
    assert kubectl.node_of("waits") == "lonely"


def test_gates(kubectl: Kubectl) -> None:
    kubectl.apply(node("open"), pod("gated", schedulingGates=[{"name": "example.com/wait"}]), pod("free"))
    assert kubectl.node_of("free") == "open"
    assert "SchedulingGated" in kubectl("get", "pod", "gated")
    kubectl("patch", "pod", "gated", "--type=merge", "-p", '{"spec":{"schedulingGates":null}}')
    assert kubectl.node_of("gated") == "open"


def test_affinity_and_spreading(kubectl: Kubectl) -> None:
    kubectl.apply(node("first", labels={"zone": "a"}), pod("web", labels={"app": "web"}))
    assert kubectl.node_of("web") == "first"
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    selector = {"labelSelector": {"matchLabels": {"app": "web"}}}
    kubectl.apply(
        pod("spread", labels={"app": "web"}, topologySpreadConstraints=[spread | selector]),
        pod("alone", affinity=alone),
    )
    assert "didn't match pod topology spread constraints" in kubectl.message("spread", "spread constraints")
    assert "didn't match pod anti-affinity rules" in kubectl.message("alone", "anti-affinity")
    kubectl.apply(node("second", labels={"zone": "b"}), node("third", labels={"zone": "c"}))
    assert kubectl.node_of("alone") in {"second", "third"}
    assert kubectl.node_of("spread") in {"second", "third"}
