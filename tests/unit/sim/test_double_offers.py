"""Devices that a device plugin and a driver both offer."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.api.document import Document
from dray.sim import usage
from dray.sim.doctor.findings import Finding, Severity
from dray.sim.doctor.rules import examine
from dray.sim.physical_devices import all_rows, physical_devices
from dray.sim.snapshot import Snapshot
from tests.unit.sim.cluster import GPU, claim, device, device_class, node, pod, resource_slice

NOW = datetime(2026, 1, 1, 2, tzinfo=UTC)
RESOURCE = "example.com/gpu"


def gpus(*ids: str) -> list[Document]:
    return [device(f"gpu-{index}", attributes={"uuid": {"string": name}}) for index, name in enumerate(ids)]


def served_twice(*extra: Document, resource: str = RESOURCE, driver: str = GPU, extended: str = RESOURCE) -> Snapshot:
    """A node on which a plugin counts two devices, and a driver publishes them."""
    machine = node("a")
    machine["status"]["allocatable"][resource] = machine["status"].setdefault("capacity", {})[resource] = "2"
    made = device_class("gpu", f'device.driver == "{driver}"')
    if extended:
        made["spec"]["extendedResourceName"] = extended
    return Snapshot.of([machine, made, resource_slice("a", driver, *gpus("u0", "u1"), nodeName="a"), *extra])


def plugin_user(name: str, *ids: str, resource: str = RESOURCE) -> Document:
    """A running Pod with one device of the plugin."""
    made = pod(name, "a")
    made["spec"]["containers"][0]["resources"] = {"requests": {resource: "1"}, "limits": {resource: "1"}}
    shown = [{"resourceID": item, "health": "Healthy"} for item in ids]
    status = {"name": "c", "ready": True, "restartCount": 0, "image": "i", "imageID": ""}
    if ids:
        status["allocatedResourcesStatus"] = [{"name": resource, "resources": shown}]
    made["status"] = {"phase": "Running", "containerStatuses": [status]}
    return made


def claim_user(name: str, key: str) -> list[Document]:
    made = pod(name, "a")
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    return [made, claim(name, key, pods=(name,))]


def found(snapshot: Snapshot) -> list[Finding]:
    return [item for item in examine(snapshot, NOW) if item.rule in ("double-offer", "device-collision")]


@pytest.mark.behaviour("TT-01")
def test_devices_of_a_plugin_and_a_driver_count_once() -> None:
    devices = physical_devices(served_twice(plugin_user("p")))
    (row,) = usage.by_node(devices)
    assert (row.total, row.held, row.free, row.out) == (2, 0, 1, 1)
    assert row.reasons == {f"in use as {RESOURCE}": 1}
    by_class = {row.name: row for row in usage.by_class(devices)}
    assert (by_class["gpu"].total, by_class["gpu"].free) == (2, 1)
    assert (by_class[RESOURCE].total, by_class[RESOURCE].held, by_class[RESOURCE].free) == (2, 1, 1)


@pytest.mark.behaviour("TT-01")
def test_what_pods_have_through_a_plugin_that_is_gone_is_held_back() -> None:
    """It is unknown which of the devices they have."""
    made = device_class("gpu", f'device.driver == "{GPU}"')
    made["spec"]["extendedResourceName"] = RESOURCE
    slices = resource_slice("a", GPU, *gpus("u0", "u1"), nodeName="a")
    snapshot = Snapshot.of([node("a"), made, slices, plugin_user("p")])
    (row,) = usage.by_class(physical_devices(snapshot))
    assert (row.total, row.free, row.out) == (2, 1, 1)
    assert row.reasons == {f"held back for {RESOURCE}": 1}


@pytest.mark.behaviour("TT-01")
def test_what_claims_have_is_not_free_for_the_plugin() -> None:
    snapshot = served_twice(*claim_user("one", f"{GPU}/a/gpu-0"))
    by_class = {row.name: row for row in usage.by_class(physical_devices(snapshot))}
    assert (by_class[RESOURCE].free, by_class[RESOURCE].reasons) == (1, {"in use by claims": 1})


@pytest.mark.behaviour("TT-01")
def test_each_device_has_both_claimants() -> None:
    rows = all_rows(served_twice(plugin_user("p", "u1"), plugin_user("q"), *claim_user("one", f"{GPU}/a/gpu-0")))
    assert {row.name: row.also for row in rows} == {
        "gpu-0": f"{RESOURCE} (maybe team/q)",
        "gpu-1": f"{RESOURCE} (Pod team/p)",
        RESOURCE: f"driver {GPU}",
    }


@pytest.mark.behaviour("TT-02")
def test_devices_that_are_offered_twice_are_a_warning_with_a_way_out() -> None:
    (finding,) = found(served_twice())
    assert (finding.severity, finding.subject) == (Severity.WARNING, "node a")
    assert f"DeviceClass gpu has extendedResourceName {RESOURCE}" in finding.what
    assert f"dray migrate plan --resource {RESOURCE}" in finding.advice
    assert finding.manifest is not None
    # What the advice says, applied, ends the warning.
    documents = [*(item for items in served_twice().documents.values() for item in items), finding.manifest]
    assert found(Snapshot.of(documents)) == []


@pytest.mark.behaviour("TT-02")
def test_pods_of_both_may_have_the_same_device() -> None:
    (finding,) = found(served_twice(plugin_user("p"), *claim_user("one", f"{GPU}/a/gpu-0")))
    assert finding.severity is Severity.WARNING
    assert finding.what.endswith("Pods may have the same device")


@pytest.mark.behaviour("TT-02")
def test_more_users_than_devices_are_an_error() -> None:
    (finding,) = found(
        served_twice(plugin_user("p"), *claim_user("one", f"{GPU}/a/gpu-0"), *claim_user("two", f"{GPU}/a/gpu-1"))
    )
    assert finding.severity is Severity.ERROR
    assert finding.what.endswith("At least 1 of them is in use twice")


@pytest.mark.behaviour("TT-02")
def test_a_device_with_an_id_that_a_pod_shows_is_a_collision() -> None:
    collision, _ = found(served_twice(plugin_user("p", "u0"), *claim_user("one", f"{GPU}/a/gpu-0"), extended=""))
    assert (collision.rule, collision.subject) == ("device-collision", f"device {GPU}/a/gpu-0")
    assert "by claim team/one, and by Pod team/p" in collision.what


@pytest.mark.behaviour("TT-02")
@pytest.mark.parametrize(
    ("resource", "driver"),
    [("nvidia.com/gpu", "gpu.nvidia.com"), ("nvidia.com/mig-1g.5gb", "gpu.nvidia.com"), ("amd.com/gpu", "gpu.amd.com")],
)
def test_known_pairs_of_plugin_and_driver(resource: str, driver: str) -> None:
    (finding,) = found(served_twice(resource=resource, driver=driver, extended=""))
    assert f"{driver} is the driver of the devices that {resource} counts" in finding.what


@pytest.mark.behaviour("TT-02")
def test_a_plugin_of_other_devices_is_no_warning() -> None:
    assert found(served_twice(resource="example.com/nic", extended="")) == []


@pytest.mark.behaviour("TT-02")
def test_a_plugin_without_devices_is_no_warning() -> None:
    snapshot = served_twice()
    snapshot.documents["Node"][0]["status"]["allocatable"][RESOURCE] = "0"
    assert found(snapshot) == []
