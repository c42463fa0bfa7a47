"""The checkpoint on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dray.node.dra.checkpoint import CheckpointError, Written, decode, encode, recovery_advice
from dray.node.dra.claims import ClaimInfo
from dray.runtime.files import replace_file


def load_checkpoint(path: str) -> tuple[ClaimInfo, ...]:
    """The claims of the last checkpoint, none when there is no file; raises with advice when it is damaged."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return ()
    try:
        return decode(content)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}; {recovery_advice(path)}") from error


def save_checkpoint(path: str, claims: Iterable[ClaimInfo], written: Written | None = None) -> None:
    """Write the claims durably; `written` is as in `encode`."""
    replace_file(path, encode(claims, written))
