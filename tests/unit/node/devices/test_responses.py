"""What plugins' answers give to containers, and when a device fails its Pod."""

from __future__ import annotations

import logging

import pytest

from dray.node.devices.assignments import Assignment, AssignmentKey
from dray.node.devices.inventory import Device, Inventory
from dray.node.devices.responses import resource_statuses, run_options, unhealthy_device
from dray.node.devices.servicer import RegistrationError, check_plugin, check_request
from dray.node.resource_manager import HostDevice, Mount, Rejection, RunOptions
from dray.rpc.pb.deviceplugin.v1beta1 import api_pb2 as pb
from tests.unit.node.devices.builders import BAR, FOO, container, pod, sidecar

FIRST = pb.ContainerAllocateResponse(
    envs={"A": "1", "SAME": "x"},
    mounts=[pb.Mount(container_path="/lib", host_path="/a", read_only=True)],
    devices=[pb.DeviceSpec(container_path="/dev/a", host_path="/dev/a0", permissions="mrw")],
    annotations={"k": "1"},
    cdi_devices=[pb.CDIDevice(name="v.com/c=a"), pb.CDIDevice(name="v.com/c=b")],
)
SECOND = pb.ContainerAllocateResponse(
    envs={"B": "2", "A": "other", "SAME": "x"},
    mounts=[pb.Mount(container_path="/lib", host_path="/b"), pb.Mount(container_path="/data", host_path="/d")],
    devices=[pb.DeviceSpec(container_path="/dev/b", host_path="/dev/b0", permissions="r")],
    annotations={"k": "2", "l": "3"},
    cdi_devices=[pb.CDIDevice(name="v.com/c=b"), pb.CDIDevice(name="v.com/c=c")],
)


def slots(**answers: pb.ContainerAllocateResponse) -> list[tuple[AssignmentKey, Assignment]]:
    return [
        (AssignmentKey("u", "main", name), Assignment({-1: ("x",)}, answer.SerializeToString()))
        for name, answer in answers.items()
    ]


@pytest.mark.behaviour("DP-32")
def test_answers_are_merged_and_the_first_wins(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        merged = run_options(slots(bar=FIRST, foo=SECOND))
    assert merged == RunOptions(
        envs={"A": "1", "SAME": "x", "B": "2"},
        mounts=(Mount("/lib", "/a", True), Mount("/data", "/d", False)),
        devices=(HostDevice("/dev/a", "/dev/a0", "mrw"), HostDevice("/dev/b", "/dev/b0", "r")),
        annotations={"k": "1", "l": "3"},
        cdi_devices=("v.com/c=a", "v.com/c=b", "v.com/c=c"),
    )
    assert [record.args for record in caplog.records] == [
        ("environment variable", "A"),
        ("mount", "/lib"),
        ("annotation", "k"),
    ]


def inventory(*devices: Device) -> Inventory:
    result = Inventory(300)
    result.update_devices(FOO, result.opened(FOO, "s"), devices)
    return result


@pytest.mark.behaviour("DP-18")
def test_statuses() -> None:
    assigned = [
        (AssignmentKey("u", "main", BAR), Assignment({-1: ("z",)}, b"")),
        (AssignmentKey("u", "main", FOO), Assignment({0: ("d10", "d2"), 1: ("d2",)}, b"")),
    ]
    assert resource_statuses(assigned, inventory(Device("d2", True), Device("d10", False))) == [
        {"name": BAR, "resources": [{"resourceID": "z", "health": "Unknown"}]},
        {
            "name": FOO,
            "resources": [{"resourceID": "d2", "health": "Healthy"}, {"resourceID": "d10", "health": "Unhealthy"}],
        },
    ]


FAILED = Rejection("UnhealthyDevice", "device a of resource vendor.com/foo, in use by container main, is unhealthy")


def ended(name: str) -> dict[str, object]:
    return {"initContainerStatuses": [{"name": name, "state": {"terminated": {"exitCode": 0}}}]}


@pytest.mark.behaviour("DP-18")
def test_an_unhealthy_device_fails_its_pod() -> None:
    item = pod("u", [container("main", {FOO: 1})])
    held = [(AssignmentKey("u", "main", FOO), Assignment({-1: ("a",)}, b""))]
    assert unhealthy_device(item, held, inventory(Device("a", True))) is None
    assert unhealthy_device(item, held, inventory(Device("a", False))) == FAILED


@pytest.mark.behaviour("DP-54")
def test_a_device_that_has_vanished_fails_its_pod() -> None:
    item = pod("u", [container("main", {FOO: 1})])
    held = [(AssignmentKey("u", "main", FOO), Assignment({-1: ("a",)}, b""))]
    devices = inventory(Device("a", True), Device("b", True))
    session = devices.session(FOO)
    assert session is not None
    devices.update_devices(FOO, session, [Device("b", True)])
    text = "device a of resource vendor.com/foo, in use by container main, is no longer listed by its device plugin"
    assert unhealthy_device(item, held, devices) == Rejection("UnhealthyDevice", text)


@pytest.mark.behaviour("DP-13")
def test_a_plugin_that_is_gone_or_has_not_listed_the_device_yet_fails_nothing() -> None:
    item = pod("u", [container("main", {FOO: 1})])
    held = [(AssignmentKey("u", "main", FOO), Assignment({-1: ("a",)}, b""))]
    gone = inventory(Device("a", False))
    session = gone.session(FOO)
    assert session is not None
    gone.closed(FOO, session, 0)
    assert unhealthy_device(item, held, gone) is None
    assert unhealthy_device(item, held, inventory(Device("b", True))) is None


@pytest.mark.parametrize(("ends", "fails"), [("i", False), ("s", True), ("", True)])
def test_what_a_finished_init_container_had_does_not_matter(ends: str, fails: bool) -> None:
    kind = sidecar("s", {FOO: 1}) if ends == "s" else container("i", {FOO: 1})
    item = pod("u", [container()], [kind], status=ended(ends) if ends else {})
    held = [(AssignmentKey("u", kind["name"], FOO), Assignment({-1: ("a",)}, b""))]
    assert (unhealthy_device(item, held, inventory(Device("a", False))) is not None) == fails


@pytest.mark.parametrize(
    ("version", "name", "message"),
    [
        pytest.param(
            "v1alpha",
            FOO,
            'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]',
            marks=pytest.mark.behaviour("DP-03"),
        ),
        pytest.param("v1beta1", "foo", 'the ResourceName "foo" is invalid', marks=pytest.mark.behaviour("DP-04")),
        pytest.param(
            "v1beta1",
            "kubernetes.io/foo",
            'the ResourceName "kubernetes.io/foo" is invalid',
            marks=pytest.mark.behaviour("DP-04"),
        ),
        pytest.param(
            "v1beta1", "a.b/c d", 'the ResourceName "a.b/c d" is invalid', marks=pytest.mark.behaviour("DP-04")
        ),
    ],
)
def test_refused_registrations(version: str, name: str, message: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        check_request(version, name)
    assert str(caught.value) == message


@pytest.mark.behaviour("DP-12")
def test_refused_plugins() -> None:
    check_plugin(FOO, ("v1", "v1beta1"))
    with pytest.raises(RegistrationError) as caught:
        check_plugin(FOO, ("v1", "v2"))
    assert str(caught.value) == "manager version, v1beta1, is not among plugin supported versions [v1 v2]"
    with pytest.raises(RegistrationError) as caught:
        check_plugin("foo", ("v1beta1",))
    assert str(caught.value) == 'invalid name of device plugin socket: the ResourceName "foo" is invalid'
