"""`kubelet_internal_checkpoint`: who has which devices, in the form of Kubernetes' kubelet. Pure.

Kubelet's checksum is a hash of a printed Go structure, which nothing but Go can compute. Ours is the CRC-32 of `Data`
as sorted, dense JSON. A file that kubelet wrote therefore does not pass, and counts as damaged: the node is drained
when it changes from one to the other, as after any change of its agent's kind.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from dray.node.devices.assignments import Assignment, Slot
from dray.node.devices.choice import in_order

FILE_NAME: Final = "kubelet_internal_checkpoint"


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What outlives the agent: assignments, and the devices each registered resource had."""

    assigned: tuple[tuple[Slot, Assignment], ...] = ()
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# What was last written of each assignment.
Written = dict[Slot, tuple[Assignment, orjson.Fragment]]


def encode(checkpoint: Checkpoint, written: Written | None = None) -> bytes:
    """The file's content; what is in `written`, and only that, is not made anew. It is then what this call wrote."""
    memory = {} if written is None else written
    now = {slot: _known(slot, held, memory) or (held, _fragment(slot, held)) for slot, held in checkpoint.assigned}
    memory.clear()
    memory.update(now)
    # All keys come sorted, so that these are the bytes whose checksum is taken.
    data = orjson.dumps(
        {
            "PodDeviceEntries": [fragment for _, fragment in now.values()],
            "RegisteredDevices": {name: in_order(ids) for name, ids in sorted(checkpoint.registered.items())},
        }
    )
    return orjson.dumps({"Data": orjson.Fragment(data), "Checksum": zlib.crc32(data)})


def _known(slot: Slot, held: Assignment, written: Written) -> tuple[Assignment, orjson.Fragment] | None:
    found = written.get(slot)
    return found if found is not None and found[0] is held else None


def _fragment(slot: Slot, assignment: Assignment) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(_entry(slot, assignment), option=orjson.OPT_SORT_KEYS))


def decode(content: bytes) -> Checkpoint:
    """What a file's content says; raises `CheckpointError`."""
    try:
        envelope = orjson.loads(content)
        data, checksum = envelope["Data"], envelope["Checksum"]
        if _checksum(data) != checksum:
            raise CheckpointError(
                f"checkpoint is corrupted: checksum is {checksum}, of the data it is {_checksum(data)}"
            )
        assigned = tuple(_from_entry(entry) for entry in data["PodDeviceEntries"] or ())
        registered = {name: tuple(ids or ()) for name, ids in (data["RegisteredDevices"] or {}).items()}
    except (TypeError, KeyError, AttributeError, orjson.JSONDecodeError, binascii.Error) as error:
        raise CheckpointError(f"checkpoint is corrupted: {type(error).__name__}: {error}") from error
    return Checkpoint(assigned, registered)


def _checksum(data: Any) -> int:
    return zlib.crc32(orjson.dumps(data, option=orjson.OPT_SORT_KEYS))


def _entry(slot: Slot, assignment: Assignment) -> dict[str, Any]:
    return {
        "PodUID": slot.pod_uid,
        "ContainerName": slot.container,
        "ResourceName": slot.resource,
        "DeviceIDs": {str(node): list(ids) for node, ids in assignment.devices.items()},
        "AllocResp": base64.b64encode(assignment.response).decode(),
    }


def _from_entry(entry: Mapping[str, Any]) -> tuple[Slot, Assignment]:
    slot = Slot(entry["PodUID"], entry["ContainerName"], entry["ResourceName"])
    devices = {int(node): tuple(ids) for node, ids in sorted(entry["DeviceIDs"].items(), key=lambda item: int(item[0]))}
    return slot, Assignment(devices, base64.b64decode(entry["AllocResp"] or "", validate=True))


def sample(assigned: Iterable[tuple[Slot, Assignment]], registered: Mapping[str, Iterable[str]]) -> Checkpoint:
    """The state as it is now."""
    return Checkpoint(tuple(assigned), {name: tuple(ids) for name, ids in registered.items()})
