"""Quotas on the real API server with its controllers: counted, enforced, freed, and right again after anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import AlreadyExistsError, ForbiddenError
from dray.client.in_process import in_process_client
from dray.cmd.controllers import spawn_controllers
from dray.runtime.tasks import TaskGroup
from tests.local_server import Local, local_server

WAIT_SECONDS_MAX = 120
MAPS, PODS, QUOTAS = "core/v1/configmaps", "core/v1/pods", "core/v1/resourcequotas"
CLAIMS, CLASSES = "resource.k8s.io/v1/resourceclaims", "resource.k8s.io/v1/deviceclasses"
TEAM = "@team"
DEVICES = "gpu.deviceclass.resource.k8s.io/devices"
EXPLICIT = "requests.example.com/gpu"
IMPLICIT = "requests.deviceclass.resource.kubernetes.io/gpu"


@asynccontextmanager
async def controllers(local: Local) -> AsyncIterator[None]:
    """The controllers for the time of a `with` block."""
    running = local.running
    client = in_process_client(
        running.local, user="system:kube-controller-manager", user_agent="kube-controller-manager"
    )
    async with TaskGroup("controllers") as group:
        spawn_controllers(group, client, running.clock, running.metrics, root_ca="PEM")
        try:
            yield
        finally:
            await group.cancel()


async def team(local: Local) -> None:
    await local.request("create", "core/v1/namespaces", {"metadata": {"name": "team"}})
    await local.request("create", f"core/v1/serviceaccounts{TEAM}", {"metadata": {"name": "default"}})
    # What the controllers put into every namespace is there from the start, so that counts stand still.
    await local.request("create", MAPS + TEAM, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "PEM"}})


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Local]:
    async with local_server(tmp_path, "GenericWorkload=true") as found:
        await team(found)
        async with controllers(found):
            yield found


@pytest.fixture
def short_unexplained_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage that nothing explains is put right soon: nothing of these tests is under way when it is."""
    monkeypatch.setattr("dray.controllers.resource_quota.plan.UNEXPLAINED_SECONDS", 0.3)


async def limit(local: Local, hard: dict[str, str], name: str = "q", **spec: Any) -> None:
    """Make a quota and wait until it is counted, and the server has observed it."""
    await local.request("create", QUOTAS + TEAM, {"metadata": {"name": name}, "spec": {"hard": hard, **spec}})
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while not _is_observed(local, name):  # noqa: ASYNC110 - the condition is the server's state
            await asyncio.sleep(0.01)


def _is_observed(local: Local, name: str) -> bool:
    quotas = local.running.server.cache.quotas.get("team", {})
    return bool((quotas.get(name, {}).get("status") or {}).get("used"))


async def used(local: Local, name: str = "q") -> dict[str, str]:
    found = await local.request("get", f"{QUOTAS}/{name}{TEAM}")
    return dict(found["status"].get("used") or {})


async def until_used(local: Local, name: str = "q", **wanted: str) -> None:
    await until(local, wanted, name)


async def until(local: Local, wanted: dict[str, str], name: str = "q") -> None:
    found: dict[str, str] = {}
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while (found := await used(local, name)) != wanted:  # noqa: ASYNC110 - the server's state
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"usage stayed {found}")


async def config_map(local: Local, name: str) -> Document:
    return await local.request("create", MAPS + TEAM, {"metadata": {"name": name}})


async def pod(local: Local, name: str, requests: dict[str, str] | None = None, **spec: Any) -> Document:
    resources = {"requests": requests or {}, "limits": requests or {}}
    containers = [{"name": "c", "image": "i", "resources": resources}]
    body = {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}
    return await local.request("create", PODS + TEAM, body)


async def claim(local: Local, name: str, count: int = 1) -> Document:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
    return await local.request("create", CLAIMS + TEAM, body)


async def succeeds(write: Any) -> bool:
    try:
        await write
    except ForbiddenError:
        return False
    return True


