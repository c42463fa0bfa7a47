"""`kubectl drain` with disruption budgets, on simulated nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.kubectl.test_kubectl_workloads import workload
from tests.e2e.kubectl.tool import Document, Kubectl
from tests.servers import Server, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server"), "--nodes=2", "--store=memory") as running:
        yield running


def budget(**spec: object) -> Document:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
    }


@pytest.mark.behaviour("DB-30", "DB-33")
def test_drain_waits_for_the_budget(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=[workload("Deployment", "web", replicas=2), budget(maxUnavailable=0)])
    kubectl("rollout", "status", "deployment/web", "--timeout=25s")
    kubectl("wait", "pdb/web", "--for=jsonpath={.status.currentHealthy}=2", "--timeout=25s")
    (row,) = kubectl.table("pdb")
    assert (row["MIN AVAILABLE"], row["MAX UNAVAILABLE"], row["ALLOWED DISRUPTIONS"]) == ("N/A", "0", "0")
    node = kubectl.get("pods")["items"][0]["spec"]["nodeName"]
    refused = kubectl.run("drain", node, "--timeout=1s", "--ignore-daemonsets")
    assert refused.code == 1
    assert "Cannot evict pod as it would violate the pod's disruption budget." in refused.err
    assert len(kubectl.get("pods", f"--field-selector=spec.nodeName={node}")["items"]) >= 1
    kubectl("patch", "pdb", "web", "-p", '{"spec":{"maxUnavailable":1}}')
    assert f"node/{node} drained" in kubectl("drain", node, "--timeout=40s", "--ignore-daemonsets")
    assert kubectl.get("pods", f"--field-selector=spec.nodeName={node}")["items"] == []
    kubectl("uncordon", node)
