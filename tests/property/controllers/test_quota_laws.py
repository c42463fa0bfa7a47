"""Quotas: the account equals a recount, and no order of events lets in more than the limit."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.document import GroupResource
from dray.api.quota.usage import add_to, parse_amounts, write_amounts
from dray.api.types.core_v1 import ResourceQuota, ResourceQuotaStatus
from dray.controllers.resource_quota.plan import UNEXPLAINED_SECONDS, plan_quota
from dray.controllers.resource_quota.usage import QuotaUsage

MAPS = GroupResource("", "configmaps")
NAME = "configmaps"
HARD = 3


def quota(used: int) -> ResourceQuota:
    hard = {NAME: str(HARD)}
    document = {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": {NAME: str(used)}}}
    return msgspec.convert(document, ResourceQuota)


AMOUNTS = st.sampled_from(["0", "1", "250m", "1Gi", "512Mi", "3"])
ENTRIES = st.lists(st.tuples(st.integers(0, 5), st.dictionaries(st.sampled_from(["cpu", "memory", "pods"]), AMOUNTS)))


@settings(max_examples=200, deadline=None)
@given(ENTRIES)
def test_the_account_equals_a_recount(entries: list[tuple[int, dict[str, str]]]) -> None:
    hard = {"cpu": "9", "memory": "9"}
    account = QuotaUsage(msgspec.convert({"spec": {"hard": hard}}, ResourceQuota), extended=True)
    last: dict[int, dict[str, str]] = {}
    for key, usage in entries:
        account.put(MAPS, key, parse_amounts(usage))
        last[key] = usage
    total = parse_amounts(dict.fromkeys(hard, "0"))
    for usage in last.values():
        add_to(total, {name: amount for name, amount in parse_amounts(usage).items() if name in hard})
    assert account.used() == total


@dataclass
class Model:
    """Servers that reserve and then write, and a controller that hears of it later."""

    now: float = 100.0
    used: int = 0
    touched: float = 0.0
    count: int = 0
    # When it was reserved; not written yet.
    pending: list[float] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    # Events that the controller has not received: when, which, and whether the object was created or deleted.
    undelivered: list[tuple[float, int, bool]] = field(default_factory=list)
    usage_of_quota: QuotaUsage = field(default_factory=lambda: QuotaUsage(quota(0), extended=True))

    def reserve(self) -> None:
        if self.used < HARD:
            self.used += 1
            self.touched = self.now
            self.pending.append(self.now)

    def write(self) -> None:
        if self.pending:
            self.pending.pop(0)
            self.count += 1
            self.objects.append(self.count)
            self.undelivered.append((self.now, self.count, True))
            assert len(self.objects) <= HARD

    def crash(self) -> None:
        if self.pending:
            self.pending.pop(0)

    def delete(self) -> None:
        if self.objects:
            self.undelivered.append((self.now, self.objects.pop(0), False))

    def hear(self) -> None:
        if self.undelivered:
            _, number, came = self.undelivered.pop(0)
            if came:
                self.usage_of_quota.put(MAPS, number, parse_amounts({NAME: "1"}))
            else:
                self.usage_of_quota.remove(MAPS, number)

    def control(self) -> None:
        freed = self.usage_of_quota.freed()
        plan = plan_quota(quota(self.used), self.usage_of_quota.used(), freed, self.now - self.touched)
        if plan.status is not None:
            self.apply(plan.status)
        if plan.requeue_seconds is None:
            self.usage_of_quota.settle(freed)

    def apply(self, status: ResourceQuotaStatus) -> None:
        self.used = int(status.used[NAME])

    def pass_time(self, seconds: float = UNEXPLAINED_SECONDS / 3) -> None:
        """Time goes by; a write, and its event, take less than the controller's patience together."""
        oldest = self.now + seconds - UNEXPLAINED_SECONDS / 2
        while self.pending and self.pending[0] <= oldest:
            self.write()
        while self.undelivered and self.undelivered[0][0] <= oldest:
            self.hear()
        self.now += seconds


STEPS = ("reserve", "write", "crash", "delete", "hear", "control", "pass_time")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=60))
def test_no_order_of_events_lets_in_too_many(steps: list[str]) -> None:
    model = Model()
    for step in steps:
        getattr(model, step)()
    # In the end, whatever was lost on the way, the usage is what is there.
    for _ in range(10):
        model.pass_time()
        model.control()
    assert model.used == len(model.objects)
    assert write_amounts(model.usage_of_quota.used()) == {NAME: str(len(model.objects))}
