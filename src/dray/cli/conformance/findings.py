"""Findings of the checks. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dray.cli.conformance.requirements import REQUIREMENTS, Requirement


class Verdict(enum.StrEnum):
    """The result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    # Not met, which kubelet tolerates and Kubernetes' own helper for drivers does as well.
    ADVICE = "advice"
    SKIPPED = "skipped"


class CheckFailedError(Exception):
    """The requirement is not met; the message says why."""


class AdviceError(Exception):
    """The driver does what Kubernetes' own helper does, although there is a better way; the message says what."""


class SkipError(Exception):
    """The check cannot run; the message says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `variant` is the service version it used."""

    name: str
    verdict: Verdict
    reason: str = ""
    variant: str = ""
    seconds: float = 0.0

    @property
    def requirement(self) -> Requirement:
        """Return the requirement that was checked."""
        return REQUIREMENTS[self.name]

    @property
    def title(self) -> str:
        """Return the name with the variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name


def fail_on(problems: Iterable[str]) -> None:
    """Raise `CheckFailedError` if there are problems."""
    found = list(problems)
    if found:
        raise CheckFailedError("; ".join(found))


def count(findings: Sequence[Finding], verdict: Verdict) -> int:
    """Return how many findings have the verdict."""
    return sum(finding.verdict is verdict for finding in findings)


def conforms(findings: Sequence[Finding]) -> bool:
    """Return whether no check failed and at least one passed."""
    return not count(findings, Verdict.FAILED) and count(findings, Verdict.PASSED) > 0
