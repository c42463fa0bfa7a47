"""A claim as the driver's author sees it, its CDI file, and the record of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.api.cdi import ContainerEdits, parse, render
from dray.api.codec import from_document
from dray.api.document import UID, NamespacedName
from dray.api.types.resource_v1 import ResourceClaim
from dray.driver.claims import AllocatedDevice, ClaimError, PreparedClaim, claim_for
from dray.driver.devices import Version, attribute, device
from dray.driver.prepared.cdi import claim_file, claim_spec
from dray.driver.prepared.checkpoint import AnsweredDevice, CheckpointError, Entry, Phase, decode, encode
from dray.driver.prepared.checkpoint_files import PreparedClaims

DRIVER = "gpu.example.com"


def config(parameters: Any, *requests: str, driver: str = DRIVER) -> dict[str, Any]:
    return {"requests": list(requests), "opaque": {"driver": driver, "parameters": parameters}}


def claim(*configs: dict[str, Any], **metadata: str) -> ResourceClaim:
    results = [
        {"driver": DRIVER, "request": "a", "pool": "p", "device": "x", "shareID": "s", "adminAccess": True},
        {"driver": DRIVER, "request": "b/small", "pool": "p", "device": "y", "consumedCapacity": {"m": "1Gi"}},
        {"driver": "other.example.com", "request": "a", "pool": "p", "device": "z"},
    ]
    return from_document(
        ResourceClaim,
        {
            "metadata": {"name": "c", "namespace": "default", "uid": "u", **metadata},
            "status": {"allocation": {"devices": {"results": results, "config": list(configs)}}},
        },
    )


def test_a_driver_sees_its_own_devices() -> None:
    found = claim_for(DRIVER, UID("u"), claim())
    assert found.key == NamespacedName("default", "c")
    assert found.devices == (
        AllocatedDevice("a", "p", "x", "s", admin_access=True),
        AllocatedDevice("b/small", "p", "y", consumed_capacity={"m": "1Gi"}),
    )


@pytest.mark.behaviour("PL-32")
def test_parameters_go_to_the_requests_they_name_in_order() -> None:
    found = claim_for(
        DRIVER,
        UID("u"),
        claim(
            config(1), config(2, "a"), config(3, "b"), config(4, "b/small"), config(5, "b/big"), config(6, driver="o")
        ),
    )
    assert [item.parameters for item in found.devices] == [(1, 2), (1, 3, 4)]


@pytest.mark.behaviour("SP-135")
def test_a_claim_that_is_not_the_one_meant() -> None:
    with pytest.raises(ClaimError, match="claim default/c got replaced"):
        claim_for(DRIVER, UID("other"), claim())
    unallocated = from_document(ResourceClaim, {"metadata": {"name": "c", "namespace": "default", "uid": "u"}})
    with pytest.raises(ClaimError, match="claim default/c not allocated"):
        claim_for(DRIVER, UID("u"), unallocated)


def test_a_claims_cdi_file_has_a_device_for_each_that_edits_something() -> None:
    one, two = claim_for(DRIVER, UID("u"), claim()).devices
    prepared = [one.prepared(ContainerEdits(env=("A=1",))), two.prepared(cdi_device_ids=["vendor.com/gpu=all"])]
    spec, answer = claim_spec(DRIVER, UID("u"), prepared)
    assert spec is not None
    assert parse(render(spec)) == spec
    assert orjson.loads(render(spec)) == {
        "cdiVersion": "0.3.0",
        "kind": "gpu.example.com/claim",
        "devices": [{"name": "x-u-0", "containerEdits": {"env": ["A=1"]}}],
    }
    assert answer == (
        AnsweredDevice(("a",), "p", "x", "s", ("gpu.example.com/claim=x-u-0",)),
        AnsweredDevice(("b",), "p", "y", None, ("vendor.com/gpu=all",)),
    )
    assert claim_file(DRIVER, UID("u")) == "gpu.example.com-claim-u.json"
    assert claim_spec(DRIVER, UID("u"), [two.prepared()])[0] is None


def test_a_driver_whose_name_begins_with_a_digit_still_has_a_vendor() -> None:
    one = claim_for(DRIVER, UID("u"), claim()).devices[0]
    spec, _ = claim_spec("3d.example.com", UID("u"), [one.prepared(ContainerEdits(env=("A=1",)))])
    assert spec is not None
    assert parse(render(spec)).kind == "driver-3d.example.com/claim"


HELD = PreparedClaim(
    UID("u"), NamespacedName("default", "c"), (AllocatedDevice("a", "p", "x", parameters=({"k": 1},)),)
)
ENTRY = Entry(HELD, Phase.PREPARED, "boot", (AnsweredDevice(("a",), "p", "x", None, ("v/c=x",)),), "/cdi/file")


def test_the_record_is_read_as_it_was_written() -> None:
    assert decode(encode({HELD.uid: ENTRY})) == {HELD.uid: ENTRY}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 2, "claims": []}', b'{"version": 1, "claims": [{}]}'])
def test_a_damaged_record_is_refused_with_advice(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "prepared.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"to recover, drain the node"):
        PreparedClaims(str(tmp_path), str(tmp_path)).all()


def test_two_instances_share_the_record(tmp_path: Path) -> None:
    one, two = (PreparedClaims(str(tmp_path), str(tmp_path / "cdi")) for _ in range(2))
    one.put(ENTRY)
    assert two.get(HELD.uid) == ENTRY
    two.remove(HELD.uid)
    two.remove(HELD.uid)
    assert one.all() == ()


def test_a_prepared_claim_counts_only_on_the_same_boot_and_with_its_file(tmp_path: Path) -> None:
    claims = PreparedClaims(str(tmp_path), str(tmp_path))
    file = tmp_path / "spec.json"
    entry = Entry(HELD, Phase.PREPARED, claims.boot_id, (), str(file))
    assert not claims.intact(entry)
    file.touch()
    assert claims.intact(entry)
    assert not claims.intact(Entry(HELD, Phase.PREPARED, "another boot", (), str(file)))
    assert claims.intact(Entry(HELD, Phase.PREPARED, claims.boot_id))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (True, "bool_"),
        (1, "int_"),
        ("text", "string"),
        (Version("1.2.3"), "version"),
        ((True,), "bools"),
        ((1, 2), "ints"),
        (("a", "b"), "strings"),
        ((Version("1.0.0"),), "versions"),
    ],
)
def test_attributes_have_the_type_of_their_value(value: Any, field: str) -> None:
    made = attribute(value)
    assert getattr(made, field) == value
    assert attribute(made) is made


def test_a_device_in_one_line() -> None:
    made = device("d", capacity={"m": 3}, consumes={"set": {"c": "1Gi"}}, allow_multiple_allocations=True)
    assert made.capacity["m"].value == "3"
    assert made.consumes_counters[0].counters["c"].value == "1Gi"
    assert made.allow_multiple_allocations
