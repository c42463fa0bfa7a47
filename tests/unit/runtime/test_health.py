"""The text of health reports."""

from __future__ import annotations

import pytest

from dray.runtime.health import HEALTHZ, LIVEZ, READYZ, HealthChecks

ALL_OK = "[+]ping ok\n[+]informer-sync ok\n[+]leaderElection ok\nreadyz check passed\n"
ONE_FAILED = "[+]ping ok\n[-]informer-sync failed: pods: refused\n[+]leaderElection ok\nreadyz check failed\n"
EXCLUDED = "[+]ping ok\n[+]informer-sync excluded: ok\n[+]leaderElection ok\nreadyz check passed\n"


def checks(reason: str | None = None) -> HealthChecks:
    made = HealthChecks()
    made.add("informer-sync", lambda: reason)
    made.add("leaderElection", lambda: None)
    return made


@pytest.mark.parametrize(
    ("reason", "verbose", "exclude", "expected"),
    [
        pytest.param(None, False, (), (200, "ok"), id="ok"),
        pytest.param(None, True, (), (200, ALL_OK), id="verbose"),
        pytest.param("pods: refused", False, (), (500, ONE_FAILED), id="a failure is always reported in full"),
        pytest.param("pods: refused", True, ("informer-sync",), (200, EXCLUDED), id="excluded"),
        pytest.param(
            None,
            True,
            ("other",),
            (
                200,
                ALL_OK.replace(
                    "readyz check",
                    'warn: some health checks cannot be excluded: no matches for "other"\nreadyz check',
                ),
            ),
            id="an unknown check cannot be excluded",
        ),
    ],
)
def test_readiness(reason: str | None, verbose: bool, exclude: tuple[str, ...], expected: tuple[int, str]) -> None:
    report = checks(reason).report(READYZ, verbose=verbose, exclude=exclude)
    assert (report.status, report.text) == expected


@pytest.mark.parametrize("endpoint", [LIVEZ, HEALTHZ])
def test_a_component_that_is_not_ready_is_live(endpoint: str) -> None:
    """Restarting the process would not help against a missing right."""
    report = checks("refused").report(endpoint, verbose=True)
    assert (report.status, report.text) == (200, f"[+]ping ok\n{endpoint} check passed\n")


def test_single_checks_and_the_reasons_of_failures() -> None:
    made = checks("refused")
    found = made.report_one(READYZ, "informer-sync")
    assert found is not None
    assert (found.status, found.text) == (500, "internal server error: refused\n")
    assert made.report_one(LIVEZ, "informer-sync") is None
    assert made.failures() == {"informer-sync": "refused"}
