"""The checkpoint on the disk."""

from __future__ import annotations

from dray.node.checkpoints.files import read_checkpoint
from dray.node.dra.checkpoint import CheckpointError, decode, recovery_advice
from dray.node.dra.claims import ClaimInfo


def load_checkpoint(path: str) -> tuple[ClaimInfo, ...]:
    """The claims of the last checkpoint, none when there is no file; raises with advice when it is damaged."""
    content = read_checkpoint(path)
    try:
        return () if content is None else decode(content)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}; {recovery_advice(path)}") from error
