"""`kubectl create quota`, `describe`, and the errors when a quota is exceeded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Document, Kubectl, create_namespace
from tests.servers import running_server

WAIT_SECONDS_MAX = 120.0


def until_used(kubectl: Kubectl, name: str, **wanted: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while (found := kubectl.get("quota", name)["status"].get("used")) != wanted:
        assert time.monotonic() < deadline, f"usage stayed {found}"


def claim(name: str) -> Document:
    exactly = {"deviceClassName": "gpu", "count": 2}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


def test_describe_and_get_show_usage(kubectl: Kubectl) -> None:
    kubectl("create", "quota", "q", "--hard=secrets=3,requests.memory=1Gi,limits.cpu=2")
    until_used(kubectl, "q", **{"secrets": "0", "requests.memory": "0", "limits.cpu": "0"})
    pod = bodies.pod("p")
    pod["spec"]["containers"][0]["resources"] = {"requests": {"memory": "256Mi"}, "limits": {"cpu": "500m"}}
    kubectl("create", "-f", "-", stdin=pod)
    kubectl("create", "secret", "generic", "s")
    lines = [line.split() for line in kubectl("describe", "quota", "q").splitlines()]
    assert ["limits.cpu", "500m", "2"] in lines
    assert ["requests.memory", "256Mi", "1Gi"] in lines
    assert ["secrets", "1", "3"] in lines
    row = kubectl.table("quota", "q")[0]
    assert row["REQUEST"] == "requests.memory: 256Mi/1Gi, secrets: 1/3"
    assert row["LIMIT"] == "limits.cpu: 500m/2"


def test_exceeding_a_quota_is_forbidden(kubectl: Kubectl) -> None:
    kubectl("create", "quota", "q", "--hard=secrets=1")
    until_used(kubectl, "q", secrets="0")
    kubectl("create", "secret", "generic", "one")
    assert kubectl.error("create", "secret", "generic", "two") == (
        'error: failed to create secret secrets "two" is forbidden: exceeded quota: q, requested: secrets=1, '
        "used: secrets=1, limited: secrets=1"
    )
    kubectl("delete", "secret", "one")
    until_used(kubectl, "q", secrets="0")
    kubectl("create", "secret", "generic", "two")


def test_containers_must_specify_limited_resources(kubectl: Kubectl) -> None:
    kubectl("create", "quota", "q", "--hard=limits.cpu=1,limits.memory=1Gi")
    until_used(kubectl, "q", **{"limits.cpu": "0", "limits.memory": "0"})
    assert kubectl.error("create", "-f", "-", stdin=bodies.pod("p")) == (
        'Error from server (Forbidden): error when creating "STDIN": pods "p" is forbidden: failed quota: q: '
        "must specify limits.cpu for: main; limits.memory for: main"
    )


@pytest.mark.behaviour("SP-142")
def test_devices_of_a_class_are_limited(kubectl: Kubectl) -> None:
    devices = "gpu.deviceclass.resource.k8s.io/devices"
    kubectl("create", "quota", "q", f"--hard={devices}=3")
    until_used(kubectl, "q", **{devices: "0"})
    kubectl("create", "-f", "-", stdin=claim("one"))
    assert kubectl.error("create", "-f", "-", stdin=claim("two")) == (
        'Error from server (Forbidden): error when creating "STDIN": resourceclaims.resource.k8s.io "two" is '
        f"forbidden: exceeded quota: q, requested: {devices}=2, used: {devices}=2, limited: {devices}=3"
    )


def test_usage_survives_a_crash(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        create_namespace(server.url, "team")
        kubectl = Kubectl(server.environment, "team")
        kubectl("create", "quota", "q", "--hard=secrets=2")
        until_used(kubectl, "q", secrets="0")
        kubectl("create", "secret", "generic", "one")
        kubectl("create", "secret", "generic", "two")
        server.kill()
    with running_server(tmp_path) as server:
        kubectl = Kubectl(server.environment, "team")
        assert "exceeded quota" in kubectl.error("create", "secret", "generic", "three")
        kubectl("delete", "secret", "one")
        until_used(kubectl, "q", secrets="1")
        kubectl("create", "secret", "generic", "three")
