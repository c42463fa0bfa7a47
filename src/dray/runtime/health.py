"""Named health checks, and the text of their reports. Pure.

The format is that of Kubernetes' components, except that a failed check is reported with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

# Returns None if all is well, else the reason of the failure.
HealthCheck: TypeAlias = Callable[[], str | None]

NO_NOTES: Final[Mapping[str, str | None]] = MappingProxyType({})

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
        self._notes: dict[str, HealthCheck] = {}

    def add_note(self, name: str, note: HealthCheck) -> None:
        """Show a line that does not make the component unready: what its function returns, if that is not None."""
        self._notes[name] = note

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
        notes = {name: note() for name, note in self._notes.items()} if endpoint == READYZ else {}
        return report(endpoint, self._checks(endpoint), verbose=verbose, exclude=exclude, notes=notes)

    def report_one(self, endpoint: str, name: str) -> HealthReport | None:
        """Answer for one check; None if there is none of that name."""
        if endpoint == READYZ and name in self._notes:
            return report_note(self._notes[name]())
        check = self._checks(endpoint).get(name)
        return None if check is None else report_one(check())

    def _checks(self, endpoint: str) -> Mapping[str, HealthCheck]:
        # As in kube-scheduler, whose /healthz is older than the distinction and means that the process is live.
        return self._live | self._ready if endpoint == READYZ else self._live


def report(
    endpoint: str,
    checks: Mapping[str, HealthCheck],
    *,
    verbose: bool = False,
    exclude: Iterable[str] = (),
    notes: Mapping[str, str | None] = NO_NOTES,
) -> HealthReport:
    """Make the checks; report all of them if one fails or if `verbose` asks for it."""
    excluded = frozenset(exclude)
    reasons = {name: check() for name, check in checks.items() if name not in excluded}
    failed = {name: reason for name, reason in reasons.items() if reason is not None}
    return report_of(endpoint, checks, failed, verbose=verbose, excluded=excluded, notes=notes)


def report_of(
    endpoint: str,
    names: Collection[str],
    failed: Mapping[str, str],
    *,
    verbose: bool,
    excluded: Set[str],
    notes: Mapping[str, str | None] = NO_NOTES,
) -> HealthReport:
    """Return the report of checks that were made, with the reasons of those that failed, and notes."""
    if not failed and not verbose:
        return HealthReport(ok=True, text="ok")
    lines = [_line(name, failed, is_excluded=name in excluded) for name in names]
    lines += [f"[+]{name} ok: {note}" for name, note in notes.items() if note is not None]
    if unknown := sorted(excluded - set(names)):
        quoted = ",".join(f'"{name}"' for name in unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
    lines.append(f"{endpoint} check {'failed' if failed else 'passed'}\n")
    return HealthReport(ok=not failed, text="\n".join(lines))


def _line(name: str, failed: Mapping[str, str], *, is_excluded: bool) -> str:
    if is_excluded:
        return f"[+]{name} excluded: ok"
    return f"[-]{name} failed: {failed[name]}" if name in failed else f"[+]{name} ok"


def report_note(note: str | None) -> HealthReport:
    """Return the report of one note."""
    return HealthReport(ok=True, text="ok" if note is None else f"ok: {note}\n")


def report_one(reason: str | None) -> HealthReport:
    """Return the report of one check, given the reason of its failure."""
    if reason is None:
        return HealthReport(ok=True, text="ok")
    return HealthReport(ok=False, text=f"internal server error: {reason}\n")


def _ping() -> str | None:
    return None
