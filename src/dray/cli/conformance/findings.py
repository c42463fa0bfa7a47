"""What checks find, and what it comes to. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dray.cli.conformance.requirements import REQUIREMENTS, Requirement


class Verdict(enum.StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class NotMetError(Exception):
    """A check found the requirement broken; the text says how."""


class SkipError(Exception):
    """A check could not be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one requirement; `variant` is the version of the service it was made with."""

    name: str
    verdict: Verdict
    reason: str = ""
    variant: str = ""
    seconds: float = 0.0

    @property
    def requirement(self) -> Requirement:
        """What was checked."""
        return REQUIREMENTS[self.name]

    @property
    def title(self) -> str:
        """Name and variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name


def hold(problems: Iterable[str]) -> None:
    """Fail the check if there is any problem."""
    found = list(problems)
    if found:
        raise NotMetError("; ".join(found))


def count(findings: Sequence[Finding], verdict: Verdict) -> int:
    """How many ended so."""
    return sum(finding.verdict is verdict for finding in findings)


def conforms(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed, and something was checked at all."""
    return not count(findings, Verdict.FAILED) and count(findings, Verdict.PASSED) > 0
