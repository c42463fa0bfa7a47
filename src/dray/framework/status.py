"""What a plugin answers: a code that says what happens next to the Pod, and reasons for its user.

Reasons of rejected nodes are counted in the Pod's condition, so they must not name the node.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Code(enum.Enum):
    """The outcome of one plugin call; the values are Kubernetes' spellings in metrics and logs."""

    SUCCESS = "Success"
    # Something broke; the Pod is tried again after a backoff.
    ERROR = "Error"
    # No now; a change in the cluster, or room made by PostFilter, may turn it into yes.
    UNSCHEDULABLE = "Unschedulable"
    # No, and making room does not help.
    UNSCHEDULABLE_AND_UNRESOLVABLE = "UnschedulableAndUnresolvable"
    # Permit: hold the Pod until someone allows or rejects it.
    WAIT = "Wait"
    # Bind: not mine. PreFilter, PreScore: leave this plugin's Filter or Score out for the Pod.
    SKIP = "Skip"
    # Reserve, PreBind: something was started that will decide; do not make the Pod back off for it.
    PENDING = "Pending"


class Status(msgspec.Struct, frozen=True):
    """A plugin's answer; `plugin` is filled in by the caller of the plugin."""

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the Pod may go on."""
        return self.code is Code.SUCCESS

    @property
    def is_rejected(self) -> bool:
        """Whether this is an expected no, and not a failure."""
        # Compared one by one: hashing an enumeration's member costs more, and this runs for every rejected node.
        code = self.code
        return code is Code.UNSCHEDULABLE or code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE or code is Code.PENDING

    @property
    def message(self) -> str:
        """All reasons in one line."""
        return ", ".join(self.reasons)

    def with_plugin(self, plugin: str) -> Status:
        """The same answer with its author; an author already named is kept."""
        return self if self.plugin else msgspec.structs.replace(self, plugin=plugin)


SUCCESS: Final = Status(Code.SUCCESS)
SKIP: Final = Status(Code.SKIP)


def unschedulable(*reasons: str) -> Status:
    """No now."""
    return Status(Code.UNSCHEDULABLE, reasons)


def unresolvable(*reasons: str) -> Status:
    """No, and making room does not help."""
    return Status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)


def error(*reasons: str) -> Status:
    """Something broke."""
    return Status(Code.ERROR, reasons)
