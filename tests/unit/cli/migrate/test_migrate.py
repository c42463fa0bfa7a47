"""The plan of a migration and its check, with clusters read from files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.api.document import Document
from dray.cli.migrate.command import main

GPU = "example.com/gpu"
DRIVER = "gpu.example.com"
CLASS_KEY = f"{DRIVER}.deviceclass.resource.k8s.io/devices"
OLD_KEY = f"requests.{GPU}"


def node(name: str, plugin: int | None = None, capacity: int | None = None) -> Document:
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    own = {} if plugin is None else {GPU: str(plugin)}
    whole = own if capacity is None else {GPU: str(capacity)}
    status = {"allocatable": amounts | own, "capacity": amounts | whole}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def resource_slice(node_name: str, count: int, driver: str = DRIVER) -> Document:
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(count)]
    spec = {"driver": driver, "nodeName": node_name, "pool": pool, "devices": devices}
    metadata = {"name": f"{node_name}-{driver}"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def device_class(name: str = DRIVER, resource: str | None = GPU, created: str = "2026-01-01T00:00:00Z") -> Document:
    spec: Document = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    if resource is not None:
        spec["extendedResourceName"] = resource
    metadata = {"name": name, "creationTimestamp": created}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": spec}


def pod(name: str, node_name: str = "", claim: str = "", count: int = 1) -> Document:
    resources = {"requests": {GPU: str(count)}, "limits": {GPU: str(count)}}
    spec: Document = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
    status: Document = {"phase": "Running" if node_name else "Pending"}
    if node_name:
        spec["nodeName"] = node_name
    if claim:
        mapping = {"containerName": "c", "resourceName": GPU, "requestName": "container-0-request-0"}
        status["extendedResourceClaimStatus"] = {"resourceClaimName": claim, "requestMappings": [mapping]}
    metadata = {"name": name, "namespace": "team", "uid": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def claim(name: str, node_name: str, device: str, user: str) -> Document:
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}
    result = {"request": "container-0-request-0", "driver": DRIVER, "pool": node_name, "device": device}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "container-0-request-0", "exactly": exactly}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": user, "uid": user}],
        },
    }


def quota(name: str = "gpu", used: dict[str, str] | None = None, **hard: str) -> Document:
    names = {"old": OLD_KEY, "new": CLASS_KEY}
    document: Document = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"hard": {names[key]: value for key, value in hard.items()}},
    }
    if used:
        document["status"] = {"used": {names[key]: value for key, value in used.items()}}
    return document


BEFORE = (node("a", 2), node("b", 2), pod("one", "a"), pod("waiting"), quota(old="10"))
AFTER = (
    node("a", 0, capacity=2),
    node("b", 2),
    node("c"),
    device_class(),
    resource_slice("a", 3),
    resource_slice("c", 1),
    pod("one", "a"),
    pod("two", "a", "two-claim"),
    pod("three", "b"),
    claim("two-claim", "a", "gpu-0", "two"),
    quota(old="10", new="10", used={"old": "3", "new": "3"}),
)

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*documents: Document, arguments: tuple[str, ...] = ()) -> tuple[int, str]:
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        code = main(["plan", "--resource", GPU, "-f", str(path), *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def planned(run: Run, *documents: Document, check: bool = False) -> dict[str, Any]:
    _, text = run(*documents, arguments=("-o", "json", *(("--check",) if check else ())))
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.mark.behaviour("XR-43", "N-14")
def test_the_plan_before(run: Run) -> None:
    code, text = run(*BEFORE)
    assert code == 0
    assert "\033[" not in text
    assert "Create the DeviceClass gpu.example.com:" in text
    assert "extendedResourceName: example.com/gpu" in text
    assert "associated-node:patch for resourceclaims/driver" in text
    found = planned(run, *BEFORE)
    assert found["classAction"] == "create"
    assert found["classDocument"]["spec"] == {
        "extendedResourceName": GPU,
        "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
    }
    assert [(row["node"], row["servedBy"], row["allocatable"], row["fromPlugin"]) for row in found["nodes"]] == [
        ("a", "device plugin", 2, 1),
        ("b", "device plugin", 2, 0),
    ]
    assert [(row["pod"], row["now"], row["after"]) for row in found["pods"]] == [
        ("team/one", "device plugin", "keeps its devices until it terminates"),
        ("team/waiting", "pending", "can also be scheduled to nodes with devices"),
    ]
    [row] = found["quotas"]
    assert row == {"quota": "team/gpu", "key": OLD_KEY, "hard": "10", "otherKey": CLASS_KEY, "otherHard": ""}


def test_the_plan_in_the_middle(run: Run) -> None:
    found = planned(run, *AFTER)
    assert (found["classAction"], found["deviceClass"], found["quotas"]) == ("", DRIVER, [])
    rows = {row["node"]: row for row in found["nodes"]}
    assert {name: row["servedBy"] for name, row in rows.items()} == {
        "a": "devices", "b": "device plugin", "c": "devices",
    }  # fmt: skip
    assert (rows["a"]["devices"], rows["a"]["devicesInUse"]) == (3, 1)
    assert (rows["a"]["fromPlugin"], rows["a"]["fromDevices"]) == (1, 1)
    assert rows["a"]["after"] == "devices, 1 set aside for Pods of the removed plugin"
    assert {row["pod"]: row["now"] for row in found["pods"]}["team/two"] == "devices, claim two-claim"


def test_the_class_of_a_driver_gets_the_name(run: Run) -> None:
    found = planned(run, *BEFORE, device_class(resource=None), resource_slice("b", 2))
    assert (found["classAction"], found["deviceClass"]) == ("change", DRIVER)


def test_several_drivers_need_a_choice(run: Run) -> None:
    others = (resource_slice("a", 1), resource_slice("b", 1, "nic.example.com"))
    code, text = run(*BEFORE, *others)
    assert (code, "gpu.example.com, nic.example.com; select one with --driver" in text) == (2, True)
    code, text = run(*BEFORE, *others, arguments=("--driver", DRIVER))
    assert (code, "Create the DeviceClass gpu.example.com" in text) == (0, True)


def without(kind: str, *names: str) -> tuple[Document, ...]:
    return tuple(item for item in AFTER if item["kind"] != kind or item["metadata"]["name"] not in names)


PROBLEMS: dict[str, tuple[tuple[Document, ...], str, str]] = {
    "no class": (without("DeviceClass", DRIVER), f"deviceclass/{DRIVER}", f"no class serves {GPU}; create it first"),
    "a clash": (
        (*AFTER, device_class("late", created="2026-02-01T00:00:00Z")),
        "deviceclass/late",
        f"gpu.example.com also set extendedResourceName {GPU}, without effect",
    ),
    "both on one node": (
        (*AFTER, resource_slice("b", 2)),
        "node/b",
        f"{GPU} is counted twice: 2 of a device plugin and 2 of class {DRIVER}",
    ),
    "more in use than there are": (
        (*AFTER, pod("extra", "a", count=2)),
        "node/a",
        "4 are in use (3 of a removed device plugin, 1 by claims), but there are 3 devices",
    ),
    "no driver publishes": (
        (*without("ResourceSlice", f"a-{DRIVER}"),),
        "node/a",
        "Pods use 1 of a removed device plugin, and no driver publishes devices",
    ),
    "a device allocated twice": (
        (*AFTER, claim("conflict", "a", "gpu-0", "other")),
        f"device/{DRIVER}/a/gpu-0",
        "is allocated to team/conflict and team/two-claim",
    ),
    "a missing claim": (without("ResourceClaim", "two-claim"), "pod/team/two", "claim two-claim does not exist"),
    "a claim of another Pod": (
        (*without("ResourceClaim", "two-claim"), claim("two-claim", "a", "gpu-0", "other")),
        "pod/team/two",
        "claim two-claim is not reserved for the Pod",
    ),
    "a single quota": (
        (*without("ResourceQuota", "gpu"), quota(old="10")),
        "resourcequota/team/gpu",
        f"{OLD_KEY} is 10, but {CLASS_KEY} is missing",
    ),
    "different limits": (
        (*without("ResourceQuota", "gpu"), quota(old="10", new="8")),
        "resourcequota/team/gpu",
        f"{OLD_KEY} is 10, but {CLASS_KEY} is 8",
    ),
    "different usage": (
        (*without("ResourceQuota", "gpu"), quota(old="10", new="10", used={"old": "3", "new": "2"})),
        "resourcequota/team/gpu",
        f"used {OLD_KEY} is 3, but used {CLASS_KEY} is 2",
    ),
}


@pytest.mark.behaviour("XR-38", "XR-39", "XR-43")
@pytest.mark.parametrize(
    ("documents", "about", "reason"), [pytest.param(*case, id=name) for name, case in PROBLEMS.items()]
)
def test_problems(run: Run, documents: tuple[Document, ...], about: str, reason: str) -> None:
    found = planned(run, *documents, check=True)
    assert {"about": about, "reason": reason} in found["findings"]
    assert found["done"] is False
    code, text = run(*documents, arguments=("--check",))
    assert (code, reason in text) == (1, True)


def test_a_complete_migration(run: Run) -> None:
    code, text = run(*AFTER, arguments=("--check",))
    assert (code, text) == (
        0, f"{GPU}: ok: nothing is counted twice, every running Pod has its devices, quotas agree\n",
    )  # fmt: skip
    assert planned(run, *AFTER, check=True)["done"] is True


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["--help"], 0), (["away"], 2)])
def test_usage(argv: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == code
    captured = capsys.readouterr()
    assert "usage: dray migrate plan" in captured.out + captured.err
