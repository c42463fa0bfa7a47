"""Machines that lose their power, and what becomes of their Pods and devices; all with real processes and kubectl."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from dray.api.document import Document
from tests.e2e.evictions.conftest import Machine, needs_kubectl
from tests.e2e.kubectl.tool import Kubectl

pytestmark = needs_kubectl

SECONDS_MAX = 120.0
DRIVER = "fabric.example.com"
# Such Pods do not wait for a node that is gone.
IMPATIENT = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
    for key in ("not-ready", "unreachable")
]


def until(what: str, look: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not look():
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX:.0f} s: {what}"
        time.sleep(0.1)


def pod(name: str, node: str, claim: str = "", **spec: object) -> Document:
    container: Document = {"name": "a", "image": "busybox", "command": ["sh", "-c", "echo port $PORT; exec sleep 600"]}
    body: Document = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container],
        **spec,
    }
    if claim:
        container["resources"] = {"claims": [{"name": "port"}]}
        body["resourceClaims"] = [{"name": "port", "resourceClaimName": claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def fabric(name: str) -> list[Document]:
    """One port that all nodes can reach, its class, and two claims that want it."""
    group = "resource.k8s.io/v1"
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].net == "{name}"'
    spec = {"devices": {"requests": [{"name": "port", "exactly": {"deviceClassName": name}}]}}
    port = {"name": "port-0", "attributes": {"net": {"string": name}}}
    return [
        {
            "apiVersion": group,
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        },
        {
            "apiVersion": group,
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": DRIVER,
                "allNodes": True,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [port],
            },
        },
        *(
            {"apiVersion": group, "kind": "ResourceClaim", "metadata": {"name": claim}, "spec": spec}
            for claim in ("first", "second")
        ),
    ]


def phase(kubectl: Kubectl, name: str) -> str:
    return kubectl.field(f"pod/{name}", "status.phase")


def is_deleted(kubectl: Kubectl, name: str) -> bool:
    return bool(kubectl.field(f"pod/{name}", "metadata.deletionTimestamp"))


def is_gone(kubectl: Kubectl, resource: str) -> bool:
    return "(NotFound)" in kubectl.run("get", resource).err


def ready(kubectl: Kubectl, node: str) -> str:
    return kubectl.field(f"node/{node}", 'status.conditions[?(@.type=="Ready")].status')


def settle(kubectl: Kubectl, machine: Callable[[], Machine]) -> tuple[Machine, Machine]:
    """Two machines, the only port in use on the first, and a Pod for the second that waits for it."""
    dying, other = machine(), machine()
    kubectl("create", "-f", "-", stdin=fabric(kubectl.namespace))
    kubectl("create", "-f", "-", stdin=pod("holder", dying.name, "first", tolerations=IMPATIENT))
    until("the holder runs", lambda: phase(kubectl, "holder") == "Running")
    kubectl("create", "-f", "-", stdin=pod("waiter", other.name, "second"))
    until("the waiter knows why it waits", lambda: kubectl.field("pod/waiter", "status.conditions[*].reason"))
    assert phase(kubectl, "waiter") == "Pending"
    return dying, other


def lose(kubectl: Kubectl, machine: Machine) -> None:
    """Cut the power; returns when the holder is evicted, and stuck."""
    machine.kill()
    until("the node is unknown", lambda: ready(kubectl, machine.name) == "Unknown")
    until("the holder is evicted", lambda: is_deleted(kubectl, "holder"))
    disruption = 'status.conditions[?(@.type=="DisruptionTarget")].reason'
    assert kubectl.field("pod/holder", disruption) == "DeletionByTaintManager"
    # Nobody can say that its containers are gone: the port is not given to another.
    assert kubectl.field("resourceclaim/first", "status.reservedFor[*].name") == "holder"
    assert phase(kubectl, "waiter") == "Pending"


def moved(kubectl: Kubectl) -> None:
    """The holder is gone, its claim is free, and the waiter has its port."""
    until("the holder is gone", lambda: is_gone(kubectl, "pod/holder"))
    until("its claim is free", lambda: not kubectl.field("resourceclaim/first", "status.allocation"))
    until("the waiter runs", lambda: phase(kubectl, "waiter") == "Running")
    results = "status.allocation.devices.results[*].device"
    assert kubectl.field("resourceclaim/second", results) == "port-0"
    until("it sees its port", lambda: "port port-0" in kubectl.run("logs", "waiter").out)


def test_a_node_out_of_service_gives_its_device_back(kubectl: Kubectl, machine: Callable[[], Machine]) -> None:
    dying, _ = settle(kubectl, machine)
    lose(kubectl, dying)
    kubectl("taint", "nodes", dying.name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    moved(kubectl)


def test_a_deleted_node_gives_its_device_back(kubectl: Kubectl, machine: Callable[[], Machine]) -> None:
    dying, _ = settle(kubectl, machine)
    lose(kubectl, dying)
    kubectl("delete", "node", dying.name)
    moved(kubectl)


def test_kubectl_taint_evicts(kubectl: Kubectl, machine: Callable[[], Machine]) -> None:
    node = machine().name
    stays = [{"key": "repair", "operator": "Exists"}]
    kubectl("create", "-f", "-", stdin=[pod("goes", node), pod("stays", node, tolerations=stays)])
    until("both run", lambda: [phase(kubectl, name) for name in ("goes", "stays")] == ["Running"] * 2)
    kubectl("taint", "nodes", node, "repair=now:NoExecute")
    until("it is evicted", lambda: is_gone(kubectl, "pod/goes"))
    assert phase(kubectl, "stays") == "Running"
    assert not is_deleted(kubectl, "stays")
    message = "Marking for deletion Pod " + f"{kubectl.namespace}/goes"
    until(
        "the event",
        lambda: message in kubectl("get", "events", "--field-selector=reason=TaintManagerEviction"),
    )
    kubectl("taint", "nodes", node, "repair-")
    kubectl("create", "-f", "-", stdin=pod("later", node))
    until("the node takes Pods again", lambda: phase(kubectl, "later") == "Running")


@pytest.mark.behaviour("SP-145")
def test_a_device_taint_rule_evicts(kubectl: Kubectl, machine: Callable[[], Machine]) -> None:
    settle(kubectl, machine)
    rule: Document = {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": kubectl.namespace},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": kubectl.namespace},
            "taint": {"key": "broken", "effect": "None"},
        },
    }
    kubectl("create", "-f", "-", stdin=rule)
    resource, reason = f"devicetaintrule/{kubectl.namespace}", "status.conditions[0].reason"
    until("the dry run", lambda: kubectl.field(resource, reason) == "NoEffect")
    assert kubectl.field(resource, "status.conditions[0].message").startswith(
        "1 published device selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace "
    )
    assert not is_deleted(kubectl, "holder")
    kubectl("patch", resource, "--type=merge", '--patch={"spec":{"taint":{"effect":"NoExecute"}}}')
    until("the holder is gone", lambda: is_gone(kubectl, "pod/holder"))
    # The port is free, but must not be used.
    until("its claim is free", lambda: not kubectl.field("resourceclaim/first", "status.allocation"))
    assert phase(kubectl, "waiter") == "Pending"
    # The rule's status is brought up to date every ten seconds, which is not waited for here.
    until("it has an effect", lambda: kubectl.field(resource, reason) in ("PodsPendingEviction", "Completed"))
    kubectl("delete", resource)
    until("the waiter runs", lambda: phase(kubectl, "waiter") == "Running")


def test_a_machine_that_was_only_asleep_keeps_its_pods(kubectl: Kubectl, machine: Callable[[], Machine]) -> None:
    sleeper, _ = machine(), machine()
    kubectl("create", "-f", "-", stdin=pod("p", sleeper.name))
    until("it runs", lambda: phase(kubectl, "p") == "Running")
    started = kubectl.field("pod/p", "status.containerStatuses[0].state.running.startedAt")
    process = sleeper.agent.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        until("the node is unknown", lambda: ready(kubectl, sleeper.name) == "Unknown")
        until("it is being emptied", lambda: "NoExecute" in kubectl.field(f"node/{sleeper.name}", "spec.taints"))
        condition = 'status.conditions[?(@.type=="Ready")].status'
        until("the Pod is not ready", lambda: kubectl.field("pod/p", condition) == "False")
    finally:
        process.send_signal(signal.SIGCONT)
    until("the node is ready", lambda: ready(kubectl, sleeper.name) == "True")
    until("it takes Pods again", lambda: not kubectl.field(f"node/{sleeper.name}", "spec.taints"))
    # Every Pod has five minutes for such things.
    assert not is_deleted(kubectl, "p")
    until("the Pod is ready", lambda: kubectl.field("pod/p", condition) == "True")
    assert kubectl.field("pod/p", "status.containerStatuses[0].state.running.startedAt") == started
