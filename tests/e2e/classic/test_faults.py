"""Classic claims when something breaks: nodes without power, Pods that are torn away, drivers that die."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
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
HERE = Path(__file__).parent


@pytest.fixture
def fabric(kubectl: Kubectl, run_controller: MakeController) -> Iterator[Document]:
    """One accelerator for all, a claim for it, and the Pod that uses it."""
    run_controller("fabric")
    kubectl("apply", "-f", str(EXAMPLES / "fabric/claim.yaml"))
    (pod,) = manifests("fabric", "pod.yaml")
    yield pod
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    kubectl("delete", "resourceclaims.cdi.k8s.io", "accelerator")
    kubectl("delete", "resourceclass", "fabric")


@pytest.fixture
def mock(kubectl: Kubectl, run_controller: MakeController) -> Iterator[None]:
    """The mock's controller and class."""
    run_controller("mock")
    kubectl("apply", "-f", "-", stdin=manifests("mock", "pod.yaml")[0])
    yield
    kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    kubectl("delete", "resourceclass", "mock")


def mock_pod(name: str, script: str, node: str, *, optional: bool = False, **parameters: Any) -> Document:
    entry = {
        "name": "mock",
        "optional": optional,
        "template": {"spec": {"resourceClassName": "mock", "parameters": parameters}},
    }
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", script],
        "resources": {"claims": [{"name": "mock"}]},
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "resourceClaims": [entry],
        "containers": [container],
    }
    return on({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, node)


def cdi_files(machine: Machine) -> list[Path]:
    return list((machine.root / "cdi").glob("*.json"))


# --- Nodes. ---


@pytest.mark.behaviour("CL-22")
@pytest.mark.parametrize("farewell", ["deleted", "out of service"])
def test_what_a_dead_node_held_is_used_elsewhere(
    kubectl: Kubectl, machine: MakeMachine, fabric: Document, farewell: str
) -> None:
    dying, other = machine(), machine()
    for node in (dying, other):
        node.example("fabric")
    kubectl("create", "-f", "-", stdin=on(named(fabric, "holder"), dying.name))
    runs(kubectl, "holder")
    kubectl("create", "-f", "-", stdin=on(named(fabric, "waiter"), other.name))
    until("an event says why it waits", lambda: events(kubectl, "FailedScheduling"))
    dying.power_cut()
    ready = 'status.conditions[?(@.type=="Ready")].status'
    until("the node is unknown", lambda: kubectl.field(f"node/{dying.name}", ready) == "Unknown")
    # Nobody can say that the accelerator is not in use.
    assert claim_users(kubectl, "accelerator") == ["holder"]
    if farewell == "deleted":
        kubectl("delete", "node", dying.name)
    else:
        kubectl("delete", "pod", "holder", "--wait=false")
        kubectl("taint", "nodes", dying.name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    until("the holder is gone", lambda: is_gone(kubectl, "pod/holder"))
    runs(kubectl, "waiter")
    assert log(kubectl, "waiter") == f"acc-0 on {other.name}"
    assert claim_users(kubectl, "accelerator") == ["waiter"]


@pytest.mark.behaviour("CL-43", "CL-45", "CL-48")
def test_an_agent_killed_and_back_gives_back_what_it_has_to(
    kubectl: Kubectl, machine: MakeMachine, fabric: Document
) -> None:
    node = machine()
    node.example("fabric")
    kubectl("create", "-f", "-", stdin=on(fabric, node.name))
    runs(kubectl, "first")
    started = kubectl.field("pod/first", "status.containerStatuses[0].state.running.startedAt")
    node.agent.kill()
    node.agent.start()
    # It goes on where it was.
    kubectl("label", "pod", "first", "seen=yes")
    assert log(kubectl, "first") == f"acc-0 on {node.name}"
    assert kubectl.field("pod/first", "status.containerStatuses[0].state.running.startedAt") == started
    kubectl("delete", "pod", "first", "--wait=false")
    node.agent.kill()
    node.agent.start()
    until("the Pod is gone", lambda: is_gone(kubectl, "pod/first"))
    assert cdi_files(node) == []
    until("the claim is unused", lambda: claim_users(kubectl, "accelerator") == [])
    assert claim(kubectl, "accelerator")["status"]["phase"] == "Allocated"


# --- Pods. ---


@pytest.mark.behaviour("CL-43", "CL-48", "CL-22")
def test_a_pod_torn_away_leaves_nothing_behind(kubectl: Kubectl, machine: MakeMachine, fabric: Document) -> None:
    node = machine()
    plugin = node.example("fabric")
    kubectl("create", "-f", "-", stdin=on(fabric, node.name))
    runs(kubectl, "first")
    # Also when the driver cannot be asked at first.
    plugin.kill()
    kubectl("delete", "pod", "first", "--force", "--grace-period=0")
    until("the claim is unused", lambda: claim_users(kubectl, "accelerator") == [])
    node.example("fabric")
    until("it is unprepared", lambda: cdi_files(node) == [])
    kubectl("create", "-f", "-", stdin=on(named(fabric, "second"), node.name))
    runs(kubectl, "second")


@pytest.mark.behaviour("CL-63")
def test_a_pod_without_grace_keeps_its_reservation_until_its_claim_is_unprepared(
    kubectl: Kubectl, machine: MakeMachine, fabric: Document
) -> None:
    node = machine()
    plugin = node.example("fabric")
    hasty = {**fabric, "spec": {**fabric["spec"], "terminationGracePeriodSeconds": 0}}
    kubectl("create", "-f", "-", stdin=on(hasty, node.name))
    runs(kubectl, "first")
    plugin.kill()
    kubectl("delete", "pod", "first", "--wait=false")
    until("it cannot be unprepared", lambda: events(kubectl, "FailedUnprepareDynamicResources"))
    assert kubectl.field("pod/first", "metadata.deletionGracePeriodSeconds") == "1"
    assert claim_users(kubectl, "accelerator") == ["first"]
    node.example("fabric")
    until("the Pod is gone", lambda: is_gone(kubectl, "pod/first"))
    assert cdi_files(node) == []
    until("the claim is unused", lambda: claim_users(kubectl, "accelerator") == [])


@pytest.mark.behaviour("CL-44")
def test_a_pod_that_no_scheduler_has_seen_does_not_run(kubectl: Kubectl, machine: MakeMachine, mock: None) -> None:
    node = machine()
    node.example("mock")
    pod = mock_pod("p", "echo must not run", node.name)
    del pod["spec"]["nodeSelector"]
    pod["spec"]["nodeName"] = node.name
    kubectl("create", "-f", "-", stdin=pod)
    text = until("an event says why", lambda: events(kubectl, "FailedPrepareDynamicResources"))
    assert "prepare classic resources: ResourceClaim p-mock" in text
    assert phase(kubectl, "p") == "Pending"
    assert cdi_files(node) == []
    # Deleting it is all there is to do.
    kubectl("delete", "pod", "p")


# --- Drivers. ---


@pytest.mark.behaviour("CL-47")
def test_a_driver_killed_between_its_work_and_its_answer(
    kubectl: Kubectl, machine: MakeMachine, mock: None, tmp_path: Path
) -> None:
    node = machine()
    dying = node.plugin(HERE / "crashing_mock.py", str(tmp_path / "killed"))
    kubectl("create", "-f", "-", stdin=mock_pod("p", "echo $CLASS_COLOUR; exec sleep 600", node.name))
    until("the driver is dead", lambda: dying.process.poll() is not None)
    text = until("the Pod has an event", lambda: events(kubectl, "FailedPrepareDynamicResources"))
    assert "NodePrepareResource: rpc error" in text
    assert len(cdi_files(node)) == 1
    node.plugin(HERE / "crashing_mock.py", str(tmp_path / "killed"))
    runs(kubectl, "p")
    assert log(kubectl, "p") == "blue"
    assert len(cdi_files(node)) == 1
    kubectl("delete", "pod", "p")
    assert cdi_files(node) == []


# --- Claims that a Pod can do without, and nodes that know of no claims. ---


def test_a_pod_runs_without_what_it_can_do_without(kubectl: Kubectl, machine: MakeMachine, mock: None) -> None:
    node = machine()
    node.example("mock")
    script = "echo $DRAY_CLAIM_MOCK ${CLASS_COLOUR:-colourless}"
    kubectl(
        "create",
        "-f",
        "-",
        stdin=[
            mock_pod("lucky", script, node.name, optional=True),
            mock_pod("unlucky", script, node.name, optional=True, fail="sold out"),
        ],
    )
    assert log(kubectl, "lucky") == "allocated blue"
    assert log(kubectl, "unlucky") == "none colourless"
    for name in ("lucky", "unlucky"):
        until(f"{name} is done", lambda name=name: phase(kubectl, name) == "Succeeded")  # type: ignore[misc]


@pytest.mark.behaviour("CL-51", "NG-03")
def test_a_node_without_the_feature_does_not_start_pods_without_their_resources(
    kubectl: Kubectl, machine: MakeMachine, mock: None
) -> None:
    gate = "DRAControlPlaneController"
    node = machine(f"--feature-gates={gate}=false")
    pod = mock_pod("p", "echo colour ${CLASS_COLOUR:-none}", node.name)
    del pod["spec"]["nodeSelector"]
    pod["spec"]["nodeName"] = node.name
    kubectl("create", "-f", "-", stdin=pod)
    text = f"the feature gate {gate} is disabled on this node"
    until("it is refused", lambda: text in kubectl("get", "events", "-o", "yaml"))
    assert phase(kubectl, "p") == "Pending"
    kubectl("delete", "pod", "p")


@pytest.mark.behaviour("CL-51", "CL-34")
def test_a_driver_keeps_pods_away_from_nodes_without_the_feature(
    kubectl: Kubectl, machine: MakeMachine, mock: None
) -> None:
    old, new = machine("--feature-gates=DRAControlPlaneController=false"), machine()
    new.example("mock")
    document = manifests("mock", "pod.yaml")[0]
    document["metadata"]["name"] = "new-only"
    document["parameters"]["nodes"] = [new.name]
    kubectl("apply", "-f", "-", stdin=document)
    wanted = {
        "apiVersion": "cdi.k8s.io/v1alpha1",
        "kind": "ResourceClaim",
        "metadata": {"name": "shared"},
        "spec": {"resourceClassName": "new-only", "allocationMode": "Immediate"},
    }
    kubectl("create", "-f", "-", stdin=wanted)
    pod = mock_pod("p", "echo on $PREPARED_ON; exec sleep 600", old.name)
    del pod["spec"]["nodeSelector"]
    pod["spec"]["resourceClaims"] = [{"name": "mock", "resourceClaimName": "shared"}]
    kubectl("create", "-f", "-", stdin=pod)
    assert log(kubectl, "p") == f"on {new.name}"
    kubectl("delete", "pod", "p")
    kubectl("delete", "resourceclaims.cdi.k8s.io", "shared")
    kubectl("delete", "resourceclass", "new-only")
