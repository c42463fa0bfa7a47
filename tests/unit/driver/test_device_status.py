"""A driver's entries in `status.devices`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.driver import NetworkDeviceData
from dray.driver.device_status import DeviceCondition, DeviceStatus, DeviceStatusError, device_status, merge_statuses

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEVICE = ("nic.example.com", "p", "vf-0", "")
READY = DeviceCondition("Ready", is_true=True, reason="Configured")
NETWORK = NetworkDeviceData(interface_name="net1", ips=("10.0.0.2/24",), hardware_address="02:00:00:00:00:01")


def test_entries_of_others_and_unknown_fields_are_kept() -> None:
    theirs = {"driver": "other.example.com", "pool": "p", "device": "vf-0", "later": {"x": 1}}
    status = device_status(DEVICE, [READY], {"mtu": 9000}, NETWORK, NOW)
    merged = merge_statuses([theirs], {DEVICE: status}, NOW)
    assert merged == [
        theirs,
        {
            "driver": "nic.example.com",
            "pool": "p",
            "device": "vf-0",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Configured",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
            "data": {"mtu": 9000},
            "networkData": {
                "interfaceName": "net1",
                "ips": ["10.0.0.2/24"],
                "hardwareAddress": "02:00:00:00:00:01",
            },
        },
    ]
    assert merge_statuses(merged, {DEVICE: status}, NOW + timedelta(hours=1)) == merged


def test_conditions_are_merged_by_type_and_keep_the_time_of_their_transition() -> None:
    merged = merge_statuses([], {DEVICE: DeviceStatus({"Ready": READY})}, NOW)
    later = NOW + timedelta(minutes=1)
    same = DeviceCondition("Ready", is_true=True, reason="Reconfigured")
    other = DeviceCondition("Linked", is_true=False, reason="NoCarrier")
    (entry,) = merge_statuses(merged, {DEVICE: DeviceStatus({"Ready": same, "Linked": other})}, later)
    shown = [(item["type"], item["status"], item["reason"], item["lastTransitionTime"]) for item in entry["conditions"]]
    assert shown == [
        ("Ready", "True", "Reconfigured", "2026-01-01T00:00:00Z"),
        ("Linked", "False", "NoCarrier", "2026-01-01T00:01:00Z"),
    ]
    changed = DeviceCondition("Ready", is_true=False, reason="Gone")
    (entry,) = merge_statuses([entry], {DEVICE: DeviceStatus({"Ready": changed})}, later)
    assert entry["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:01:00Z"


def test_shares_are_devices_of_their_own() -> None:
    share = (*DEVICE[:3], "7c0b9a5e-0000-4000-8000-000000000000")
    merged = merge_statuses([], {DEVICE: DeviceStatus(data={"a": 1}), share: DeviceStatus(data={"a": 2})}, NOW)
    assert [item.get("shareID") for item in merged] == [None, share[3]]


def test_later_reports_take_precedence() -> None:
    first = DeviceStatus({"Ready": READY}, {"a": 1}, NETWORK)
    second = DeviceStatus({"Ready": DeviceCondition("Ready", is_true=False, reason="R")}, {"b": 2})
    assert first.updated(second) == DeviceStatus(second.conditions, {"b": 2}, NETWORK)


@pytest.mark.parametrize(
    "fields",
    [
        {"data": {"text": "x" * 10_240}},
        {"network": NetworkDeviceData(interface_name="x" * 257)},
        {"network": NetworkDeviceData(ips=("10.0.0.2",))},
        {"network": NetworkDeviceData(ips=tuple(f"10.0.0.{n}/24" for n in range(17)))},
        {"conditions": [DeviceCondition("", is_true=True, reason="R")]},
        {"conditions": [DeviceCondition("A", is_true=True, reason="no reason")]},
        {"conditions": [DeviceCondition(f"C{n}", is_true=True, reason="R") for n in range(9)]},
    ],
)
def test_what_the_server_would_reject_is_an_error_at_once(fields: dict[str, Any]) -> None:
    given = {"conditions": (), "data": None, "network": None, **fields}
    with pytest.raises(DeviceStatusError):
        device_status(DEVICE, given["conditions"], given["data"], given["network"], NOW)
