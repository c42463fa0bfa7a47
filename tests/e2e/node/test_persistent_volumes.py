"""Claims as volumes of real containers: bound ones are mounted, others keep the Pod waiting."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.client.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from tests.containerd import needs_containerd
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.harness import (
    LOOK_SECONDS,
    POD_SECONDS_MAX,
    Agent,
    Cluster,
    container_status,
    shell,
)

RUNTIMES = ("cri",)
pytestmark = [needs_containerd, pytest.mark.behaviour("ST-46")]
CLASS = "none"


async def claimed(cluster: Cluster, name: str) -> Document:
    """A claim that nothing provisions."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "resources": {"requests": {"storage": "1Mi"}},
    }
    return await cluster.client.create(
        PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": name}, "spec": spec}, cluster.namespace
    )


async def bind(cluster: Cluster, claim: Document, **source: Any) -> str:
    """Create a volume for a claim, wait until they are bound, and return the name of the volume."""
    metadata = claim["metadata"]
    name = f"{cluster.namespace}-{metadata['name']}"
    reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "name": metadata["name"]}
    reference |= {"namespace": cluster.namespace, "uid": metadata["uid"]}
    spec = {
        "capacity": {"storage": "1Mi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "claimRef": reference,
        **source,
    }
    await cluster.client.create(PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": spec})
    deadline = time.monotonic() + POD_SECONDS_MAX
    while True:
        found = await cluster.client.get(PERSISTENT_VOLUME_CLAIMS, metadata["name"], cluster.namespace)
        if found["status"].get("phase") == "Bound":
            return name
        assert time.monotonic() < deadline, found
        await asyncio.sleep(LOOK_SECONDS)


def on_node(name: str) -> Document:
    requirement = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}


def claim_volume(name: str, claim: str, **fields: Any) -> Document:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, **fields}}


async def test_a_pod_waits_for_its_claim_and_writes_to_the_volume(
    cluster: Cluster, agent: Agent, kubectl: Kubectl, tmp_path: Path
) -> None:
    local, host = tmp_path / "local", tmp_path / "host"
    local.mkdir()
    (local / "old").write_text("old\n")
    first, second = await claimed(cluster, "local"), await claimed(cluster, "host")
    mounts = [
        {"name": "l", "mountPath": "/l"},
        {"name": "l", "mountPath": "/sub", "subPath": "deep/sub"},
        {"name": "h", "mountPath": "/h"},
        {"name": "r", "mountPath": "/r"},
    ]
    script = (
        "cat /l/old; id -G; echo new > /l/new; echo sub > /sub/file; echo host > /h/file;"
        " touch /r/x 2>/dev/null || echo ro; stat -c %g /l /l/old"
    )
    container = shell("a", script, volumeMounts=mounts, securityContext={"runAsUser": 1000})
    volumes = [
        claim_volume("l", "local"),
        claim_volume("h", "host"),
        claim_volume("r", "local", readOnly=True),
    ]
    await cluster.run("p", container, volumes=volumes, securityContext={"fsGroup": 4242})
    event = await cluster.event("p", "FailedMount")
    assert event["message"] == (
        f'MountVolume.SetUp failed for volume "l" : error processing PVC {cluster.namespace}/local: PVC is not bound'
    )
    await bind(cluster, first, local={"path": str(local)}, nodeAffinity=on_node(agent.name))
    host.mkdir(mode=0o777)
    host.chmod(0o777)
    await bind(cluster, second, hostPath={"path": str(host), "type": "Directory"})
    await cluster.phase("p", "Succeeded")
    assert kubectl("logs", "p").split() == ["old", "0", "4242", "ro", "4242", "4242"]
    assert (local / "new").read_text() == "new\n"
    assert (local / "deep/sub/file").read_text() == "sub\n"
    assert (host / "file").stat().st_gid != 4242
    await cluster.delete("p")
    await cluster.gone("p")
    assert (local / "new").exists()


async def test_a_volume_of_another_node_is_not_mounted(cluster: Cluster, tmp_path: Path) -> None:
    claim = await claimed(cluster, "c")
    name = await bind(cluster, claim, local={"path": str(tmp_path)}, nodeAffinity=on_node("another"))
    await cluster.run("p", shell("a", "true"), volumes=[claim_volume("v", "c")])
    event = await cluster.event("p", "FailedMount")
    assert event["message"].endswith(f'NodeAffinity check failed for volume "{name}" : no matching NodeSelectorTerms')
    pod = await cluster.phase("p", "Pending")
    assert container_status(pod)["state"]["waiting"]["reason"] == "ContainerCreating"
