"""The SR-IOV example, up to the container that reads its metadata; only sysfs and the program `ip` are fakes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import yaml

from dray.api.document import Document, GroupVersion
from dray.client.interface import unstructured
from tests.containerd import needs_containerd
from tests.e2e.driver.cluster import until
from tests.e2e.kubectl.tool import Kubectl
from tests.e2e.node.harness import PODS, Agent, Cluster, is_running
from tests.e2e.node.test_claims import CLAIMS, CLASSES
from tests.servers import Server

EXAMPLE = Path(__file__).parents[3] / "examples/sriov-driver"
TEMPLATES = unstructured(GroupVersion("resource.k8s.io", "v1"), "resourceclaimtemplates", "ResourceClaimTemplate")
runtime = pytest.fixture(scope="module")(lambda: "process" if needs_containerd.args[0] else "cri")
CARD = {"sriov_totalvfs": "8", "sriov_numvfs": "2", "net/pf0/speed": "25000", "net/pf0/operstate": "up"}


def card_with_two_functions(root: Path) -> Path:
    (root / "bus/pci/devices").mkdir(parents=True)
    (root / "class/net").mkdir(parents=True)
    for number, (name, bus_id) in enumerate([("pf0", "0000:3b:00.0"), ("v0", "0000:3b:02.0"), ("v1", "0000:3b:02.1")]):
        device = root / "devices/pci0000:3a" / bus_id
        (device / "net" / name).mkdir(parents=True)
        (device / "numa_node").write_text("1")
        (device / "net" / name / "address").write_text(f"02:00:00:00:00:0{number}")
        (device / "net" / name / "device").symlink_to(device)
        (root / "bus/pci/devices" / bus_id).symlink_to(device)
        (root / "class/net" / name).symlink_to(device / "net" / name)
    card = root / "devices/pci0000:3a/0000:3b:00.0"
    for file, text in CARD.items():
        (card / file).write_text(text)
    for number in range(2):
        (card / f"virtfn{number}").symlink_to(f"../0000:3b:02.{number}")
    return root


@contextlib.contextmanager
def driver(agent: Agent, server: Server, folder: Path) -> Iterator[None]:
    program = folder / "ip"
    program.write_text(f'#!/bin/sh\necho "$@" >>{folder}/ip.log\n')
    program.chmod(0o755)
    environ = {**os.environ, "SRIOV_SYSFS": str(card_with_two_functions(folder / "sys")), "SRIOV_IP": str(program)}
    flags = (f"--node-name={agent.name}", f"--kubeconfig={server.kubeconfig}", f"--root-dir={agent.root}")
    command = (sys.executable, str(EXAMPLE / "driver.py"), *flags, f"--cdi-dir={agent.root}/cdi")
    with subprocess.Popen(command, env=environ) as process, contextlib.ExitStack() as stack:
        stack.callback(process.terminate)
        yield


async def device_statuses(cluster: Cluster) -> list[Document]:
    claims = (await cluster.client.list(CLAIMS, cluster.namespace)).items
    return [device for claim in claims for device in claim["status"].get("devices", ())]


@pytest.mark.behaviour("N-24", "N-26", "N-30", "N-34")
async def test_a_container_reads_its_interface(
    cluster: Cluster, agent: Agent, server: Server, kubectl: Kubectl, tmp_path: Path
) -> None:
    made = {item["kind"]: item for item in yaml.safe_load_all((EXAMPLE / "claim.yaml").read_text())}
    made["DeviceClass"]["metadata"]["name"] = name = f"sriov-{agent.name}.example.com"
    made["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = name
    await cluster.client.create(CLASSES, made["DeviceClass"])
    await cluster.client.create(TEMPLATES, made["ResourceClaimTemplate"], cluster.namespace)
    made["Pod"]["spec"] |= {"nodeName": None, "nodeSelector": {"kubernetes.io/hostname": agent.name}}
    (container,) = made["Pod"]["spec"]["containers"]
    container["command"][2] += "; sleep 1000"
    container["imagePullPolicy"] = "IfNotPresent"
    with driver(agent, server, tmp_path):
        await cluster.client.create(PODS, made["Pod"], cluster.namespace)
        await cluster.wait("sriov-user", lambda pod: is_running("main")(pod) and "Healthy" in str(pod["status"]))
        await until(lambda: device_statuses(cluster))
        await until(lambda: len(kubectl("logs", "sriov-user").splitlines()) == 2)
        content = [orjson.loads(line) for line in kubectl("logs", "sriov-user").splitlines()]
        assert [item["apiVersion"].partition("/")[2] for item in content] == ["v1beta1", "v1alpha1"]
        (device,) = content[0]["requests"][0]["devices"]
        ((status,),) = [
            item["status"]["devices"] for item in (await cluster.client.list(CLAIMS, cluster.namespace)).items
        ]
        interface = f"v{device['name'][-1]}"
        assert (status["conditions"][0]["type"], status["networkData"]) == ("Ready", device["networkData"])
        assert (device["networkData"]["interfaceName"], device["networkData"]["ips"]) == (interface, ["10.0.0.2/24"])
        assert device["attributes"]["resource.kubernetes.io/numaNode"] == {"int": 1}
        kubectl("delete", "pod", "sriov-user", "--grace-period=1")
        log = (tmp_path / "ip.log").read_text().splitlines()
        assert log[::2] == [f"link set dev pf0 vf {interface[1:]} vlan {vlan}" for vlan in (100, 0)]
        assert log[1::2] == [f"link set dev {interface} mtu {mtu}" for mtu in (9000, 1500)]
        assert list((agent.root / "cdi").glob("*.json")) == []
