"""How a check is declared: a coroutine that returns a remark, or raises `NotMetError` or `SkipError`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from dray.cli.conformance.kit import Kit

# The second argument is the version of the service; empty for checks that have none.
Body: TypeAlias = Callable[[Kit, str], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Check:
    """A requirement's check."""

    name: str
    body: Body
    # Made for each version of the service.
    each_version: bool = False


class Checks:
    """The checks of a section, in the order in which they are declared."""

    def __init__(self) -> None:
        self.all: list[Check] = []

    def check(self, name: str, *, each_version: bool = False) -> Callable[[Body], Body]:
        """Declare the check of a requirement."""

        def declare(body: Body) -> Body:
            self.all.append(Check(name, body, each_version))
            return body

        return declare
