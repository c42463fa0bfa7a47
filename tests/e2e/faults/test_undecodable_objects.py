"""A store has objects of every kind that cannot be decoded, from the start. Everything else works as ever."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from dray.store.sqlite import SQLiteStore
from dray.store.state import CompactionPolicy
from tests.damaged_objects import damaged_objects, plant
from tests.e2e.apiserver.calls import calling
from tests.e2e.components import component
from tests.e2e.kubectl.tool import Kubectl, kubectl_path, write
from tests.servers import Server, running_server

SECONDS_MAX = 60.0
PROTOBUF = "application/vnd.kubernetes.protobuf"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "good"},
    "status": {"capacity": {"cpu": "8", "memory": "8Gi", "pods": "100"}},
}


def deployment(name: str) -> dict[str, object]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def _plant(folder: Path) -> int:
    store = await SQLiteStore.open(folder / "state.db", policy=CompactionPolicy(age_seconds=300))
    try:
        return await plant(store)
    finally:
        await store.close()


@dataclass(slots=True)
class Cluster:
    """A server, and the addresses that have health checks and metrics of controllers and scheduler."""

    server: Server
    pages: tuple[str, ...]

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.server.environment, namespace="default")

    def page(self, path: str) -> str:
        """The page of every process, together."""
        with calling(self.server) as caller:
            found = [caller.call("GET", path).body.decode()]
        found += [_read(f"{address}{path}") for address in self.pages]
        return "\n".join(found)


def _read(url: str) -> str:
    return subprocess.run(("curl", "-sS", url), capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", params=["one process", "processes"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("damaged")
    data = folder / "data"
    data.mkdir(mode=0o700)
    assert asyncio.run(_plant(data)) > 300
    with ExitStack() as stack:
        if request.param == "one process":
            flags = ("--nodes=1", "--node", "--node-runtime=process", f"--node-root-dir={folder / 'node'}")
            yield Cluster(stack.enter_context(running_server(data, *flags)), ())
            return
        untainted = "--disable-admission-plugins=TaintNodesByCondition"
        server = stack.enter_context(running_server(data, untainted, command="apiserver"))
        pages = [
            stack.enter_context(component(server, name, folder / f"{name}.log"))
            for name in ("controller-manager", "scheduler")
        ]
        cluster = Cluster(server, tuple(pages))
        cluster.kubectl("apply", "-f", write(folder / "node.json", [NODE]))
        yield cluster


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def nodes_of(cluster: Cluster, app: str) -> list[str]:
    """The nodes of the Pods of a Deployment, as far as they have one."""
    return cluster.kubectl("get", "pods", "-l", f"app={app}", "-o", "jsonpath={.items[*].spec.nodeName}").split()


@pytest.mark.behaviour("UD-01", "UD-03")
def test_others_are_reconciled_and_scheduled(cluster: Cluster, tmp_path: Path) -> None:
    cluster.kubectl("apply", "-f", write(tmp_path / "good.json", [deployment("good")]))
    until(lambda: len(nodes_of(cluster, "good")) == 2)
    cluster.kubectl("create", "namespace", "passing")
    cluster.kubectl("delete", "namespace", "passing", f"--timeout={SECONDS_MAX:.0f}s")
    cluster.kubectl("delete", "deployment", "good", "--cascade=background")


@pytest.mark.behaviour("UD-02")
def test_users_are_told(cluster: Cluster) -> None:
    text = cluster.page("/readyz?verbose")
    assert "objects are ignored" in text
    assert "readyz check passed" in text
    assert "readyz check failed" not in text
    assert "bad-other-types" in cluster.page("/readyz/decodable-objects")
    assert 'dray_undecodable_objects{component="kube-controller-manager",group="apps",resource="deployments"} 3' in (
        cluster.page("/metrics")
    )
    until(lambda: "Undecodable" in cluster.kubectl("get", "events", "--field-selector=involvedObject.kind=Deployment"))
    logged = "".join(log.read_text() for log in cluster.server.data_dir.parent.glob("**/*.log"))
    logged += cluster.server.log.read_text()
    assert logged.count('resource="deployments.apps" object="default/bad-other-types"') == 1
    assert "Traceback" not in logged


@pytest.mark.behaviour("UD-06")
def test_doctor_names_them_and_its_advice_helps(cluster: Cluster) -> None:
    command = (sys.executable, "-m", "dray", "doctor", "-o", "json", f"--kubeconfig={cluster.server.kubeconfig}")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 1, done.stderr
    findings = {
        item["subject"]: item for item in json.loads(done.stdout)["items"] if item["rule"] == "undecodable-object"
    }
    advice = findings["deployment default/bad-null-labels"]["advice"]
    read, _, write_again = advice.partition(": ")[2].partition(";")[0].partition(" | ")
    document = cluster.kubectl(*read.split()[1:])
    subprocess.run(
        (kubectl_path(), *write_again.split()[1:]),
        input=document,
        text=True,
        check=True,
        env=cluster.server.environment,
    )
    app = json.loads(document)["spec"]["selector"]["matchLabels"]
    (label, value), *_ = app.items()
    until(lambda: bool(cluster.kubectl("get", "replicasets", "-l", f"{label}={value}", "-o", "name")))


@pytest.mark.behaviour("UD-04")
@pytest.mark.parametrize("accept", ["application/json", TABLE, PROTOBUF])
def test_every_kind_is_listed(cluster: Cluster, accept: str) -> None:
    failed = []
    with calling(cluster.server) as caller:
        for endpoint in {endpoint.prefix: endpoint for endpoint, *_ in damaged_objects()}.values():
            group = endpoint.group_version.group
            root = f"/apis/{endpoint.api_version}" if group else f"/api/{endpoint.version}"
            answer = caller.call("GET", f"{root}/{endpoint.resource.resource}", Accept=f"{accept}, application/json")
            if answer.status not in (200, 404):
                failed.append((str(endpoint.gvk), answer.status, answer.body[:200]))
    assert failed == []


@pytest.mark.behaviour("UD-05")
def test_all_can_be_deleted(cluster: Cluster) -> None:
    """The last test: what is damaged is gone, whatever finalizers it names."""
    failed = []
    with calling(cluster.server) as caller:
        for endpoint, namespace, name, _ in damaged_objects():
            group = endpoint.group_version.group
            root = f"/apis/{endpoint.api_version}" if group else f"/api/{endpoint.version}"
            place = f"/namespaces/{namespace}" if namespace else ""
            answer = caller.call("DELETE", f"{root}{place}/{endpoint.resource.resource}/{name}?gracePeriodSeconds=0")
            if answer.status not in (200, 202, 404):
                failed.append((str(endpoint.gvk), name, answer.status, answer.body[:300]))
    assert failed == []
