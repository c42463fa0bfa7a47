"""The fixture `cluster` as used by driver authors."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dray.api.errors import APIError
from dray.cmd.testing.cluster import Cluster, running_cluster
from dray.cmd.testing.requests import WaitError
from dray.driver import (
    Claim,
    ClaimError,
    ContainerEdits,
    Device,
    Driver,
    DriverError,
    PreparedClaim,
    PreparedDevice,
    device,
)
from dray.driver.device_plugin import Allocation, DevicePlugin
from dray.driver.device_plugin import Device as PluginDevice
from dray.driver.prepared import preparer

EXAMPLES = Path(__file__).parents[3] / "examples"

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "lamps"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "lamp.example.com"'}}]},
}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "lamp"},
    "spec": {"devices": {"requests": [{"name": "lamp", "exactly": {"deviceClassName": "lamps"}}]}},
}


def pod(name: str, script: str = "echo $LAMP; sleep 600", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "resourceClaims": [{"name": "lamp", "resourceClaimName": "lamp"}],
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "command": ["sh", "-c", script],
                    "resources": {"claims": [{"name": "lamp"}]},
                }
            ],
            **spec,
        },
    }


class Lamps(Driver):
    name = "lamp.example.com"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refuses = ""

    def devices(self) -> Iterable[Device]:
        return [device("lamp-0", attributes={"colour": "red"})]

    def prepare(self, claim: Claim) -> Iterable[PreparedDevice]:
        self.calls.append("prepare")
        if self.refuses:
            raise ClaimError(self.refuses)
        return [lamp.prepared(ContainerEdits(env=(f"LAMP={lamp.name}",))) for lamp in claim.devices]

    def unprepare(self, claim: PreparedClaim) -> None:
        self.calls.append("unprepare")


def test_a_driver_from_class_to_output(cluster: Cluster) -> None:
    driver = Lamps()
    running = cluster.run_driver(driver)
    assert cluster.registered_drivers() == ["lamp.example.com"]
    cluster.apply([CLASS, CLAIM, pod("p")])
    found = cluster.wait_for("pod/p", "Running")
    assert found["spec"]["nodeName"] == cluster.node_name == "node-1"
    (item,) = cluster.slices("lamp.example.com")
    assert [one["name"] for one in item["spec"]["devices"]] == ["lamp-0"]
    (claim,) = cluster.claims()
    assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "lamp-0"
    cluster.wait_for("resourceclaim/lamp", "reserved")
    cluster.wait_for("pod/p", lambda _: cluster_logs(cluster) == "lamp-0\n")
    (resources,) = cluster.pod_resources()
    (dynamic,) = resources.containers[0].dynamic_resources
    assert dynamic.claim_resources[0].device_name == "lamp-0"
    assert {event["reason"] for event in cluster.events("p")} >= {"Scheduled", "Started"}
    assert list(cluster.cdi_dir.glob("*.json"))
    cluster.delete("pod/p")
    assert driver.calls == ["prepare", "unprepare"]
    running.stop()
    assert running.errors == []


def cluster_logs(cluster: Cluster) -> str:
    """Conditions run in the cluster's thread, which cannot make blocking calls, so the log file is read."""
    lines = [line for path in cluster.root_dir.rglob("*.log") for line in path.read_text().splitlines()]
    return "".join(f"{line.split(' ', 3)[3]}\n" for line in lines)


def test_the_node_and_the_driver_restart(cluster: Cluster) -> None:
    driver = Lamps()
    running = cluster.run_driver(driver)
    cluster.apply([CLASS, CLAIM, pod("p")])
    before = cluster.wait_for("pod/p", "Running")["status"]["containerStatuses"][0]["containerID"]
    cluster.restart_node()
    cluster.wait_for("pod/p", "Ready")
    running.kill()
    cluster.stop_node()
    assert cluster.registered_drivers() == []
    running.start()
    cluster.start_node()
    after = cluster.wait_for("pod/p", "Ready")["status"]["containerStatuses"][0]
    assert (after["containerID"], after["restartCount"]) == (before, 0)
    assert driver.calls == ["prepare"]
    running.restart()
    cluster.delete("pod/p")
    assert driver.calls == ["prepare", "unprepare"]


