"""`kubectl top` and the agent's own statistics, by processes and by containerd alike."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from pathlib import Path

import pytest

from tests.e2e.kubectl.tool import Kubectl, needs_kubectl
from tests.e2e.node.conftest import BOTH
from tests.e2e.node.harness import Cluster, is_running, shell
from tests.servers import Server

RUNTIMES = BOTH
BUSY = "while true; do :; done"


@pytest.fixture(scope="module")
def flags() -> tuple[str, ...]:
    return ("--housekeeping-interval=500ms",)


@needs_kubectl(25)
@pytest.mark.behaviour("EX-47", "EX-48")
async def test_top(cluster: Cluster, kubectl: Kubectl) -> None:
    labels = {"labels": {"app": "busy"}}
    await cluster.run("p", shell("busy", BUSY), shell("idle", "sleep 1000"), metadata=labels)
    await cluster.wait("p", is_running("idle"))
    # Answers are kept for some seconds, so that the first may be from before the Pod was measured.
    await cluster.until(lambda: kubectl.run("top", "pod", "p").code == 0)

    rows = [line.split() for line in kubectl("top", "pods", "--containers", "--no-headers").splitlines()]
    assert [row[:2] for row in rows] == [["p", "busy"], ["p", "idle"]]
    busy, idle = (int(row[2].removesuffix("m")) for row in rows)
    assert busy > 50
    assert idle < busy / 2
    assert kubectl("top", "pods", "-A", "-l", "app=busy", "--no-headers").split()[:2] == [cluster.namespace, "p"]
    assert "No resources found" in kubectl.run("top", "pods", "-l", "app=other").err

    nodes = {line.split()[0]: line.split() for line in kubectl("top", "nodes", "--no-headers").splitlines()}
    node = nodes[cluster.node]
    assert int(node[1].removesuffix("m")) >= busy / 2
    assert node[4].endswith("%")

    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{cluster.namespace}/pods"
    (item,) = json.loads(kubectl("get", "--raw", f"{path}?fieldSelector=metadata.name%3Dp"))["items"]
    assert item["metadata"]["labels"] == {"app": "busy"}
    assert item["window"] == "500ms"
    assert item["containers"][0]["usage"]["cpu"].endswith("n")
    assert item["containers"][0]["usage"]["memory"].endswith("Ki")
    assert "NotFound" in kubectl.run("get", "--raw", f"{path}/none").err
    assert "is not a known field selector" in kubectl.run("get", "--raw", f"{path}?fieldSelector=spec.nodeName%3Dx").err

    # `pods` alone are still those of the core group.
    for names in (("pods.metrics.k8s.io",), ("pods.metrics.k8s.io", "p")):
        assert kubectl("get", *names, "--no-headers").split()[0] == "p"
    assert kubectl("get", "pod,pods", "-o", "name").split() == ["pod/p"]

    proxy = f"/api/v1/nodes/{cluster.node}/proxy"
    summary = json.loads(kubectl("get", "--raw", f"{proxy}/stats/summary"))
    assert summary["node"]["nodeName"] == cluster.node
    assert summary["node"]["fs"]["capacityBytes"] > 0
    (pod,) = (pod for pod in summary["pods"] if pod["podRef"]["namespace"] == cluster.namespace)
    assert pod["cpu"]["usageCoreNanoSeconds"] >= pod["containers"][0]["cpu"]["usageCoreNanoSeconds"] > 0
    text = kubectl("get", "--raw", f"{proxy}/metrics/resource")
    assert f'container_cpu_usage_seconds_total{{container="busy",namespace="{cluster.namespace}",pod="p"}} ' in text
    assert "\nresource_scrape_error 0\n" in text
    # Not at once: the agent, which ends soon, would leave the busy container to its runtime.
    await cluster.delete("p", 1)
    await cluster.gone("p")


SCRAPER = """
apiVersion: v1
kind: ServiceAccount
metadata: {{name: scraper, namespace: {namespace}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: scraper-{namespace}}}
rules: [{{apiGroups: [""], resources: [nodes/metrics, nodes/configz], verbs: [get]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: scraper-{namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scraper-{namespace}}}
subjects: [{{kind: ServiceAccount, name: scraper, namespace: {namespace}}}]
"""


@needs_kubectl(25)
@pytest.mark.behaviour("EX-48", "EX-49")
async def test_a_service_account_asks_the_agent_itself(
    server: Server, cluster: Cluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    """As metrics-server and the topology updater of node-feature-discovery do."""
    manifest = tmp_path / "scraper.yaml"
    manifest.write_text(SCRAPER.format(namespace=cluster.namespace))
    kubectl("apply", "-f", str(manifest))
    token = kubectl("create", "token", "scraper").strip()
    node = json.loads(kubectl("get", "node", cluster.node, "-o", "json"))
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    address = node["status"]["addresses"][0]["address"]
    authority = server.data_dir / "pki" / "kubelet-serving-ca.crt"

    def fetch(path: str, bearer: str) -> tuple[int, str]:
        tls = ssl.create_default_context(cafile=str(authority))
        connection = http.client.HTTPSConnection(address, port, timeout=30, context=tls)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {bearer}"} if bearer else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    async def ask(path: str, bearer: str = token) -> tuple[int, str]:
        return await asyncio.to_thread(fetch, path, bearer)

    await cluster.until(lambda: "node_cpu_usage_seconds_total" in fetch("/metrics/resource", token)[1])
    status, body = await ask("/configz")
    configuration = json.loads(body)["kubeletconfig"]
    assert status == 200
    assert configuration["port"] == port
    assert (configuration["cpuManagerPolicy"], configuration["topologyManagerScope"]) == ("none", "container")
    user = f"system:serviceaccount:{cluster.namespace}:scraper"
    refusal = f"Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
    assert await ask("/pods") == (403, refusal)
    assert (await ask("/exec/default/p/c?command=id&output=1"))[0] == 403
    for bearer in ("", "wrong"):
        assert await ask("/metrics/resource", bearer) == (401, "Unauthorized")
