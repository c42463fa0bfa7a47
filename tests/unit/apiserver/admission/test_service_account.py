"""ServiceAccount admission waits for the default account of a new namespace."""

from __future__ import annotations

import random

import pytest

from dray.api.document import Document, GroupResource, NamespacedName
from dray.api.errors import ForbiddenError
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.admission.pods import ServiceAccount
from dray.apiserver.options import WriteOptions
from dray.apiserver.request import UserInfo
from dray.runtime.system import SystemClock

pytestmark = pytest.mark.api_faults


class Lookup:
    """Finds the account from some attempt on."""

    def __init__(self, found_at: int) -> None:
        self.attempts = 0
        self._found_at = found_at

    async def service_account(self, key: NamespacedName) -> Document | None:
        self.attempts += 1
        return {"metadata": {"name": key.name}} if self.attempts >= self._found_at else None


class CountingClock(SystemClock):
    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def admit(lookup: Lookup, clock: CountingClock, account: str = "") -> Document:
    spec: Document = {"containers": [{"name": "c"}]} | ({"serviceAccountName": account} if account else {})
    pod: Document = {"metadata": {"name": "p", "namespace": "new"}, "spec": spec}
    attributes = AdmissionAttributes(
        operation=Operation.CREATE,
        user=UserInfo("u"),
        verb="create",
        resource=GroupResource("", "pods"),
        version="v1",
        subresource="",
        namespace="new",
        name="p",
        object=pod,
        old_object=None,
        options=WriteOptions(),
        warnings=[],
    )
    await ServiceAccount(lookup, clock, random.Random(1)).admit(attributes)  # type: ignore[arg-type]
    return pod


async def test_the_default_account_is_waited_for() -> None:
    clock, lookup = CountingClock(), Lookup(found_at=4)
    pod = await admit(lookup, clock)
    assert pod["spec"]["serviceAccountName"] == "default"
    assert len(clock.slept) == 3
    assert all(0.1 <= seconds <= 0.2 for seconds in clock.slept)


async def test_an_account_that_exists_is_not_waited_for() -> None:
    clock = CountingClock()
    await admit(Lookup(found_at=1), clock)
    assert clock.slept == []


async def test_waiting_ends_after_ten_attempts() -> None:
    clock, lookup = CountingClock(), Lookup(found_at=100)
    expected = 'pods "p" is forbidden: error looking up service account new/default: serviceaccount "default" not found'
    with pytest.raises(ForbiddenError) as caught:
        await admit(lookup, clock)
    assert (caught.value.message, lookup.attempts) == (expected, 10)


async def test_other_accounts_are_not_waited_for() -> None:
    lookup = Lookup(found_at=2)
    with pytest.raises(ForbiddenError, match='serviceaccount "builder" not found'):
        await admit(lookup, CountingClock(), "builder")
    assert lookup.attempts == 1
