"""The state files of the CPU and memory managers: kubelet's JSON with another checksum. Pure.

Kubelet's checksum hashes a printed Go structure, which only Go can compute; Dray's is the CRC-32 of the rest as sorted
JSON without spaces.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import orjson

_CHECKSUM: Final = "checksum"


class StateError(Exception):
    """A state file that the agent must not start with; the message says what to do."""


def encode(state: Mapping[str, Any]) -> bytes:
    """Return the content of the file."""
    return orjson.dumps({**state, _CHECKSUM: _checksum(state)})


def decode(content: bytes, policy: str, what: str, name: str) -> dict[str, Any]:
    """Return the state in a file's content; raises `StateError` if it is damaged or of another policy."""
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
