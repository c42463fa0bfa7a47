"""The device assignments in the file `kubelet_internal_checkpoint`, in kubelet's format. Pure.

Kubelet's checksum is a hash of a printed Go structure, which only Go can compute. Dray's is the CRC-32 of `Data` as
sorted JSON without spaces. A file that kubelet wrote is therefore treated as damaged: drain the node before replacing
one agent by the other.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from dray.node.devices.assignments import Assignment, AssignmentKey
from dray.node.devices.inventory import in_order

FILE_NAME: Final = "kubelet_internal_checkpoint"


class CheckpointError(ValueError):
    """A damaged checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The persistent state: assignments, and the devices of each registered resource."""

    assigned: tuple[tuple[AssignmentKey, Assignment], ...] = ()
    registered: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Written:
    """The encoded assignments and resources of the last checkpoint, with the values they were encoded from."""

    assigned: dict[AssignmentKey, tuple[Assignment, bytes]] = field(default_factory=dict)
    registered: dict[str, tuple[Collection[str], bytes]] = field(default_factory=dict)


def encode(checkpoint: Checkpoint, written: Written | None = None) -> bytes:
    """Return the content of the file; unchanged parts are taken from `written`, which is updated."""
    memory = Written() if written is None else written
    assigned, registered = {}, {}
    for slot, held in checkpoint.assigned:
        entry = memory.assigned.get(slot)
        assigned[slot] = entry if entry is not None and entry[0] is held else (held, _entry(slot, held))
    for name, ids in sorted(checkpoint.registered.items()):
        known = memory.registered.get(name)
        registered[name] = known if known is not None and known[0] is ids else (ids, _registered(name, ids))
    memory.assigned, memory.registered = assigned, registered
    # All keys are sorted, so that these are the bytes of the checksum.
    entries = [entry for _, entry in assigned.values()] or [b""]
    devices = b",".join([devices for _, devices in registered.values()])
    entries[0] = b'{"PodDeviceEntries":[%b' % entries[0]
    entries[-1] = b'%b],"RegisteredDevices":{%b}}' % (entries[-1], devices)
    # Long byte strings are slow to build: there is never more than one, and it is not copied.
    checksum = zlib.crc32(b",".join(entries))
    entries[0] = b'{"Data":%b' % entries[0]
    entries[-1] = b'%b,"Checksum":%d}' % (entries[-1], checksum)
    return b",".join(entries)


def decode(content: bytes) -> Checkpoint:
    """Decode the content of the file; raises `CheckpointError`."""
    try:
        envelope = orjson.loads(content)
        data, checksum = envelope["Data"], envelope["Checksum"]
        found = _checksum(data)
        assigned = tuple(_from_entry(entry) for entry in data["PodDeviceEntries"] or ())
        registered = {name: tuple(ids or ()) for name, ids in (data["RegisteredDevices"] or {}).items()}
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise CheckpointError(f"checkpoint is corrupted: {type(error).__name__}: {error}") from error
    if found != checksum:
        raise CheckpointError(f"checkpoint is corrupted: checksum is {checksum}, of the data it is {found}")
    return Checkpoint(assigned, registered)


def _checksum(data: Any) -> int:
    return zlib.crc32(orjson.dumps(data, option=orjson.OPT_SORT_KEYS))


def _entry(slot: AssignmentKey, assignment: Assignment) -> bytes:
    content = {
        "PodUID": slot.pod_uid,
        "ContainerName": slot.container,
        "ResourceName": slot.resource,
        "DeviceIDs": {str(node): list(ids) for node, ids in assignment.devices.items()},
        "AllocResp": None if assignment.response is None else base64.b64encode(assignment.response).decode(),
    }
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)


def _registered(name: str, ids: Iterable[str]) -> bytes:
    return b"%b:%b" % (orjson.dumps(name), orjson.dumps(in_order(ids)))


def _from_entry(entry: Mapping[str, Any]) -> tuple[AssignmentKey, Assignment]:
    slot = AssignmentKey(entry["PodUID"], entry["ContainerName"], entry["ResourceName"])
    devices = {int(node): tuple(ids) for node, ids in sorted(entry["DeviceIDs"].items(), key=lambda item: int(item[0]))}
    response = entry["AllocResp"]
    return slot, Assignment(devices, None if response is None else base64.b64decode(response, validate=True))


def sample(
    assigned: Iterable[tuple[AssignmentKey, Assignment]], registered: Mapping[str, frozenset[str]]
) -> Checkpoint:
    """Return a snapshot of the state."""
    return Checkpoint(tuple(assigned), dict(registered))
