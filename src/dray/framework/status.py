"""The result of a plugin call: a code that decides what the scheduler does next, and reasons for the user.

Reasons are aggregated over nodes in the Pod's condition, so they must not name the node. A detail of the first reason
follows its sum.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Code(enum.Enum):
    """The result of a plugin call; the values are Kubernetes' labels in metrics and logs."""

    SUCCESS = "Success"
    # A failure; the Pod is retried after a backoff.
    ERROR = "Error"
    # Rejected; a cluster event or PostFilter can make it schedulable.
    UNSCHEDULABLE = "Unschedulable"
    # Rejected, and preemption does not help.
    UNSCHEDULABLE_AND_UNRESOLVABLE = "UnschedulableAndUnresolvable"
    # Permit: wait until the Pod is allowed or rejected.
    WAIT = "Wait"
    # Bind: leave the Pod to the next plugin. PreFilter, PreScore: skip this plugin's Filter or Score.
    SKIP = "Skip"
    # Reserve, PreBind: waiting for something that was started; the Pod is requeued without backoff.
    PENDING = "Pending"

    def __init__(self, label: str) -> None:
        # The value as an attribute: `value` is computed by two calls.
        self.label: Final = label


class Status(msgspec.Struct, frozen=True):
    """The result of a plugin call; `plugin` is set by the caller."""

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""
    # Of a failure: what the attempt was based on has changed, so it is repeated without a backoff.
    at_once: bool = False
    # What else is known about the first reason.
    detail: str = ""

    @property
    def is_success(self) -> bool:
        """Return whether the Pod may proceed."""
        return self.code is Code.SUCCESS

    @property
    def is_rejected(self) -> bool:
        """Return whether this is a rejection, not a failure."""
        # Comparisons are faster than hashing an enum member, and this runs for every rejected node.
        code = self.code
        return code is Code.UNSCHEDULABLE or code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE or code is Code.PENDING

    @property
    def message(self) -> str:
        """Return all reasons in one line."""
        return ", ".join(self.texts)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the reasons, the first one with its detail."""
        return (f"{self.reasons[0]} ({self.detail})", *self.reasons[1:]) if self.detail else self.reasons

    def with_plugin(self, plugin: str) -> Status:
        """Return the status with the plugin's name; a name that is already set is kept."""
        return self if self.plugin else msgspec.structs.replace(self, plugin=plugin)


SUCCESS: Final = Status(Code.SUCCESS)
SKIP: Final = Status(Code.SKIP)


def unschedulable(*reasons: str) -> Status:
    """Return a rejection that preemption or a cluster event can resolve."""
    return Status(Code.UNSCHEDULABLE, reasons)


def unresolvable(*reasons: str) -> Status:
    """Return a rejection that preemption cannot resolve."""
    return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)


def error(*reasons: str) -> Status:
    """Return a failure."""
    return Status(Code.ERROR, reasons)


def outdated(*reasons: str) -> Status:
    """Return a failure after which the Pod is tried again at once."""
    return Status(Code.ERROR, reasons, at_once=True)