def test_diagnosis_of_a_failed_wait(cluster: Cluster) -> None:
    cluster.apply([CLASS, CLAIM, pod("p")])
    with pytest.raises(WaitError) as caught:
        cluster.wait_for("pod/p", "Running", timeout=2)
    text = str(caught.value)
    first, second, *_ = text.splitlines()
    assert first == "pod/p did not become Running within 2 s"
    assert second == "  pod default/p is pending, 0 of 1 nodes fit: node-1: no device of class lamps"
    assert "\n  phase Pending\n" in text
    assert "\n  claim lamp is not allocated\n" in text
    assert "\n  event Warning FailedScheduling" in text
    assert "\n  registered drivers: none\n  published devices: none" in text
    driver = Lamps()
    driver.refuses = "no power"
    cluster.run_driver(driver)
    cluster.wait_for("resourceclaim/lamp", "allocated")
    cluster.wait_for("pod/p", lambda _: len(driver.calls) > 1)
    problems = cluster.explain("pod/p")
    assert "\n  claim lamp has lamp.example.com/node-1/lamp-0\n" in problems
    assert "no power" in problems


class Shelf(Lamps):
    """Returns its devices instead of pools, and nothing when it prepares them slowly."""

    pools_are_wrong = True

    def __init__(self) -> None:
        super().__init__()
        self.continues = threading.Event()

    def pools(self) -> Any:
        return self.devices() if self.pools_are_wrong else super().pools()

    def prepare(self, claim: Claim) -> Any:
        self.calls.append("prepare")
        self.continues.wait(60)


def test_mistakes_of_a_driver_are_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Shelf()
    with pytest.raises(DriverError, match=r"Shelf.pools\(\) returned a list: return a dict of pools by name"):
        cluster.run_driver(driver)
    driver.pools_are_wrong = False
    monkeypatch.setattr(preparer, "SLOW_SECONDS", 0.01)
    cluster.run_driver(driver)
    cluster.apply([CLASS, CLAIM, pod("p")])
    cluster.wait_for("pod/p", lambda _: "prepare is still running" in caplog.messages)
    driver.continues.set()
    cluster.wait_for("pod/p", lambda _: len(driver.calls) > 1)
    assert "Shelf.prepare() returned None: return or yield one PreparedDevice" in cluster.explain("pod/p")


def test_waiting_for_a_finished_pod_fails_at_once(cluster: Cluster) -> None:
    cluster.run_driver(Lamps())
    cluster.apply([CLASS, CLAIM, pod("p", "echo sorry >&2; exit 3")])
    cluster.wait_for("pod/p", "Failed")
    with pytest.raises(WaitError, match="did not become Ready: it is already Failed") as caught:
        cluster.wait_for("pod/p", "Ready", timeout=100)
    assert "container main terminated: exit code 3: Error" in str(caught.value)
    assert "output of container main:\n    sorry" in str(caught.value)


@pytest.mark.parametrize("example", ["env-driver", "gpu-driver", "host-devices"])
def test_the_example_drivers_as_commands(cluster: Cluster, example: str) -> None:
    words = {"host-devices": ["/dev/null", "--"]}.get(example, [])
    running = cluster.run_driver([sys.executable, str(EXAMPLES / example / "driver.py"), *words])
    assert running.pid
    cluster.apply(EXAMPLES / example / "claim.yaml")
    (name,) = [item["metadata"]["name"] for item in cluster.list("pods")]
    cluster.wait_for(f"pod/{name}", lambda found: found["status"]["phase"] in ("Running", "Succeeded"))
    running.kill()
    assert running.pid == 0
    running.start()
    assert running.pid


def test_waiting_for_a_driver_that_exits_fails_at_once(cluster: Cluster) -> None:
    with pytest.raises(AssertionError, match=r"exited with code 3:\nno licence"):
        cluster.run_driver([sys.executable, "-c", "import sys; print('no licence', flush=True); sys.exit(3)"])
    with pytest.raises(WaitError, match=r"the driver was not registered within 0\.3 s"):
        cluster.run_driver(["sleep", "600"], timeout=0.3)


class Rulers(DevicePlugin):
    resource_name = "example.com/ruler"

    def devices(self) -> list[PluginDevice]:
        return [PluginDevice("r0"), PluginDevice("r1")]

    def allocate(self, ids: Any) -> Allocation:
        return Allocation(envs={"RULERS": ",".join(sorted(ids))})


def test_device_plugins(cluster: Cluster) -> None:
    cluster.device_plugin(Rulers())
    words = ["--resource", "example.com/null", "--pattern", "/dev/null", "--folder", "{device_plugins}"]
    command = [sys.executable, str(EXAMPLES / "device-plugin" / "host_devices.py"), *words]
    cluster.device_plugin(command, resource="example.com/null")
    body = pod("p", "echo $RULERS", resourceClaims=[])
    body["spec"]["containers"][0]["resources"] = {"limits": {"example.com/ruler": "2"}}
    cluster.apply(body)
    cluster.wait_for("pod/p", "Succeeded")
    assert cluster.logs("p") == "r0,r1\n"


