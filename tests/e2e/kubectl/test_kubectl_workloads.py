"""Workloads with kubectl: rollouts, rollbacks, scaling, waiting; on simulated nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.kubectl.tool import Document, Kubectl
from tests.servers import Server, running_server

NODES = 3
TIMEOUT = "--timeout=25s"
SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server"), f"--nodes={NODES}", "--store=memory") as running:
        yield running


def workload(kind: str, name: str, **spec: object) -> Document:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "image:1"}]},
            },
            **spec,
        },
    }


def job(name: str, *, code: int = 0, seconds: str = "0.2", **spec: object) -> Document:
    annotations = {"simulation.dray.dev/run-seconds": seconds, "simulation.dray.dev/exit-code": str(code)}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "image:1"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": pod}, **spec},
    }


def images(kubectl: Kubectl, selector: str) -> set[str]:
    pods = kubectl.get("pods", f"--selector={selector}")["items"]
    return {pod["spec"]["containers"][0]["image"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}


def revisions(kubectl: Kubectl, resource: str) -> list[str]:
    """The numbers that `rollout history` lists."""
    lines = kubectl("rollout", "history", resource).splitlines()
    return [line.split()[0] for line in lines if line[:1].isdigit()]


def test_deployments_roll_out_and_back(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=workload("Deployment", "web", replicas=3))
    assert 'deployment "web" successfully rolled out' in kubectl("rollout", "status", "deployment/web", TIMEOUT)
    (row,) = kubectl.table("deployment", "web")
    assert (row["READY"], row["UP-TO-DATE"], row["AVAILABLE"]) == ("3/3", "3", "3")
    kubectl("set", "image", "deployment/web", "c=image:2")
    kubectl("rollout", "status", "deployment/web", TIMEOUT)
    assert images(kubectl, "app=web") == {"image:2"}
    assert revisions(kubectl, "deployment/web") == ["1", "2"]
    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", TIMEOUT)
    assert images(kubectl, "app=web") == {"image:1"}
    assert revisions(kubectl, "deployment/web") == ["2", "3"]
    kubectl("scale", "deployment/web", "--replicas=5")
    kubectl("rollout", "status", "deployment/web", TIMEOUT)
    assert kubectl.field("deployment/web", "status.availableReplicas") == "5"
    kubectl("rollout", "restart", "deployment/web")
    kubectl("rollout", "status", "deployment/web", TIMEOUT)
    assert revisions(kubectl, "deployment/web") == ["2", "3", "4"]
    described = kubectl("describe", "deployment", "web")
    assert "Scaled up replica set web-" in described
    assert "NewReplicaSetAvailable" in described


def test_a_paused_deployment_waits(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=workload("Deployment", "web", replicas=1))
    kubectl("rollout", "status", "deployment/web", TIMEOUT)
    kubectl("rollout", "pause", "deployment/web")
    kubectl("set", "image", "deployment/web", "c=image:2")
    kubectl("wait", "--for=condition=Progressing=Unknown", "deployment/web", TIMEOUT)
    assert images(kubectl, "app=web") == {"image:1"}
    kubectl("rollout", "resume", "deployment/web")
    kubectl("rollout", "status", "deployment/web", TIMEOUT)
    assert images(kubectl, "app=web") == {"image:2"}


def test_deleting_a_deployment_deletes_its_dependents(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=workload("Deployment", "web", replicas=2))
    kubectl("rollout", "status", "deployment/web", TIMEOUT)
    kubectl("delete", "deployment", "web", "--cascade=foreground", TIMEOUT)
    assert kubectl.get("replicasets,pods")["items"] == []


def test_replica_sets_scale(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=workload("ReplicaSet", "web", replicas=1))
    kubectl("scale", "replicaset/web", "--replicas=4")
    kubectl("wait", "--for=jsonpath={.status.readyReplicas}=4", "replicaset/web", TIMEOUT)
    (row,) = kubectl.table("replicaset", "web")
    assert (row["DESIRED"], row["CURRENT"], row["READY"]) == ("4", "4", "4")


def test_daemon_sets_roll_out_and_back(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=workload("DaemonSet", "agent"))
    kubectl("rollout", "status", "daemonset/agent", TIMEOUT)
    (row,) = kubectl.table("daemonset", "agent")
    assert (row["DESIRED"], row["READY"], row["UP-TO-DATE"], row["AVAILABLE"]) == (str(NODES),) * 4
    nodes = {pod["spec"]["nodeName"] for pod in kubectl.get("pods", "--selector=app=agent")["items"]}
    assert len(nodes) == NODES
    kubectl("set", "image", "daemonset/agent", "c=image:2")
    kubectl("rollout", "status", "daemonset/agent", TIMEOUT)
    assert revisions(kubectl, "daemonset/agent") == ["1", "2"]
    assert "image:1" in kubectl("rollout", "history", "daemonset/agent", "--revision=1")
    kubectl("rollout", "undo", "daemonset/agent")
    kubectl("rollout", "status", "daemonset/agent", TIMEOUT)
    assert images(kubectl, "app=agent") == {"image:1"}
    assert revisions(kubectl, "daemonset/agent") == ["2", "3"]
    rows = kubectl.table("controllerrevisions")
    assert {row["CONTROLLER"] for row in rows} == {"daemonset.apps/agent"}


def test_waiting_for_jobs(kubectl: Kubectl) -> None:
    kubectl(
        "apply", "--filename=-", stdin=[job("good", completions=3, parallelism=2), job("bad", code=1, backoffLimit=0)]
    )
    kubectl("wait", "--for=condition=complete", "job/good", TIMEOUT)
    kubectl("wait", "--for=condition=failed", "job/bad", TIMEOUT)
    rows = {row["NAME"]: row for row in kubectl.table("jobs")}
    assert (rows["good"]["STATUS"], rows["good"]["COMPLETIONS"]) == ("Complete", "3/3")
    assert (rows["bad"]["STATUS"], rows["bad"]["COMPLETIONS"]) == ("Failed", "0/1")
    described = kubectl("describe", "job", "bad")
    assert "BackoffLimitExceeded" in described
    assert "Job has reached the specified backoff limit" in described
    kubectl("delete", "jobs", "--all", TIMEOUT)
    deadline = time.monotonic() + SECONDS_MAX
    while kubectl.get("pods")["items"]:
        assert time.monotonic() < deadline, "the Pods stay"


def test_a_job_is_suspended_resumed_and_cleaned_up(kubectl: Kubectl) -> None:
    kubectl("apply", "--filename=-", stdin=job("later", suspend=True, ttlSecondsAfterFinished=0))
    kubectl("wait", "--for=condition=suspended", "job/later", TIMEOUT)
    assert kubectl.get("pods")["items"] == []
    kubectl("patch", "job", "later", '--patch={"spec": {"suspend": false}}')
    kubectl.wait_until_gone("job/later")
