"""Errors of the allocator: for all nodes, for one node, or because a limit was reached.

"Does not fit" is a value, not an error. The texts are those of Kubernetes' allocator.
"""

from __future__ import annotations

import enum
from typing import Final

# The reason for a node where nothing fits and one of its pools is invalid.
INVALID_POOLS: Final = "invalid resource pools were encountered"


class AllocatorError(Exception):
    """The base of the allocator's errors."""


class AllocationError(AllocatorError):
    """The claims cannot be allocated on any node."""


class NodeAllocationError(AllocatorError):
    """The claims cannot be evaluated on this node."""


class UndefinedAllError(NodeAllocationError):
    """A request for all devices is undefined on this node; `problem` is the text without claim and request."""

    def __init__(self, claim: str, request: str, problem: str) -> None:
        super().__init__(f"claim {claim}, request {request}: {problem}")
        self.problem = problem


class StopReason(enum.StrEnum):
    """Why a search was stopped."""

    DEADLINE = "deadline"
    STEPS = "steps"


class SearchStoppedError(AllocatorError):
    """The search on this node reached a limit; the text has the device being tried."""

    def __init__(self, reason: StopReason, text: str, steps: int) -> None:
        super().__init__(text)
        self.reason = reason
        self.steps = steps
