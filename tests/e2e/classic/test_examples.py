"""The examples of classic drivers, with kubectl, agents and containers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.classic.machines import (
    EXAMPLES,
    Machine,
    Program,
    claim,
    claim_users,
    events,
    is_gone,
    log,
    manifests,
    named,
    on,
    phase,
    runs,
    until,
)
from tests.e2e.kubectl.tool import Kubectl

MakeMachine = Callable[..., Machine]
MakeController = Callable[[str], Program]


@pytest.mark.parametrize("name", ["acme-gpu", "fabric", "fpga", "mock", "node-local"])
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / name / "driver.py").read_text().splitlines()) < 100


@pytest.mark.behaviour("CL-43", "CL-47", "CL-50")
def test_mock(kubectl: Kubectl, machine: MakeMachine, run_controller: MakeController) -> None:
    node = machine()
    node.example("mock")
    run_controller("mock")
    kubectl("create", "-f", str(EXAMPLES / "mock/pod.yaml"))
    until("the tester is done", lambda: phase(kubectl, "tester") in ("Succeeded", "Failed"))
    assert phase(kubectl, "tester") == "Succeeded", kubectl("describe", "pod", "tester")
    assert log(kubectl, "tester", "with") == f"on {node.name}, chosen {node.name}"
    assert log(kubectl, "tester", "without") == "nothing"
    # The claim was the Pod's, and is freed with it.
    until("the claim is gone", lambda: is_gone(kubectl, "resourceclaims.cdi.k8s.io/tester-mock"))
    kubectl("delete", "resourceclass", "mock")


@pytest.mark.behaviour("CL-25", "CL-11", "CL-30", "CL-43")
def test_an_fpga_for_many_pods(kubectl: Kubectl, machine: MakeMachine, run_controller: MakeController) -> None:
    node = machine()
    node.example("fpga")
    run_controller("fpga")
    kubectl("annotate", "node", node.name, "fpga.example.com/boards=1")
    quick, wanted = manifests("fpga", "claim.yaml")
    quick["parameters"]["seconds"] = 0.2
    kubectl("create", "-f", "-", stdin=[quick, wanted])
    until("the board is programmed", lambda: claim(kubectl, "filter")["status"]["phase"] == "Allocated")
    status = claim(kubectl, "filter")["status"]
    assert (status["userLimit"], status["attributes"]["bitstream"]) == (-1, "filter-v2")
    kubectl("create", "-f", str(EXAMPLES / "fpga/users.yaml"))
    kubectl("rollout", "status", "deployment/filter-users", "--timeout=60s")
    pods = [item["metadata"]["name"] for item in kubectl.get("pods")["items"]]
    assert {log(kubectl, name) for name in pods} == {"board 0 runs filter-v2"}
    assert sorted(claim_users(kubectl, "filter")) == sorted(pods)
    assert len(list((node.root / "cdi").glob("*.json"))) == 1
    # A second claim finds no board until the first is deleted, and that waits for its users.
    other = wanted | {"metadata": {"name": "other"}}
    kubectl("create", "-f", "-", stdin=other)
    until("there is no room", lambda: "no free board" in events(kubectl, "FailedAllocation"))
    kubectl("delete", "resourceclaims.cdi.k8s.io", "filter", "--wait=false")
    kubectl("delete", "deployment", "filter-users")
    until("the board is free", lambda: is_gone(kubectl, "resourceclaims.cdi.k8s.io/filter"))
    until("the other has it", lambda: claim(kubectl, "other")["status"]["phase"] == "Allocated")
    kubectl("delete", "resourceclaims.cdi.k8s.io", "other")
    kubectl("delete", "resourceclass", "fpga")


@pytest.mark.behaviour("CL-45", "CL-30")
def test_an_accelerator_goes_from_node_to_node(
    kubectl: Kubectl, machine: MakeMachine, run_controller: MakeController
) -> None:
    here, there = machine(), machine()
    run_controller("fabric")
    for node in (here, there):
        node.example("fabric")
    kubectl("create", "-f", str(EXAMPLES / "fabric/claim.yaml"))
    (pod,) = manifests("fabric", "pod.yaml")
    kubectl("create", "-f", "-", stdin=on(pod, here.name))
    runs(kubectl, "first")
    assert log(kubectl, "first") == f"acc-0 on {here.name}"
    assert "availableOnNodes" not in json.dumps(claim(kubectl, "accelerator"))
    kubectl("create", "-f", "-", stdin=on(named(pod, "second"), there.name))
    until("an event says why it waits", lambda: events(kubectl, "FailedScheduling"))
    assert claim_users(kubectl, "accelerator") == ["first"]
    kubectl("delete", "pod", "first")
    runs(kubectl, "second")
    assert log(kubectl, "second") == f"acc-0 on {there.name}"
    # Nothing is left where it was before.
    until("it is detached", lambda: not list((here.root / "cdi").glob("*.json")))
    kubectl("delete", "pod", "second")
    kubectl("delete", "resourceclaims.cdi.k8s.io", "accelerator")
    kubectl("delete", "resourceclass", "fabric")


@pytest.mark.behaviour("CL-31", "CL-28", "CL-25")
def test_nodes_that_allocate_themselves(
    kubectl: Kubectl, machine: MakeMachine, run_controller: MakeController, tmp_path: Path
) -> None:
    disks = kubectl.with_flags("--namespace=scratch")
    disks("apply", "-f", str(EXAMPLES / "node-local/deploy.yaml"))
    kubectl("wait", "--for=condition=Established", "crd/scratchdisks.scratch.example.com", "--timeout=30s")
    nodes = [machine(), machine()]
    for number, node in enumerate(nodes):
        node.example("node-local", SCRATCH_SIZE="8Gi", SCRATCH_FOLDER=str(tmp_path / str(number)))

    def published() -> dict[str, list[str]]:
        items = disks.get("scratchdisks")["items"]
        return {item["metadata"]["name"]: sorted(item.get("allocated", {}).values()) for item in items}

    until("both disks are known", lambda: len(published()) == 2)
    run_controller("node-local")
    (pod,) = manifests("node-local", "pod.yaml")
    for name in ("a", "b"):
        kubectl("create", "-f", "-", stdin=named(pod, name))
        runs(kubectl, name)
    assert sorted(published().values()) == [["6Gi"], ["6Gi"]]
    placed = {name: kubectl.field(f"pod/{name}", "spec.nodeName") for name in ("a", "b")}
    assert sorted(placed.values()) == sorted(node.name for node in nodes)
    # What a node holds only that node frees.
    held = claim(kubectl, "a-disk")["metadata"]
    assert held["finalizers"] == [f"scratch.example.com/{placed['a']}"]
    folder = log(kubectl, "a").removeprefix("writing to ")
    assert Path(folder).name == held["uid"]
    assert Path(folder).is_dir()
    kubectl("create", "-f", "-", stdin=named(pod, "c"))
    until("the third finds all disks full", lambda: events(kubectl, "FailedScheduling"))
    # A claim that no Pod waits for is for the controller to place; there are only crumbs left.
    small = {
        "apiVersion": "cdi.k8s.io/v1alpha1",
        "kind": "ResourceClaim",
        "metadata": {"name": "small"},
        "spec": {"resourceClassName": "scratch", "allocationMode": "Immediate", "parameters": {"size": "1Gi"}},
    }
    kubectl("create", "-f", "-", stdin=small)
    until("the small one is there", lambda: claim(kubectl, "small")["status"]["phase"] == "Allocated")
    assert sorted(map(len, published().values())) == [1, 2]
    kubectl("delete", "resourceclaims.cdi.k8s.io", "small")
    kubectl("delete", "pod", "a")
    runs(kubectl, "c")
    assert kubectl.field("pod/c", "spec.nodeName") == placed["a"]
    assert not Path(folder).exists()
    kubectl("delete", "pod", "b", "c")
    until("all is free", lambda: list(published().values()) == [[], []])
