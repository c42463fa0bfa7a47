"""The claims in use in the file `dra_manager_state`, in kubelet's format with `ClassName` and `Allocated` added. Pure.

The file is JSON with a text `Data` and the CRC-32 (IEEE) of that text. Whether a claim is prepared is not stored: after
a restart only the drivers know.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from dray.api.document import UID, NamespacedName
from dray.node.dra.claims import AllocatedDevice, ClaimInfo, Device

FILE_NAME: Final = "dra_manager_state"
KIND: Final = "DRACheckpoint"
API_VERSION: Final = "checkpoint.dra.kubelet.k8s.io/v1"


class CheckpointError(ValueError):
    """A damaged checkpoint."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An encoded claim, plain and as part of a JSON string."""

    info: ClaimInfo
    plain: bytes
    quoted: bytes


# The encoded claims of the last checkpoint.
Encoded = dict[UID, _Part]


def encode(claims: Iterable[ClaimInfo], written: Encoded | None = None) -> bytes:
    """Return the content of the file; unchanged parts are taken from `written`, which is updated."""
    memory = {} if written is None else written
    now = {}
    for info in claims:
        found = memory.get(info.uid)
        now[info.uid] = found if found is not None and found.info is info else _part(info)
    memory.clear()
    memory.update(now)
    # Long byte strings are slow to build: there is never more than one, and it is not copied.
    checksum = zlib.crc32(b",".join([part.plain for part in now.values()]), zlib.crc32(_HEAD))
    checksum = zlib.crc32(_TAIL, checksum)
    quoted = [part.quoted for part in now.values()] or [b""]
    quoted[0] = b'{"Data":"%b%b' % (_HEAD_QUOTED, quoted[0])
    quoted[-1] = b'%b%b","Checksum":%d}' % (quoted[-1], _TAIL, checksum)
    return b",".join(quoted)


def _part(info: ClaimInfo) -> _Part:
    plain = orjson.dumps(_to_wire(info))
    return _Part(info, plain, _quote(plain))


def _quote(text: bytes) -> bytes:
    return orjson.dumps(text.decode())[1:-1]


# The data before and after the claims.
_HEAD: Final = b'{"kind":"%b","apiVersion":"%b","ClaimInfoStateList":[' % (KIND.encode(), API_VERSION.encode())
_HEAD_QUOTED: Final = _quote(_HEAD)
_TAIL: Final = b"]}"


def decode(content: bytes) -> tuple[ClaimInfo, ...]:
    """Return the claims in a file's content; raises `CheckpointError`."""
    try:
        envelope = orjson.loads(content)
        data, checksum = envelope["Data"].encode(), envelope["Checksum"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"checkpoint is corrupted: it is not of the form Data and Checksum ({error})") from error
    if zlib.crc32(data) != checksum:
        raise CheckpointError(f"checkpoint is corrupted: checksum is {checksum}, of the data it is {zlib.crc32(data)}")
    try:
        state = orjson.loads(data)
        kind, version = state["kind"], state["apiVersion"]
        if (kind, version) == (KIND, API_VERSION):
            return tuple(_from_wire(item) for item in state.get("ClaimInfoStateList") or ())
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"checkpoint is corrupted: {type(error).__name__}: {error}") from error
    raise CheckpointError(f"checkpoint is of an unknown kind: {kind} {version}, expected {KIND} {API_VERSION}")


def _to_wire(info: ClaimInfo) -> dict[str, Any]:
    state = {
        "ClaimUID": info.uid,
        "ClaimName": info.key.name,
        "Namespace": info.key.namespace,
        "PodUIDs": {uid: {} for uid in sorted(info.pod_uids)},
        "DriverState": {
            driver: {"Devices": [_device_to_wire(d) for d in info.devices[driver]], **_skips_to_wire(info, driver)}
            for driver in info.drivers
        },
    }
    # Not part of kubelet's format; kubelet ignores them.
    own = {"ClassName": info.class_name, "Allocated": [list(names) for names in sorted(info.allocated)]}
    return state | {name: value for name, value in own.items() if value}


def _skips_to_wire(info: ClaimInfo, driver: str) -> dict[str, Any]:
    skipped = sorted(info.skipped.get(driver, ()))
    return {"skipNodeOperations": skipped} if skipped else {}


def _skips_from_wire(drivers: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    listed = {name: frozenset(state.get("skipNodeOperations") or ()) for name, state in drivers.items()}
    return {name: operations for name, operations in listed.items() if operations}


def _device_to_wire(device: Device) -> dict[str, Any]:
    return {
        "PoolName": device.pool_name,
        "DeviceName": device.device_name,
        "ShareID": device.share_id,
        "RequestNames": list(device.request_names),
        "CDIDeviceIDs": list(device.cdi_device_ids),
    }


def _from_wire(item: Mapping[str, Any]) -> ClaimInfo:
    drivers = item.get("DriverState") or {}
    return ClaimInfo(
        UID(item["ClaimUID"]),
        NamespacedName(item["Namespace"], item["ClaimName"]),
        {name: tuple(_device_from_wire(d) for d in state.get("Devices") or ()) for name, state in drivers.items()},
        frozenset(UID(uid) for uid in item.get("PodUIDs") or ()),
        item.get("ClassName") or "",
        _skips_from_wire(drivers),
        frozenset(AllocatedDevice(*names) for names in item.get("Allocated") or ()),
    )


def _device_from_wire(item: Mapping[str, Any]) -> Device:
    return Device(
        item["PoolName"],
        item["DeviceName"],
        item.get("ShareID"),
        tuple(item.get("RequestNames") or ()),
        tuple(item.get("CDIDeviceIDs") or ()),
    )
