"""The checkpoint of prepared claims: entries and their encoding. Pure; `checkpoint_files` reads and writes it.

An entry is written before the author's code is called and removed when nothing is left, so that everything the code may
have done is in the checkpoint:

* PREPARING: `prepare` was called and may have done some of its work; it is called again, or undone by `unprepare`.
* PREPARED: done; prepare calls are answered from the checkpoint until the next reboot.
* UNPREPARING: `unprepare` was called; prepare and unprepare calls call the author's code again.
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


class CheckpointError(ValueError):
    """A checkpoint that cannot be decoded."""


class Phase(enum.StrEnum):
    """Progress of a claim."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


@dataclass(frozen=True, slots=True)
class AnsweredDevice:
    """A device in the answer to kubelet."""

    request_names: tuple[str, ...]
    pool: str
    name: str
    share_id: str | None
    cdi_device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One claim; `answer` is valid only in the phase PREPARED."""

    claim: PreparedClaim
    phase: Phase
    boot_id: str
    answer: tuple[AnsweredDevice, ...] = ()
    # Path of the claim's CDI file; empty if its devices have no edits.
    cdi_file: str = ""


Checkpoint = Mapping[UID, Entry]


def encode(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint."""
    entries = [_entry_to_wire(checkpoint[uid]) for uid in sorted(checkpoint)]
    return orjson.dumps({"version": VERSION, "claims": entries}, option=orjson.OPT_INDENT_2)


def decode(content: bytes) -> dict[UID, Entry]:
    """Decode a checkpoint."""
    try:
        document = orjson.loads(content)
        if document["version"] != VERSION:
            raise CheckpointError(f"version {document['version']} is not known, expected {VERSION}")
        entries = [_entry_from_wire(item) for item in document["claims"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"damaged record of prepared claims: {error}") from error
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
            request=device["request"],
            pool=device["pool"],
            name=device["device"],
            share_id=device["shareID"],
            admin_access=device["adminAccess"],
            consumed_capacity=device["consumedCapacity"],
            parameters=tuple(device["parameters"]),
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
