"""Conversion of resource.k8s.io between any two versions is lossless."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.conversion.resource import from_hub, hub_version, to_hub
from dray.api.document import Document

NAMES = st.text("abcdefgh-", min_size=1, max_size=6)
TEXTS = st.text(max_size=6)
QUANTITIES = st.sampled_from(["1", "10Gi", "500m"])
OPTIONAL_FLAGS = st.booleans()


def fields(required: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]) -> Any:
    return st.fixed_dictionaries(required, optional=optional)


TOLERATIONS = st.lists(fields({"operator": st.sampled_from(["Equal", "Exists"])}, key=NAMES, effect=TEXTS), max_size=2)
REQUEST_FIELDS: dict[str, Any] = {
    "selectors": st.lists(fields({"cel": fields({"expression": TEXTS})}), max_size=2),
    "tolerations": TOLERATIONS,
    "capacity": fields({}, requests=st.dictionaries(NAMES, QUANTITIES, max_size=2)),
}
# These are always defaulted before an object is converted.
MODES = st.sampled_from([{"allocationMode": "ExactCount", "count": 2}, {"allocationMode": "All"}])
EXACTLY = st.builds(
    lambda base, mode: {**base, **mode},
    fields({"deviceClassName": NAMES}, adminAccess=OPTIONAL_FLAGS, **REQUEST_FIELDS),
    MODES,
)
ALTERNATIVES = st.lists(
    st.builds(
        lambda base, mode: {**base, **mode},
        fields({"name": NAMES, "deviceClassName": NAMES}, **REQUEST_FIELDS),
        MODES,
    ),
    min_size=1,
    max_size=3,
)
REQUESTS = st.lists(
    st.one_of(
        fields({"name": NAMES, "exactly": EXACTLY}),
        fields({"name": NAMES, "firstAvailable": ALTERNATIVES}),
        fields({"name": NAMES, "exactly": EXACTLY, "firstAvailable": ALTERNATIVES}),
    ),
    min_size=1,
    max_size=3,
)
OPAQUE = fields({"driver": NAMES, "parameters": st.dictionaries(NAMES, st.integers(), max_size=2)})
CONFIG = st.lists(fields({"opaque": OPAQUE}, requests=st.lists(NAMES, max_size=2)), max_size=2)
DEVICE_CLAIMS = fields(
    {"requests": REQUESTS},
    config=CONFIG,
    constraints=st.lists(fields({"matchAttribute": NAMES}, requests=st.lists(NAMES, max_size=2)), max_size=2),
)
STATUS = fields(
    {},
    allocation=fields(
        {}, devices=fields({}, results=st.lists(fields({"request": NAMES, "device": NAMES}), max_size=2))
    ),
    reservedFor=st.lists(fields({"resource": NAMES, "name": NAMES, "uid": NAMES}), max_size=2),
)
DEVICES = st.lists(
    fields(
        {"name": NAMES},
        attributes=st.dictionaries(NAMES, fields({"int": st.integers()}), max_size=3),
        capacity=st.dictionaries(NAMES, fields({"value": QUANTITIES}), max_size=2),
        taints=st.lists(fields({"key": NAMES, "effect": TEXTS}), max_size=2),
        nodeName=NAMES,
        allNodes=st.just(True),
        allowMultipleAllocations=OPTIONAL_FLAGS,
        bindsToNode=OPTIONAL_FLAGS,
    ),
    min_size=1,
    max_size=3,
)
SLICE_SPECS = fields(
    {"driver": NAMES, "pool": fields({"name": NAMES, "generation": st.integers(0, 5)})},
    nodeName=NAMES,
    allNodes=st.just(True),
    perDeviceNodeSelection=OPTIONAL_FLAGS,
    devices=DEVICES,
)
METADATA = fields({"name": NAMES}, labels=st.dictionaries(NAMES, TEXTS, max_size=2))
HUB_OBJECTS: dict[str, Any] = {
    "ResourceClaim": fields({"metadata": METADATA, "spec": fields({"devices": DEVICE_CLAIMS})}, status=STATUS),
    "ResourceClaimTemplate": fields(
        {"metadata": METADATA, "spec": fields({"spec": fields({"devices": DEVICE_CLAIMS})}, metadata=METADATA)}
    ),
    "ResourceSlice": fields({"metadata": METADATA, "spec": SLICE_SPECS}),
    "DeviceClass": fields({"metadata": METADATA, "spec": fields({}, config=CONFIG, extendedResourceName=NAMES)}),
    "DeviceTaintRule": fields(
        {"metadata": METADATA, "spec": fields({"taint": fields({"key": NAMES, "effect": TEXTS})})}, status=STATUS
    ),
}
VERSIONS = dict.fromkeys(HUB_OBJECTS, ("v1", "v1beta2", "v1beta1")) | {"DeviceTaintRule": ("v1", "v1beta2", "v1alpha3")}
PAIRS = [(kind, first, second) for kind, served in VERSIONS.items() for first in served for second in served]


@pytest.mark.parametrize(("kind", "first", "second"), PAIRS)
@pytest.mark.behaviour("SP-14", "PL-14")
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip(kind: str, first: str, second: str, data: st.DataObject) -> None:
    hub: Document = {
        "apiVersion": f"resource.k8s.io/{hub_version(kind)}",
        "kind": kind,
        **data.draw(HUB_OBJECTS[kind]),
    }
    before = copy.deepcopy(hub)
    in_first = from_hub(first, kind, hub)
    in_second = from_hub(second, kind, to_hub(first, kind, in_first))
    assert in_second["apiVersion"] == f"resource.k8s.io/{second}"
    assert to_hub(second, kind, in_second) == hub
    assert from_hub(first, kind, to_hub(second, kind, in_second)) == in_first
    assert hub == before