@pytest.mark.dray(node=False, nodes=2)
def test_simulated_nodes(cluster: Cluster) -> None:
    assert cluster.nodes(3) == ["sim1-0", "sim1-1", "sim1-2"]
    assert sorted(item["metadata"]["name"] for item in cluster.list("nodes")) == [
        "sim-0", "sim-1", "sim1-0", "sim1-1", "sim1-2",
    ]  # fmt: skip
    cluster.apply({**pod("p", resourceClaims=[], containers=[{"name": "a", "image": "b"}])})
    assert cluster.wait_for("pod/p", "Running")["spec"]["nodeName"].startswith("sim")


@pytest.mark.dray(store="sqlite", feature_gates="DRADeviceTaintRules=false", node_name="here")
def test_cluster_options(cluster: Cluster) -> None:
    assert cluster.node_name == "here"
    assert (cluster.folder / "server" / "state.db").exists()
    assert [item["metadata"]["name"] for item in cluster.list("nodes")] == ["here"]


async def test_in_an_async_test(cluster: Cluster) -> None:
    await cluster.aio.apply([CLASS, CLAIM, pod("p")])
    await cluster.aio.run_driver(Lamps())
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    task = asyncio.create_task(tick())
    found = await cluster.aio.wait_for("pod/p", "Running")
    task.cancel()
    assert found["status"]["phase"] == "Running"
    # The test's own loop went on.
    assert ticks
    with pytest.raises(WaitError):
        await cluster.aio.wait_for("pod/other", "exists", timeout=0.01)


def test_sources_of_objects(cluster: Cluster, tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME}\n"
    cluster.apply(text.replace("NAME", "a"))
    (tmp_path / "b.yaml").write_text(f"{text.replace('NAME', 'b')}---\n{text.replace('NAME', 'c')}")
    (tmp_path / "d.yml").write_text(text.replace("NAME", "d"))
    cluster.apply(tmp_path)
    cluster.apply(str(tmp_path / "b.yaml"))
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "e-"}})
    names = sorted(item["metadata"]["name"] for item in cluster.list("cm", namespace="default"))
    assert [name for name in names if name != "kube-root-ca.crt"][:4] == ["a", "b", "c", "d"]
    with pytest.raises(LookupError, match="does not serve kind Nothing in v1"):
        cluster.apply({"apiVersion": "v1", "kind": "Nothing", "metadata": {"name": "x"}})
    with pytest.raises(LookupError, match='"p": specify the kind, for example pod/p'):
        cluster.get("p")
    with pytest.raises(APIError, match="field not declared in schema"):
        cluster.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: f}\nfoo: bar\n")


def test_a_namespace_and_its_pods_in_one_manifest(cluster: Cluster) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}}
    cluster.apply([namespace, pod("p", "echo hello", resourceClaims=[], containers=[
        {"name": "a", "image": "none", "command": ["echo", "hello"]}])], namespace="mine")  # fmt: skip
    cluster.wait_for("pod/p", "Succeeded", namespace="mine")
    assert cluster.logs("p", namespace="mine") == "hello\n"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl(cluster: Cluster) -> None:
    assert "node-1" in cluster.kubectl("get", "nodes")
    with pytest.raises(AssertionError, match=r'kubectl get pod nothing exited with code 1: .*pods "nothing" not found'):
        cluster.kubectl("get", "pod", "nothing")


def test_all_files_and_processes_are_removed() -> None:
    before = set(threading.enumerate())
    with running_cluster() as cluster:
        cluster.run_driver(Lamps())
        cluster.apply([CLASS, CLAIM, pod("p")])
        cluster.wait_for("pod/p", "Running")
        folder = cluster.folder
    assert not folder.exists()
    assert {item.name for item in set(threading.enumerate()) - before if item.name == "dray cluster"} == set()
    shims = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)
    assert shims.stdout == ""


def test_the_clusters_thread_cannot_wait_for_itself(cluster: Cluster) -> None:
    caught: list[Exception] = []

    def ask(_: object) -> bool:
        try:
            cluster.get("node/node-1")
        except RuntimeError as error:
            caught.append(error)
        return True

    cluster.wait_for("node/node-1", ask)
    assert str(caught[0]) == "called from the cluster's own thread, which would block; call it from another thread"
