"""Named health checks, and the text of their reports. Pure.

The format is that of Kubernetes' components, except that a failed check is reported with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

# Returns None if all is well, else the reason of the failure.
HealthCheck: TypeAlias = Callable[[], str | None]

LIVEZ: Final = "livez"
READYZ: Final = "readyz"
HEALTHZ: Final = "healthz"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The answer of a health endpoint."""

    ok: bool
    text: str

    @property
    def status(self) -> int:
        """The HTTP status."""
        return 200 if self.ok else 500


class HealthChecks:
    """The checks of a component: those that must hold for it to be live, and more for it to be ready."""

    def __init__(self) -> None:
        self._live: dict[str, HealthCheck] = {"ping": _ping}
        self._ready: dict[str, HealthCheck] = {}

    def add(self, name: str, check: HealthCheck) -> None:
        """Add a check of readiness."""
        assert name not in self._live | self._ready, f"there is a check {name}"
        self._ready[name] = check

    def failures(self) -> dict[str, str]:
        """Return the reasons for which the component is not ready, by check."""
        found = {name: check() for name, check in self._checks(READYZ).items()}
        return {name: reason for name, reason in found.items() if reason is not None}

    def report(self, endpoint: str, *, verbose: bool = False, exclude: Iterable[str] = ()) -> HealthReport:
        """Answer `livez`, `readyz` or `healthz`; excluded checks are not made."""
        return report(endpoint, self._checks(endpoint), verbose=verbose, exclude=exclude)

    def report_one(self, endpoint: str, name: str) -> HealthReport | None:
        """Answer for one check; None if there is none of that name."""
        check = self._checks(endpoint).get(name)
        return None if check is None else report_one(check)

    def _checks(self, endpoint: str) -> Mapping[str, HealthCheck]:
        # As in kube-scheduler, whose /healthz is older than the distinction and means that the process is live.
        return self._live | self._ready if endpoint == READYZ else self._live


def report(
    endpoint: str, checks: Mapping[str, HealthCheck], *, verbose: bool = False, exclude: Iterable[str] = ()
) -> HealthReport:
    """Make the checks; report all of them if one fails or if `verbose` asks for it."""
    excluded = set(exclude)
    lines: list[str] = []
    failed = False
    for name, check in checks.items():
        if name in excluded:
            lines.append(f"[+]{name} excluded: ok")
            continue
        reason = check()
        lines.append(f"[+]{name} ok" if reason is None else f"[-]{name} failed: {reason}")
        failed = failed or reason is not None
    unknown = sorted(excluded - checks.keys())
    if unknown:
        quoted = ",".join(f'"{name}"' for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    if not failed and not verbose:
        return HealthReport(ok=True, text="ok")
    lines.append(f"{endpoint} check {'failed' if failed else 'passed'}\n")
    return HealthReport(ok=not failed, text="\n".join(lines))


def report_one(check: HealthCheck) -> HealthReport:
    """Make one check."""
    reason = check()
    if reason is None:
        return HealthReport(ok=True, text="ok")
    return HealthReport(ok=False, text=f"internal server error: {reason}\n")


def _ping() -> str | None:
    return None
