"""The device class of an extended resource name, as classes are added, changed and removed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dray.api.extended_resources import ClassResources
from dray.api.types.meta_v1 import ObjectMeta
from dray.api.types.resource_v1 import DeviceClass, DeviceClassSpec

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/"
START = datetime(2026, 1, 1, tzinfo=UTC)


def device_class(name: str, resource: str | None = GPU, *, second: int = 0) -> DeviceClass:
    metadata = ObjectMeta(name=name, creation_timestamp=START + timedelta(seconds=second))
    return DeviceClass(metadata=metadata, spec=DeviceClassSpec(extended_resource_name=resource))


@pytest.mark.behaviour("XR-02")
def test_every_class_has_its_implicit_name() -> None:
    names = ClassResources([device_class("gpu.example.com", None)])
    assert names.class_of(IMPLICIT + "gpu.example.com") == "gpu.example.com"
    assert names.class_of(IMPLICIT + "other") is None
    assert names.class_of(GPU) is None
    assert names.resources_of("gpu.example.com") == (IMPLICIT + "gpu.example.com",)


@pytest.mark.behaviour("XR-03")
@pytest.mark.parametrize(
    ("classes", "winner"),
    [
        pytest.param((device_class("a"), device_class("b", second=1)), "b", id="the newest"),
        pytest.param((device_class("b", second=1), device_class("a")), "b", id="in whatever order they are seen"),
        pytest.param((device_class("b"), device_class("a")), "a", id="at the same time, the first by name"),
        pytest.param((device_class("a"), DeviceClass(metadata=ObjectMeta(name="0"))), "a", id="others do not count"),
    ],
)
def test_one_class_has_the_name(classes: tuple[DeviceClass, ...], winner: str) -> None:
    names = ClassResources(classes)
    assert names.class_of(GPU) == winner
    assert names.candidates(GPU)[0] == winner


@pytest.mark.behaviour("XR-04")
def test_names_follow_classes_at_once() -> None:
    names = ClassResources([device_class("old")])
    versions = [names.version]
    names.apply(device_class("new", second=1))
    assert names.class_of(GPU) == "new"
    assert names.resources_of("old") == (IMPLICIT + "old",)
    assert names.resources_of("new") == (IMPLICIT + "new", GPU)
    versions.append(names.version)
    names.apply(device_class("new", "example.com/other", second=1))
    assert (names.class_of(GPU), names.class_of("example.com/other")) == ("old", "new")
    versions.append(names.version)
    names.apply(device_class("new", second=1))
    names.remove("new")
    assert names.class_of(GPU) == "old"
    names.remove("old")
    assert names.class_of(GPU) is None
    assert names.class_of(IMPLICIT + "old") is None
    versions.append(names.version)
    assert versions == sorted(set(versions))
    before = names.version
    names.remove("old")
    assert names.version == before