async def test_what_is_there_is_counted_and_what_comes_is_limited(local: Local) -> None:
    await config_map(local, "before")
    await limit(local, {"configmaps": "3", "count/configmaps": "4", "pods": "1"})
    await until(local, {"configmaps": "2", "count/configmaps": "2", "pods": "0"})
    await config_map(local, "third")
    with pytest.raises(ForbiddenError) as caught:
        await config_map(local, "fourth")
    assert caught.value.message == (
        'configmaps "fourth" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=3, '
        "limited: configmaps=3"
    )
    await pod(local, "p")
    await until(local, {"configmaps": "3", "count/configmaps": "3", "pods": "1"})


async def test_what_goes_can_be_used_again(local: Local) -> None:
    await limit(local, {"configmaps": "2"})
    for _ in range(5):
        await config_map(local, "m")
        assert not await succeeds(config_map(local, "n"))
        await local.request("delete", f"{MAPS}/m{TEAM}")
        await until_used(local, configmaps="1")


async def test_of_fifty_at_once_exactly_ten_get_in(local: Local) -> None:
    await limit(local, {"count/configmaps": "11"})
    outcomes = await asyncio.gather(*(succeeds(config_map(local, f"m{i}")) for i in range(50)))
    assert outcomes.count(True) == 10
    assert await used(local) == {"count/configmaps": "11"}
    found = await local.request("list", MAPS + TEAM)
    assert len(found["items"]) == 11


async def test_creates_and_deletes_at_once_never_exceed_the_limit(local: Local) -> None:
    await limit(local, {"pods": "5"})

    async def churn(number: int) -> None:
        for turn in range(10):
            name = f"p{number}-{turn}"
            if await succeeds(pod(local, name)):
                assert len((await local.request("list", PODS + TEAM))["items"]) <= 5
                await local.request("delete", f"{PODS}/{name}{TEAM}", {"gracePeriodSeconds": 0})

    await asyncio.gather(*(churn(number) for number in range(10)))
    await until_used(local, pods="0")


async def test_a_create_that_fails_gives_back(local: Local) -> None:
    await limit(local, {"configmaps": "9"})
    await config_map(local, "m")
    for _ in range(20):
        with pytest.raises(AlreadyExistsError):
            await config_map(local, "m")
    assert await used(local) == {"configmaps": "2"}


async def test_a_dry_run_takes_nothing(local: Local) -> None:
    await limit(local, {"configmaps": "2"})
    body = {"metadata": {"name": "m"}}
    for _ in range(3):
        await local.request("create", MAPS + TEAM, dict(body), query={"dryRun": "All"})
    assert await used(local) == {"configmaps": "1"}
    await config_map(local, "m")
    with pytest.raises(ForbiddenError, match="exceeded quota"):
        await local.request("create", MAPS + TEAM, {"metadata": {"name": "n"}}, query={"dryRun": "All"})


async def test_limits_can_be_changed(local: Local) -> None:
    await limit(local, {"configmaps": "1"})
    assert not await succeeds(config_map(local, "m"))
    patch = {"spec": {"hard": {"configmaps": "2", "count/secrets": "7"}}}
    merge = "application/merge-patch+json"
    await local.request("patch", f"{QUOTAS}/q{TEAM}", patch, content_type=merge)
    await until(local, {"configmaps": "1", "count/secrets": "0"})
    await config_map(local, "m")


async def test_a_pod_that_has_ended_frees_what_it_used(local: Local) -> None:
    await limit(local, {"pods": "1", "count/pods": "9", "requests.memory": "1Gi"})
    await pod(local, "first", {"memory": "1Gi"})
    assert not await succeeds(pod(local, "second", {"memory": "1"}))
    ended = {"status": {"phase": "Succeeded"}}
    await local.request("patch", f"{PODS}/first/status{TEAM}", ended, content_type="application/merge-patch+json")
    await until(local, {"pods": "0", "count/pods": "1", "requests.memory": "0"})
    await pod(local, "second", {"memory": "1Gi"})
    assert await used(local) == {"pods": "1", "count/pods": "2", "requests.memory": "1Gi"}


