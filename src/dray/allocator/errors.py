"""What ends an allocation without an answer: for the whole attempt, for one node, or for lack of time.

"No fit" is not here: it is a value. Texts are those of Kubernetes' allocator, since users and tests match them.
"""

from __future__ import annotations

import enum
from typing import Final

# The reason a node is given when nothing fits and one of its pools cannot be trusted.
INVALID_POOLS: Final = "invalid resource pools were encountered"


class AllocatorError(Exception):
    """Base of everything the allocator raises."""


class AllocationError(AllocatorError):
    """The claims cannot be handled on any node: the attempt ends."""


class NodeAllocationError(AllocatorError):
    """This node cannot be judged; others can."""


class StopReason(enum.StrEnum):
    """Why a search ended before its answer was known."""

    DEADLINE = "deadline"
    STEPS = "steps"


class SearchStoppedError(AllocatorError):
    """The search was given up on this node; the text says what was being tried."""

    def __init__(self, reason: StopReason, text: str, steps: int) -> None:
        super().__init__(text)
        self.reason = reason
        self.steps = steps
