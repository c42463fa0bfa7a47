"""CDI specs: parsing, validation, rendering."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dray.api.cdi import (
    CdiDevice,
    CdiError,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    QualifiedName,
    Spec,
    environment,
    minimum_version,
    parse,
    render,
    validate,
)

EVERYTHING: dict[str, Any] = {
    "cdiVersion": "0.8.0",
    "kind": "vendor.com/gpu",
    "annotations": {"Vendor.com/note": "n"},
    "devices": [
        {
            "name": "gpu-0",
            "annotations": {"a": "b"},
            "containerEdits": {
                "env": ["A=1"],
                "deviceNodes": [
                    {
                        "path": "/dev/gpu",
                        "hostPath": "/dev/gpu0",
                        "type": "c",
                        "major": 1,
                        "minor": 2,
                        "fileMode": 438,
                        "permissions": "rw",
                        "uid": 0,
                        "gid": 3,
                    }
                ],
                "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro"], "type": "bind"}],
                "hooks": [
                    {"hookName": "createContainer", "path": "/bin/h", "args": ["h"], "env": ["X=y"], "timeout": 5}
                ],
                "intelRdt": {
                    "closID": "c",
                    "l3CacheSchema": "l",
                    "memBwSchema": "m",
                    "enableCMT": True,
                    "enableMBM": True,
                },
                "additionalGids": [7],
            },
        }
    ],
    "containerEdits": {"env": ["ALL=1"]},
}


def test_all_fields_round_trip() -> None:
    spec = parse(orjson.dumps(EVERYTHING))
    assert validate(spec) == []
    assert orjson.loads(render(spec)) == EVERYTHING


def spec_of(edits: ContainerEdits, name: str = "d", kind: str = "v.com/c") -> Spec:
    return Spec(cdi_version="0.8.0", kind=kind, devices=(CdiDevice(name=name, container_edits=edits),))


ENV = ContainerEdits(env=("A=1",))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (Spec(cdi_version="0.9.9", kind="v/c", devices=spec_of(ENV).devices), 'invalid CDI version "0.9.9"'),
        (spec_of(ENV, kind="vendor"), 'invalid kind "vendor", must be vendor/class'),
        (spec_of(ENV, kind="3d.com/gpu"), 'invalid vendor "3d.com"'),
        (spec_of(ENV, kind="v/g/u"), 'invalid class "g/u"'),
        (Spec(cdi_version="0.8.0", kind="v/c"), "invalid spec, no devices"),
        (Spec(cdi_version="0.8.0", kind="v/c", devices=spec_of(ENV).devices * 2), 'invalid spec, multiple device "d"'),
        (spec_of(ENV, name="-d"), 'invalid device name "-d"'),
        (spec_of(ContainerEdits()), 'invalid device "d", empty device edits'),
        (spec_of(ContainerEdits(env=("A",))), 'd: invalid environment variable "A"'),
        (spec_of(ContainerEdits(env=("=1",))), 'd: invalid environment variable "=1"'),
        (spec_of(ContainerEdits(device_nodes=(DeviceNode(path=""),))), "d: invalid (empty) device path"),
        (spec_of(ContainerEdits(device_nodes=(DeviceNode(path="/d", type="x"),))), 'd: device "/d": invalid type "x"'),
        (
            spec_of(ContainerEdits(device_nodes=(DeviceNode(path="/d", permissions="rx"),))),
            'd: device "/d": invalid permissions "rx"',
        ),
        (
            spec_of(ContainerEdits(mounts=(Mount(host_path="", container_path="/c"),))),
            "d: invalid mount, empty host path",
        ),
        (spec_of(ContainerEdits(hooks=(Hook(hook_name="never", path="/h"),))), 'd: invalid hook name "never"'),
    ],
)
def test_what_breaks_a_rule_is_neither_read_nor_written(spec: Spec, problem: str) -> None:
    assert problem in validate(spec)
    with pytest.raises(CdiError):
        render(spec)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"cdiVersion": "0.8.0", "kind": "v/c", "devices": [], "more": 1}']
)
def test_what_is_no_spec(body: bytes) -> None:
    with pytest.raises(CdiError):
        parse(body)


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (spec_of(ENV), "0.3.0"),
        (spec_of(ContainerEdits(mounts=(Mount(host_path="/h", container_path="/c", type="bind"),))), "0.4.0"),
        (spec_of(ENV, name="0"), "0.5.0"),
        (spec_of(ContainerEdits(device_nodes=(DeviceNode(path="/d", host_path="/h"),))), "0.5.0"),
        (spec_of(ENV, kind="v.com/a.b"), "0.6.0"),
        (spec_of(ContainerEdits(intel_rdt=IntelRdt())), "0.7.0"),
        (spec_of(ContainerEdits(additional_gids=(1,))), "0.7.0"),
    ],
)
def test_the_oldest_version_that_knows_it_all(spec: Spec, version: str) -> None:
    assert minimum_version(spec) == version


def test_full_names() -> None:
    name = QualifiedName.parse("vendor.com/gpu=gpu:0")
    assert (name.vendor, name.device_class, name.name, name.kind) == ("vendor.com", "gpu", "gpu:0", "vendor.com/gpu")
    assert str(name) == "vendor.com/gpu=gpu:0"
    for wrong in ("gpu", "vendor.com=x", "vendor.com/gpu", "vendor.com/gpu=", "v/c=a=b"):
        with pytest.raises(CdiError):
            QualifiedName.parse(wrong)


def test_environment_in_order() -> None:
    assert environment({"B": "2", "A": "1"}) == ["A=1", "B=2"]
