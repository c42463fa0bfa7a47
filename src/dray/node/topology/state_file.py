"""The state files of CPUs and memory: JSON in kubelet's form with a checksum of our own. Pure.

Kubelet's checksum hashes a printed Go structure, which only Go can compute; ours is the CRC-32 of the rest as sorted,
dense JSON.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

_CHECKSUM: Final = "checksum"


class StateError(Exception):
    """A state that this node must not begin with; the text says what to do."""


def encode(state: Mapping[str, Any]) -> bytes:
    """The file's content."""
    return orjson.dumps({**state, _CHECKSUM: _checksum(state)})


def decode(content: bytes, policy: str, what: str, name: str) -> dict[str, Any]:
    """The state of a file's content; raises when it is damaged or of another policy."""
    advice = f'please drain this node and delete the {what} manager checkpoint file "{name}" before restarting Kubelet'
    try:
        state = orjson.loads(content)
        checksum = state.pop(_CHECKSUM)
    except (orjson.JSONDecodeError, AttributeError, TypeError, KeyError) as error:
        raise StateError(f"could not restore state from checkpoint: checkpoint is corrupted, {advice}") from error
    if checksum != _checksum(state):
        raise StateError(f"could not restore state from checkpoint: checkpoint is corrupted, {advice}")
    if state.get("policyName") != policy:
        raise StateError(
            f'could not restore state from checkpoint: configured policy "{policy}" differs from state checkpoint '
            f'policy "{state.get("policyName")}", {advice}'
        )
    result: dict[str, Any] = state
    return result


def _checksum(state: Mapping[str, Any]) -> int:
    return zlib.crc32(orjson.dumps(dict(state), option=orjson.OPT_SORT_KEYS))
