"""Why Pods cannot get their claims, for the plans of both claim controllers. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dray.api.types.core_v1 import Pod

# Returns the Pod of a name, None if there is none.
FindPod: TypeAlias = Callable[[str], Pod | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an entry of a Pod's `resourceClaims` cannot get its claim."""

    entry: str
    message: str
    # Whether trying again does not help.
    is_final: bool = False

    @property
    def event_message(self) -> str:
        """The text of the Pod's event."""
        return f"PodResourceClaim {self.entry}: {self.message}"
