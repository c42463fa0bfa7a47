"""Conversion between the versions of resource.k8s.io."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.conversion.resource import from_hub, to_hub
from dray.api.defaults.resource import DEFAULTERS
from dray.api.document import Document
from dray.api.validation.resource_claim import validate_claim
from tests.conformance.api.resource.resource_rows import COMPILERS, texts

EXACT = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}


def claim(version: str, *requests: Document) -> Document:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": list(requests), "config": [{"requests": ["r"]}]}},
    }


# v1beta1 request, hub request.
REQUESTS: dict[str, tuple[Document, Document]] = {
    "exact": ({"name": "r", **EXACT}, {"name": "r", "exactly": EXACT}),
    "everything": (
        {"name": "r", **EXACT, "adminAccess": False, "selectors": [], "tolerations": [{}], "capacity": {}},
        {
            "name": "r",
            "exactly": {**EXACT, "adminAccess": False, "selectors": [], "tolerations": [{}], "capacity": {}},
        },
    ),
    "alternatives": (
        {"name": "r", "firstAvailable": [{"name": "a", **EXACT}]},
        {"name": "r", "firstAvailable": [{"name": "a", **EXACT}]},
    ),
    "neither": ({"name": "r"}, {"name": "r"}),
    "illegal mix": (
        {"name": "r", "count": 2, "firstAvailable": [{"name": "a"}]},
        {"name": "r", "exactly": {"count": 2}, "firstAvailable": [{"name": "a"}]},
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.behaviour("SP-14", "PL-02", "PL-14")
def test_requests(name: str) -> None:
    flat, nested = REQUESTS[name]
    old, hub = claim("v1beta1", flat), claim("v1", nested)
    before = copy.deepcopy((old, hub))
    assert to_hub("v1beta1", "ResourceClaim", old) == hub
    # Kubernetes writes the class even where it is empty.
    written = claim("v1beta1", {"deviceClassName": "", **flat})
    assert from_hub("v1beta1", "ResourceClaim", hub) == written
    assert (old, hub) == before


@pytest.mark.behaviour("SP-14", "PL-02")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deviceClassName", "c"),
        ("selectors", []),
        ("allocationMode", "All"),
        ("count", 1),
        ("adminAccess", False),
        ("tolerations", []),
        ("capacity", {}),
        pytest.param("derivedAttributes", [], marks=pytest.mark.behaviour("N-145")),
    ],
)
def test_a_flat_field_beside_alternatives_is_rejected(field: str, value: Any) -> None:
    mixed = {"name": "r", "firstAvailable": [{"name": "a", **EXACT}], field: value}
    hub = to_hub("v1beta1", "ResourceClaim", claim("v1beta1", mixed))
    hub["spec"]["devices"].pop("config")
    assert texts(validate_claim(hub, COMPILERS)) == [
        "spec.devices.requests[0]: Invalid value: null: exactly one of `exactly` or `firstAvailable` is required, "
        "but multiple fields are set"
    ]


@pytest.mark.behaviour("SP-14")
def test_zeros_of_flat_fields_are_unset() -> None:
    flat = {"name": "r", "deviceClassName": "", "allocationMode": "", "count": 0, "firstAvailable": [{"name": "a"}]}
    hub = to_hub("v1beta1", "ResourceClaim", claim("v1beta1", flat))
    assert hub["spec"]["devices"]["requests"] == [{"name": "r", "firstAvailable": [{"name": "a"}]}]


@pytest.mark.behaviour("PL-03")
def test_an_old_reader_sees_no_class_beside_alternatives() -> None:
    hub = claim("v1", {"name": "r", "firstAvailable": [{"name": "a", **EXACT}]})
    (request,) = from_hub("v1beta1", "ResourceClaim", hub)["spec"]["devices"]["requests"]
    assert request["deviceClassName"] == ""


@pytest.mark.behaviour("SP-14")
def test_templates_convert_their_claim_spec() -> None:
    flat, nested = REQUESTS["exact"]
    old = {"apiVersion": "resource.k8s.io/v1beta1", "spec": {"spec": claim("v1beta1", flat)["spec"]}}
    hub = {"apiVersion": "resource.k8s.io/v1", "spec": {"spec": claim("v1", nested)["spec"]}}
    assert to_hub("v1beta1", "ResourceClaimTemplate", old) == hub
    assert from_hub("v1beta1", "ResourceClaimTemplate", hub) == old


def resource_slice(version: str, *devices: Document, **spec: Any) -> Document:
    return {"apiVersion": f"resource.k8s.io/{version}", "spec": {"driver": "d", "devices": list(devices), **spec}}


@pytest.mark.behaviour("SP-14", "N-53")
def test_devices_are_wrapped_in_basic() -> None:
    node_resources = {"cpu": {"overhead": {"perPod": "1"}}}
    content = {
        "attributes": {"a": {"int": 1}},
        "taints": [{"key": "k"}],
        "nodeAllocatableResources": node_resources,
    }
    old = resource_slice("v1beta1", {"name": "d", "basic": content})
    hub = resource_slice("v1", {"name": "d", **content})
    assert to_hub("v1beta1", "ResourceSlice", old) == hub
    assert from_hub("v1beta1", "ResourceSlice", hub) == old


@pytest.mark.behaviour("SP-14")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"nodeName": "", "allNodes": True}, {"allNodes": True}),
        ({"nodeName": "n", "allNodes": False}, {"nodeName": "n"}),
        ({"nodeName": "n"}, {"nodeName": "n"}),
        ({"perDeviceNodeSelection": False}, {"perDeviceNodeSelection": False}),
    ],
)
def test_empty_node_choices_become_unset(given: Document, expected: Document) -> None:
    assert to_hub("v1beta1", "ResourceSlice", resource_slice("v1beta1", **given)) == resource_slice("v1", **expected)


@pytest.mark.behaviour("SP-14")
def test_later_versions_keep_empty_node_choices() -> None:
    hub = to_hub("v1beta2", "ResourceSlice", resource_slice("v1beta2", nodeName="", allNodes=False))
    assert (hub["spec"]["nodeName"], hub["spec"]["allNodes"]) == ("", False)


@pytest.mark.behaviour("SP-01")
@pytest.mark.parametrize(
    ("version", "kind", "hub"),
    [
        ("v1beta2", "ResourceClaim", "v1"),
        ("v1beta1", "DeviceClass", "v1"),
        ("v1alpha3", "DeviceTaintRule", "v1beta2"),
        ("v1beta2", "DeviceTaintRule", "v1beta2"),
        ("v1", "DeviceTaintRule", "v1beta2"),
    ],
)
def test_versions(version: str, kind: str, hub: str) -> None:
    document = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "spec": {}}
    up = to_hub(version, kind, document)
    assert up["apiVersion"] == f"resource.k8s.io/{hub}"
    assert from_hub(version, kind, up) == document


@pytest.mark.behaviour("SP-01")
def test_every_kind_has_defaults_in_every_version_it_is_served_in() -> None:
    served = {(kind.version, kind.kind) for kind in DEFAULTERS}
    everywhere = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
    assert served == {(version, kind) for version in ("v1", "v1beta2", "v1beta1") for kind in everywhere} | {
        ("v1", "DeviceTaintRule"),
        ("v1beta2", "DeviceTaintRule"),
        ("v1alpha3", "DeviceTaintRule"),
        ("v1alpha3", "ResourcePoolStatusRequest"),
    }
