"""When certificates of a node are renewed, and what happens if that fails."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from dray.client.certificate_requests import CertificateRequestError
from dray.node.agent.certificate_manager import ROTATION_SECONDS_MIN, CertificateManager, Validity, rotation_deadline

pytestmark = pytest.mark.behaviour("CS-10")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class StoppedError(Exception):
    """Ends the loop of a manager."""


class FakeClock:
    """Sleeping is the only thing that takes time."""

    def __init__(self) -> None:
        self.time = BEGIN
        self.sleeps: list[float] = []

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return (self.time - BEGIN).total_seconds()

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += timedelta(seconds=seconds)


def valid_for(clock: FakeClock, days: float) -> Validity:
    return Validity(clock.now(), clock.now() + timedelta(days=days))


@pytest.mark.parametrize(("fraction", "days"), [(0.0, 70), (0.5, 80), (1.0, 90)])
def test_a_certificate_is_renewed_after_most_of_its_life(fraction: float, days: int) -> None:
    validity = Validity(BEGIN, BEGIN + timedelta(days=100))
    assert rotation_deadline(validity, fraction) == BEGIN + timedelta(days=days)


async def test_it_is_renewed_in_time_again_and_again() -> None:
    clock = FakeClock()
    renewals: list[float] = []

    async def renew() -> Validity:
        renewals.append((clock.now() - BEGIN) / timedelta(days=1))
        if len(renewals) == 3:
            raise StoppedError
        return valid_for(clock, 100)

    with pytest.raises(StoppedError):
        await CertificateManager("client", clock, random.Random(1), renew).run(valid_for(clock, 100))
    first, second, third = renewals
    for age in (first, second - first, third - second):
        assert 70 <= age <= 90.01
    # However long it waits, it looks at the clock every hour.
    assert max(clock.sleeps) <= 3600


async def test_a_missing_certificate_is_requested_at_once_and_failures_are_retried_with_a_backoff() -> None:
    clock = FakeClock()
    times: list[float] = []

    async def renew() -> Validity:
        times.append(clock.monotonic())
        if len(times) == 10:
            raise StoppedError
        raise CertificateRequestError("denied")

    with pytest.raises(StoppedError):
        await CertificateManager("serving", clock, random.Random(1), renew).run(None)
    assert times[:4] == [0, 30, 90, 210]
    assert times[-1] - times[-2] == 1800


async def test_certificates_that_are_always_due_do_not_flood_the_cluster() -> None:
    clock = FakeClock()
    times: list[float] = []

    async def renew() -> Validity:
        times.append(clock.monotonic())
        if len(times) == 3:
            raise StoppedError
        return Validity(clock.now() - timedelta(minutes=5), clock.now() + timedelta(seconds=20))

    with pytest.raises(StoppedError):
        await CertificateManager("client", clock, random.Random(1), renew).run(None)
    assert times == [0, ROTATION_SECONDS_MIN, 2 * ROTATION_SECONDS_MIN]
