"""The user stories of the proposal: a vendor's add-on, an administrator's class, and users with a part of a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from tests.e2e.classic.machines import (
    EXAMPLES,
    TOP,
    Machine,
    claim,
    events,
    is_gone,
    log,
    manifests,
    named,
    phase,
    runs,
    until,
)
from tests.e2e.kubectl.tool import Kubectl

SCRIPT = '#!/bin/sh\necho "$@" >> {log}\n'


def deployed_on(document: Document, machine: Machine) -> Document:
    """The vendor's manifest for this machine: its paths, and its Python instead of an image."""
    if document["kind"] not in ("Deployment", "DaemonSet"):
        return document
    spec: Document = document["spec"]["template"]["spec"]
    places = {"kubelet": str(machine.root), "cdi": str(machine.root / "cdi")}
    volumes = [
        {"name": item["name"], "hostPath": {"path": places[item["name"]], "type": "DirectoryOrCreate"}}
        for item in spec.get("volumes", ())
    ]
    (container,) = spec["containers"]
    _, _, *words = container["command"]
    flags = [f"--root-dir={machine.root}", f"--cdi-dir={machine.root}/cdi"] if words == ["node"] else []
    mounts = [{"name": item["name"], "mountPath": places[item["name"]]} for item in container.get("volumeMounts", ())]
    container |= {
        "image": "busybox",
        "command": [sys.executable, str(EXAMPLES / "acme-gpu/driver.py"), *words, *flags],
        "env": [*container.get("env", ()), {"name": "PYTHONPATH", "value": str(TOP / "src")}],
        "volumeMounts": mounts,
    }
    # Processes have no service account's folder; the file of the administrator does instead.
    container["env"].append({"name": "KUBECONFIG", "value": str(machine.server.kubeconfig)})
    return {
        **document,
        "spec": {
            **document["spec"],
            "template": {
                **document["spec"]["template"],
                "spec": {**spec, "containers": [container], "volumes": volumes},
            },
        },
    }


@pytest.fixture
def acme(kubectl: Kubectl, machine: Callable[..., Machine]) -> Iterator[tuple[Machine, Path]]:
    """The driver, deployed by the vendor's manifest on a node with one card of 8Gi; and what `initCommand` notes."""
    node = machine()
    vendor = kubectl.with_flags("--namespace=acme-gpu")
    for document in manifests("acme-gpu", "deploy.yaml"):
        vendor("apply", "-f", "-", stdin=deployed_on(document, node))
    kubectl("annotate", "node", node.name, "gpu.acme.com/cards=8Gi")
    # In a folder that the plugin's container shows.
    noted, command = node.root / "init.log", node.root / "acme-gpu-init"
    command.write_text(SCRIPT.format(log=noted))
    command.chmod(0o755)
    (document,) = manifests("acme-gpu", "class.yaml")
    document["parameters"]["initCommand"][0] = str(command)
    kubectl("apply", "-f", "-", stdin=document)
    for what in ("deployment/controller", "daemonset/node"):
        vendor("rollout", "status", what, "--timeout=60s")
    yield node, noted
    kubectl("delete", "resourceclass", "acme-gpu")
    for what in ("deployment/controller", "daemonset/node"):
        vendor("delete", what, "--wait=false")


def gpu_pod(name: str, memory: str, **more: Any) -> Document:
    (pod,) = manifests("acme-gpu", "pod.yaml")
    pod["spec"]["resourceClaims"][0]["template"]["spec"]["parameters"]["memory"] = memory
    pod["spec"]["containers"] = pod["spec"]["containers"][:1]
    return named(pod, name) | more


@pytest.mark.behaviour("CL-02", "CL-14", "CL-16", "CL-19", "CL-43", "CL-50")
def test_part_of_a_gpu(kubectl: Kubectl, acme: tuple[Machine, Path]) -> None:
    node, noted = acme
    kubectl("create", "-f", str(EXAMPLES / "acme-gpu/pod.yaml"))
    runs(kubectl, "device-consumer")
    made = claim(kubectl, "device-consumer-gpu")
    uid = made["metadata"]["uid"]
    assert made["status"]["attributes"] == {"node": node.name, "card": "0", "memory": "2Gi"}
    assert log(kubectl, "device-consumer", "workload") == f"card 0 memory 2Gi share {uid}"
    assert log(kubectl, "device-consumer", "monitor") == f"share {uid}"
    assert log(kubectl, "device-consumer", "log") == "share none"
    # The administrator's command ran once, for two containers.
    assert noted.read_text() == f"--cluster my-cluster 0 {uid}\n"
    # The rest of the card is for others, but no more than the rest.
    kubectl("create", "-f", "-", stdin=[gpu_pod("large", "6Gi"), gpu_pod("late", "2Gi")])
    until("one of them runs", lambda: "Running" in (phase(kubectl, "large"), phase(kubectl, "late")))
    until("the card is full", lambda: events(kubectl, "FailedScheduling"))
    kubectl("delete", "pod", "device-consumer")
    until("its share goes with it", lambda: is_gone(kubectl, "resourceclaims.cdi.k8s.io/device-consumer-gpu"))
    for name in ("large", "late"):
        runs(kubectl, name)
    kubectl("delete", "pod", "large", "late")
    until("all is free", lambda: not kubectl.get("resourceclaims.cdi.k8s.io")["items"])
    assert not list((node.root / "cdi").glob("*.json"))


@pytest.mark.behaviour("CL-19", "CL-43")
def test_in_production_a_deployment(kubectl: Kubectl, acme: tuple[Machine, Path]) -> None:
    pod = gpu_pod("any", "2Gi")
    labels = {"app": "consumer"}
    deployment: Document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "consumer"},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }
    kubectl("create", "-f", "-", stdin=deployment)
    kubectl("rollout", "status", "deployment/consumer", "--timeout=60s")
    pods = [item["metadata"]["name"] for item in kubectl.get("pods")["items"]]
    shares = {log(kubectl, name) for name in pods}
    assert len(shares) == 4
    claims = kubectl.get("resourceclaims.cdi.k8s.io")["items"]
    assert sorted(item["metadata"]["name"] for item in claims) == sorted(f"{name}-gpu" for name in pods)
    kubectl("delete", "deployment", "consumer")
    until("all is free", lambda: not kubectl.get("resourceclaims.cdi.k8s.io")["items"])
