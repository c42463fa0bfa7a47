"""The account of a quota, and what becomes of its status."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dray.api.document import GroupResource
from dray.api.quota.names import PODS
from dray.api.quota.usage import parse_amounts, write_amounts
from dray.api.types.core_v1 import Pod, ResourceQuota
from dray.controllers.resource_quota.plan import UNEXPLAINED_SECONDS, Plan, plan_quota
from dray.controllers.resource_quota.usage import QuotaUsage

MAPS = GroupResource("", "configmaps")


def quota(hard: dict[str, str], status: dict[str, Any] | None = None, **spec: Any) -> ResourceQuota:
    document = {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": status or {}}
    return msgspec.convert(document, ResourceQuota)


def with_status(hard: str, used: str, limit: str | None = None) -> ResourceQuota:
    return quota({"pods": limit or hard}, {"hard": {"pods": hard}, "used": {"pods": used}})


LONG, SHORT = UNEXPLAINED_SECONDS, 0.5
LEFT = UNEXPLAINED_SECONDS - SHORT

# The quota, what is counted, what was freed, how long it was quiet; then what is written and when to look again.
ROWS = {
    "new": (quota({"pods": "5"}), "2", "0", SHORT, ("5", "2"), None),
    "right": (with_status("5", "2"), "2", "0", SHORT, None, None),
    "right, written otherwise": (with_status("5", "2"), "2000m", "0", SHORT, None, None),
    "limit raised": (with_status("5", "2", limit="9"), "2", "0", SHORT, ("9", "2"), None),
    "more than in the status": (with_status("5", "2"), "3", "0", SHORT, ("5", "3"), None),
    "freed": (with_status("5", "4"), "1", "3", SHORT, ("5", "1"), None),
    "less without a known reason: a write may be in flight": (with_status("5", "4"), "1", "0", SHORT, None, LEFT),
    "less than what was freed explains": (with_status("5", "4"), "1", "2", SHORT, None, LEFT),
    "more was freed than was charged": (with_status("5", "4"), "1", "4", SHORT, None, LEFT),
    "less for long": (with_status("5", "4"), "1", "0", LONG, ("5", "1"), None),
    "less, but the limit is new": (with_status("5", "4", limit="9"), "1", "0", SHORT, ("9", "4"), LEFT),
}


@pytest.mark.parametrize(("given", "counted", "freed", "quiet", "written", "again"), ROWS.values(), ids=ROWS.keys())
def test_status_of_a_quota(
    given: ResourceQuota, counted: str, freed: str, quiet: float, written: tuple[str, str] | None, again: float | None
) -> None:
    plan = plan_quota(given, parse_amounts({"pods": counted}), parse_amounts({"pods": freed}), quiet)
    status = None if plan.status is None else (plan.status.hard["pods"], plan.status.used["pods"])
    assert (status, plan.requeue_seconds) == (written, again)


def test_names_no_longer_limited_leave_the_status() -> None:
    given = quota({"pods": "5"}, {"hard": {"pods": "5", "secrets": "1"}, "used": {"pods": "0", "secrets": "1"}})
    plan = plan_quota(given, parse_amounts({"pods": "0"}), {}, SHORT)
    assert plan.status is not None
    assert (plan.status.hard, plan.status.used) == ({"pods": "5"}, {"pods": "0"})


def test_a_status_that_is_right_is_left_alone() -> None:
    assert plan_quota(with_status("5", "0"), parse_amounts({"pods": "0"}), {}, LONG) == Plan()


# --- The account. ---


def usage_of_quota(hard: dict[str, str], **spec: Any) -> QuotaUsage:
    return QuotaUsage(quota(hard, **spec), extended=True)


def test_usage_follows_the_objects() -> None:
    account = usage_of_quota({"configmaps": "5", "count/secrets": "1"})
    usage = parse_amounts({"configmaps": "1", "count/configmaps": "1"})
    assert account.put(MAPS, "a", usage)
    assert not account.put(MAPS, "a", usage)
    assert account.put(MAPS, "b", usage)
    assert write_amounts(account.used()) == {"configmaps": "2", "count/secrets": "0"}
    assert account.remove(MAPS, "a")
    assert not account.remove(MAPS, "a")
    assert write_amounts(account.used()) == {"configmaps": "1", "count/secrets": "0"}


def test_what_is_freed_is_remembered_until_it_is_settled() -> None:
    account = usage_of_quota({"cpu": "5"})
    for name, amount in (("a", "2"), ("b", "1"), ("a", "500m")):
        account.put(PODS, name, parse_amounts({"cpu": amount}))
    freed = account.freed()
    assert write_amounts(freed) == {"cpu": "1500m"}
    account.remove(PODS, "b")
    account.settle(freed)
    assert write_amounts(account.freed()) == {"cpu": "1"}
    account.settle(account.freed())
    assert account.freed() == {}


def test_pods_leave_the_account_with_their_scope() -> None:
    account = usage_of_quota({"pods": "5"}, scopes=["Terminating"])
    usage = parse_amounts({"pods": "1"})
    inside, outside = (msgspec.convert({"spec": {"activeDeadlineSeconds": seconds}}, Pod) for seconds in (1, None))
    assert account.put(PODS, "a", usage, inside)
    assert not account.put(MAPS, "m", usage)
    assert account.put(PODS, "a", usage, outside)
    assert write_amounts(account.used()) == {"pods": "0"}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("services", True),
        ("requests.storage", True),
        ("count/secrets", True),
        ("count/widgets.example.com", False),
        ("gpu.deviceclass.resource.k8s.io/devices", True),
        ("requests.example.com/gpu", True),
        ("example.com/gpu", False),
    ],
)
def test_only_what_can_be_counted_is_reported(name: str, known: bool) -> None:
    account = usage_of_quota({name: "1"})
    assert (name in account.used([GroupResource("example.com", "widgets")])) is known


def test_kinds_to_count() -> None:
    account = usage_of_quota(
        dict.fromkeys(("pods", "count/pods", "secrets", "count/secrets", "count/a.b.c", "cpu"), "1")
    )
    assert account.counted_kinds() == {GroupResource("", "secrets"), GroupResource("b.c", "a")}
