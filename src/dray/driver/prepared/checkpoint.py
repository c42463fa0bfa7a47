"""The record of prepared claims: its entries, its form on the disk, and what an entry means for a call.

Pure; `files` reads and writes it. An entry is written before the driver is asked to do anything and removed when
nothing is left, so whatever the driver may have done is in the record:

* PREPARING: the driver was asked and may have done some of it; prepare asks again, unprepare asks to undo.
* PREPARED: done; prepare answers from the record, as long as the machine has not been rebooted since.
* UNPREPARING: undoing has begun; prepare asks the driver again, unprepare asks again to undo.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from dray.api.document import UID, NamespacedName
from dray.driver.claims import AllocatedDevice, PreparedClaim

VERSION: Final = 1


class RecordError(ValueError):
    """A record that cannot be read."""


class Phase(enum.StrEnum):
    """How far a claim has come."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


@dataclass(frozen=True, slots=True)
class AnsweredDevice:
    """A device as the node agent is told of it."""

    request_names: tuple[str, ...]
    pool: str
    name: str
    share_id: str | None
    cdi_device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One claim; `answer` counts only when it is PREPARED."""

    claim: PreparedClaim
    phase: Phase
    boot_id: str
    answer: tuple[AnsweredDevice, ...] = ()
    # The claim's CDI file, empty when its devices edit nothing.
    cdi_file: str = ""


Record = Mapping[UID, Entry]


def encode(record: Record) -> bytes:
    """The record as it is stored."""
    entries = [_entry_to_wire(record[uid]) for uid in sorted(record)]
    return orjson.dumps({"version": VERSION, "claims": entries}, option=orjson.OPT_INDENT_2)


def decode(content: bytes) -> dict[UID, Entry]:
    """Read a stored record."""
    try:
        document = orjson.loads(content)
        if document["version"] != VERSION:
            raise RecordError(f"version {document['version']} is not known, expected {VERSION}")
        entries = [_entry_from_wire(item) for item in document["claims"]]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"damaged record of prepared claims: {error}") from error
    return {entry.claim.uid: entry for entry in entries}


def _entry_to_wire(entry: Entry) -> dict[str, Any]:
    return {
        "uid": entry.claim.uid,
        "namespace": entry.claim.key.namespace,
        "name": entry.claim.key.name,
        "phase": entry.phase.value,
        "bootID": entry.boot_id,
        "cdiFile": entry.cdi_file,
        "devices": [_device_to_wire(device) for device in entry.claim.devices],
        "answer": [_answer_to_wire(device) for device in entry.answer],
    }


def _device_to_wire(device: AllocatedDevice) -> dict[str, Any]:
    return {
        "request": device.request,
        "pool": device.pool,
        "device": device.name,
        "shareID": device.share_id,
        "adminAccess": device.admin_access,
        "consumedCapacity": dict(device.consumed_capacity),
        "parameters": list(device.parameters),
    }


def _answer_to_wire(device: AnsweredDevice) -> dict[str, Any]:
    return {
        "requestNames": list(device.request_names),
        "pool": device.pool,
        "device": device.name,
        "shareID": device.share_id,
        "cdiDeviceIDs": list(device.cdi_device_ids),
    }


def _entry_from_wire(item: Mapping[str, Any]) -> Entry:
    devices = tuple(
        AllocatedDevice(
            device["request"],
            device["pool"],
            device["device"],
            device["shareID"],
            device["adminAccess"],
            device["consumedCapacity"],
            tuple(device["parameters"]),
        )
        for device in item["devices"]
    )
    answer = tuple(
        AnsweredDevice(
            tuple(device["requestNames"]),
            device["pool"],
            device["device"],
            device["shareID"],
            tuple(device["cdiDeviceIDs"]),
        )
        for device in item["answer"]
    )
    claim = PreparedClaim(UID(item["uid"]), NamespacedName(item["namespace"], item["name"]), devices)
    return Entry(claim, Phase(item["phase"]), item["bootID"], answer, item["cdiFile"])
