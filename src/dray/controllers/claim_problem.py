"""Why a Pod does not get a claim it asks for, as both claim controllers tell it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an entry cannot have its claim."""

    entry: str
    message: str

    @property
    def event_message(self) -> str:
        """As the Pod's user reads it."""
        return f"PodResourceClaim {self.entry}: {self.message}"