async def test_scopes_choose_the_pods(local: Local) -> None:
    await limit(local, {"pods": "1"}, "idle", scopes=["BestEffort"])
    await limit(local, {"pods": "1"}, "short", scopes=["Terminating"])
    await pod(local, "a")
    assert not await succeeds(pod(local, "b"))
    await pod(local, "b", {"cpu": "1"})
    # A deadline brings the Pod into the other scope, where there is room for one.
    merge, deadline = "application/merge-patch+json", {"spec": {"activeDeadlineSeconds": 100}}
    await local.request("patch", f"{PODS}/b{TEAM}", deadline, content_type=merge)
    with pytest.raises(ForbiddenError, match="exceeded quota: short"):
        await local.request("patch", f"{PODS}/a{TEAM}", deadline, content_type=merge)
    await until_used(local, "idle", pods="1")
    await until_used(local, "short", pods="1")


async def test_custom_resources_are_counted(local: Local) -> None:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    definition = {"metadata": {"name": "widgets.example.com"}, "spec": spec}
    await local.request("create", "apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    await limit(local, {"count/widgets.example.com": "1"})
    widgets = f"example.com/v1/widgets{TEAM}"
    body = {"apiVersion": "example.com/v1", "kind": "Widget"}
    await local.request("create", widgets, {**body, "metadata": {"name": "a"}})
    with pytest.raises(ForbiddenError, match=r"exceeded quota: q, requested: count/widgets\.example\.com=1"):
        await local.request("create", widgets, {**body, "metadata": {"name": "b"}})


@pytest.mark.behaviour("SC-19")
async def test_objects_for_scheduling_are_counted(local: Local) -> None:
    await limit(local, {"count/poddisruptionbudgets.policy": "1", "count/podgroups.scheduling.k8s.io": "1"})
    await until(local, {"count/poddisruptionbudgets.policy": "0", "count/podgroups.scheduling.k8s.io": "0"})
    policies: Document = {"schedulingPolicy": {"basic": {}}}
    for resource, spec in (
        ("policy/v1/poddisruptionbudgets", {"minAvailable": 1, "selector": {}}),
        ("scheduling.k8s.io/v1beta1/podgroups", policies),
    ):
        await local.request("create", resource + TEAM, {"metadata": {"name": "a"}, "spec": spec})
        with pytest.raises(ForbiddenError, match="exceeded quota: q, requested: count/pod"):
            await local.request("create", resource + TEAM, {"metadata": {"name": "b"}, "spec": spec})
    await until(local, {"count/poddisruptionbudgets.policy": "1", "count/podgroups.scheduling.k8s.io": "1"})


@pytest.mark.behaviour("SC-19")
async def test_pods_of_a_priority_class_are_limited_apart(local: Local) -> None:
    await local.request(
        "create", "scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "urgent"}, "value": 1000}
    )
    urgent = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["urgent"]}]}
    await limit(local, {"pods": "1"}, scopeSelector=urgent)
    await pod(local, "a", priorityClassName="urgent")
    with pytest.raises(ForbiddenError, match="exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"):
        await pod(local, "b", priorityClassName="urgent")
    await pod(local, "b")
    await until_used(local, pods="1")


@pytest.mark.behaviour("SP-142")
async def test_claims_are_limited_by_number_and_by_devices(local: Local) -> None:
    await limit(local, {"count/resourceclaims.resource.k8s.io": "3", DEVICES: "4"})
    await claim(local, "a", 3)
    with pytest.raises(ForbiddenError, match=f"requested: {DEVICES}=2, used: {DEVICES}=3, limited: {DEVICES}=4"):
        await claim(local, "b", 2)
    await claim(local, "b", 1)
    assert await used(local) == {"count/resourceclaims.resource.k8s.io": "2", DEVICES: "4"}
    # The status of a claim is not counted.
    found = await local.request("get", f"{CLAIMS}/a{TEAM}")
    await local.request("update", f"{CLAIMS}/a/status{TEAM}", found)
    await local.request("delete", f"{CLAIMS}/a{TEAM}")
    await until(local, {"count/resourceclaims.resource.k8s.io": "1", DEVICES: "1"})


