"""Settings of a classic driver's controller."""

from __future__ import annotations

import pytest

from dray.driver.classic import ClassicController, run


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--leader-elect-lease-duration=10s"], "leaseDuration must be greater than renewDeadline"),
        (["--leader-elect-retry-period=9s"], "renewDeadline must be greater than retryPeriod*JitterFactor"),
        (["--leader-elect-retry-period=soon"], "must be a duration"),
    ],
)
def test_times_with_which_two_could_lead_are_refused(
    capsys: pytest.CaptureFixture[str], flags: list[str], complaint: str
) -> None:
    assert run(ClassicController(), argv=flags, environ={}) == 2
    assert complaint in capsys.readouterr().err
