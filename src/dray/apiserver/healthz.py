"""The checks behind /livez, /readyz and /healthz."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dray.apiserver.call import TextResult

# Returns None if all is well, else the reason of the failure.
HealthCheck = Callable[[], str | None]
_NO_SNIFF: Final = (("X-Content-Type-Options", "nosniff"),)


class HealthChecks:
    """Named checks; those of `ready` count for /readyz and /healthz only."""

    def __init__(self, *, live: Mapping[str, HealthCheck], ready: Mapping[str, HealthCheck]) -> None:
        self._live = {"ping": _ping, **live}
        self._all = {**self._live, **ready}

    def report(self, endpoint: str, query: Mapping[str, str]) -> TextResult:
        """Answer one of the three endpoints; a failed check is reported with its reason."""
        reasons = {name: check() for name, check in (self._live if endpoint == "livez" else self._all).items()}
        failed = any(reason is not None for reason in reasons.values())
        if not failed and "verbose" not in query:
            return TextResult(b"ok", headers=_NO_SNIFF)
        lines = [f"[+]{name} ok" if why is None else f"[-]{name} failed: {why}" for name, why in reasons.items()]
        text = "\n".join([*lines, f"{endpoint} check {'failed' if failed else 'passed'}", ""])
        return TextResult(text.encode(), status=500 if failed else 200, headers=_NO_SNIFF)

    def report_one(self, name: str) -> TextResult | None:
        """Answer for one check; None if there is none of that name."""
        check = self._all.get(name)
        if check is None:
            return None
        reason = check()
        return TextResult((reason or "ok").encode(), status=200 if reason is None else 500, headers=_NO_SNIFF)


def _ping() -> str | None:
    return None