@pytest.mark.behaviour("XR-41")
@pytest.mark.behaviour("XR-43")
@pytest.mark.usefixtures("short_unexplained_period")
async def test_all_names_of_a_class_are_used_alike(local: Local) -> None:
    await limit(local, dict.fromkeys((DEVICES, EXPLICIT, IMPLICIT), "10"))
    await pod(local, "plugin", {"example.com/gpu": "2"})
    await claim(local, "c", 3)
    # Until a class says so, the extended resource has nothing to do with it.
    await until(local, {DEVICES: "3", IMPLICIT: "3", EXPLICIT: "2"})
    spec = {"extendedResourceName": "example.com/gpu"}
    await local.request("create", CLASSES, {"metadata": {"name": "gpu"}, "spec": spec})
    await until(local, dict.fromkeys((DEVICES, EXPLICIT, IMPLICIT), "5"))
    await pod(local, "implicit", {"deviceclass.resource.kubernetes.io/gpu": "1"})
    await until(local, dict.fromkeys((DEVICES, EXPLICIT, IMPLICIT), "6"))
    assert not await succeeds(claim(local, "d", 5))
    assert not await succeeds(pod(local, "more", {"example.com/gpu": "5"}))
    await local.request("delete", f"{CLAIMS}/c{TEAM}")
    await until(local, dict.fromkeys((DEVICES, EXPLICIT, IMPLICIT), "3"))
    await local.request("delete", f"{CLASSES}/gpu")
    await until(local, {DEVICES: "1", IMPLICIT: "1", EXPLICIT: "2"})


@pytest.mark.behaviour("XR-42")
async def test_the_special_claim_of_a_pod_costs_nothing_more(local: Local) -> None:
    spec = {"extendedResourceName": "example.com/gpu"}
    await local.request("create", CLASSES, {"metadata": {"name": "gpu"}, "spec": spec})
    await limit(local, {DEVICES: "2", EXPLICIT: "2", "count/resourceclaims.resource.k8s.io": "5"})
    owner = await pod(local, "p", {"example.com/gpu": "2"})
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner["metadata"]["uid"], "controller": True}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    metadata = {"annotations": annotations, "ownerReferences": [reference]}
    devices = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    await local.request("create", CLAIMS + TEAM, {"metadata": {**metadata, "name": "special"}, "spec": devices})
    await until(local, {DEVICES: "2", EXPLICIT: "2", "count/resourceclaims.resource.k8s.io": "1"})
    with pytest.raises(ForbiddenError, match="exceeded quota"):
        await local.request("create", CLAIMS + TEAM, {"metadata": {**metadata, "name": "another"}, "spec": devices})


@pytest.mark.usefixtures("short_unexplained_period")
async def test_a_wrong_status_is_put_right(local: Local) -> None:
    await limit(local, {"configmaps": "9"})
    found = await local.request("get", f"{QUOTAS}/q{TEAM}")
    for wrong in ("7", "0"):
        found["status"]["used"] = {"configmaps": wrong}
        found["metadata"].pop("resourceVersion", None)
        await local.request("update", f"{QUOTAS}/q/status{TEAM}", found)
        await until_used(local, configmaps="1")


@pytest.mark.usefixtures("short_unexplained_period")
async def test_what_happened_while_no_controller_ran_is_counted(tmp_path: Path) -> None:
    async with local_server(tmp_path) as local:
        await team(local)
        async with controllers(local):
            await limit(local, {"configmaps": "3"})
            await config_map(local, "a")
            await config_map(local, "b")
        await local.request("delete", f"{MAPS}/a{TEAM}")
        # Nobody has counted: the limit holds as it was.
        assert not await succeeds(config_map(local, "c"))
        async with controllers(local):
            await until_used(local, configmaps="2")
            await config_map(local, "c")
            assert await used(local) == {"configmaps": "3"}


async def test_a_quota_that_goes_limits_nothing(local: Local) -> None:
    await limit(local, {"configmaps": "1"})
    assert not await succeeds(config_map(local, "m"))
    await local.request("delete", f"{QUOTAS}/q{TEAM}")
    await config_map(local, "m")
    await limit(local, {"configmaps": "5"})
    await until_used(local, configmaps="2")
