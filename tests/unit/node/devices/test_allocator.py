"""Allocation steps and their refusals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dray.node.devices.allocator import (
    AllocationRequest,
    AskPreference,
    CallAllocate,
    DeviceAllocator,
    Nothing,
    Refused,
    Step,
    Ticket,
)
from dray.node.devices.assignments import Assignment, AssignmentKey
from dray.node.devices.device_selection import PreferenceRequest
from dray.node.devices.inventory import Device, Inventory
from tests.unit.node.devices.builders import FOO

SLOT = AssignmentKey("u1", "main", FOO)
OTHER = AssignmentKey("u2", "main", FOO)


def always(_path: str) -> bool:
    return True


def never(_path: str) -> bool:
    return False


def book(
    *devices: Device | str, registered: bool = True, held: dict[AssignmentKey, Sequence[str]] | None = None
) -> DeviceAllocator:
    inventory = Inventory(300)
    if registered:
        session = inventory.opened(FOO, "foo.sock")
        inventory.update_devices(
            FOO, session, [item if isinstance(item, Device) else Device(item, True) for item in devices]
        )
    assigned = [(slot, Assignment({-1: tuple(ids)}, b"")) for slot, ids in (held or {}).items()]
    return DeviceAllocator(inventory, assigned)


def begin(
    given: DeviceAllocator, slot: AssignmentKey = SLOT, amount: int = 1, reusable: str = "", settled: bool = False
) -> Step:
    return given.begin(AllocationRequest(slot, amount, frozenset(reusable), settled), None, asks=never)


def down(given: DeviceAllocator) -> DeviceAllocator:
    session = given.inventory.session(FOO)
    assert session is not None
    given.inventory.closed(FOO, session, 0)
    return given


REFUSALS = {
    "too few": (
        book("a", "b", held={OTHER: ["a"]}),
        2,
        "requested number of devices unavailable for vendor.com/foo. Requested: 2, Available: 1",
    ),
    "unregistered": (book(registered=False), 1, "cannot allocate unregistered device vendor.com/foo"),
    "none healthy": (
        book(Device("a", False)),
        1,
        "no healthy devices present; cannot allocate unhealthy devices vendor.com/foo",
    ),
    "plugin down": (
        down(book("a")),
        1,
        "no healthy devices present; cannot allocate unhealthy devices vendor.com/foo",
    ),
    "changed": (
        book("a", "b", held={SLOT: ["a"]}),
        2,
        'pod "u1" container "main" changed request for resource "vendor.com/foo" from 1 to 2',
    ),
}


@pytest.mark.parametrize(
    ("given", "amount", "message"),
    [
        pytest.param(
            *row,
            id=name,
            marks=pytest.mark.behaviour("DP-26" if name == "changed" else "DP-25"),
        )
        for name, row in REFUSALS.items()
    ],
)
def test_refusals(given: DeviceAllocator, amount: int, message: str) -> None:
    assert begin(given, amount=amount) == Refused(message)


@pytest.mark.behaviour("DP-26", "DP-50")
def test_what_a_container_has_it_keeps() -> None:
    given = book("a", "b", held={SLOT: ["b"]})
    assert begin(given) == Nothing()


HELD = {
    "plugin away": (book(registered=False, held={SLOT: ["b"]}), Nothing()),
    "plugin stopped": (down(book("a", "b", held={SLOT: ["b"]})), Nothing()),
    "unhealthy": (book("a", Device("b", False), held={SLOT: ["b"]}), Nothing()),
    "vanished": (book("a", held={SLOT: ["b"]}), Nothing()),
}


@pytest.mark.behaviour("DP-47")
@pytest.mark.parametrize(("given", "expected"), [pytest.param(*row, id=name) for name, row in HELD.items()])
def test_what_was_given_before_a_restart_stays_given(given: DeviceAllocator, expected: Step) -> None:
    assert begin(given) == expected


@pytest.mark.behaviour("DP-47")
def test_a_container_that_runs_needs_no_plugin_and_no_checkpoint() -> None:
    given = book(registered=False)
    given.inventory.restore([FOO], 0)
    assert begin(given, settled=True) == Nothing()
    assert isinstance(begin(given), Refused)


@pytest.mark.behaviour("DP-31")
def test_chosen_devices_are_marked_and_come_back_after_a_failure() -> None:
    given = book("a", "b")
    first = begin(given)
    assert first == CallAllocate(Ticket(1), ("a",))
    second = begin(given, OTHER)
    assert second == CallAllocate(Ticket(2), ("b",))
    given.failed(Ticket(1))
    assert given.free(FOO) == {"a"}
    assert given.succeeded(Ticket(2), b"x")
    assert given.assignments.get(OTHER) == Assignment({-1: ("b",)}, b"x")
    assert given.in_use(FOO) == {"b"}


@pytest.mark.behaviour("DP-31")
def test_an_answer_for_a_freed_pod_counts_for_nothing() -> None:
    given = book("a")
    begin(given)
    assert not given.free_pod("u1")
    assert not given.succeeded(Ticket(1), b"x")
    assert given.free(FOO) == {"a"}


@pytest.mark.behaviour("DP-28")
def test_a_plugin_with_preferences_is_asked_once() -> None:
    given = book("a", "b", "c")
    need = AllocationRequest(SLOT, 2)
    assert given.begin(need, None, asks=always) == AskPreference(PreferenceRequest(("a", "b", "c"), (), 2))
    assert given.begin(need, None, asks=always, preference=("c", "x")) == CallAllocate(Ticket(1), ("a", "c"))


@pytest.mark.behaviour("DP-28")
def test_a_device_that_failed_while_asking_is_not_given() -> None:
    given = book("a", "b")
    need = AllocationRequest(SLOT, 1)
    assert isinstance(given.begin(need, None, asks=always), AskPreference)
    session = given.inventory.session(FOO)
    assert session is not None
    given.inventory.update_devices(FOO, session, [Device("a", True), Device("b", False)])
    assert given.begin(need, None, asks=always, preference=("b",)) == CallAllocate(Ticket(1), ("a",))


@pytest.mark.behaviour("DP-28")
def test_devices_go_in_the_order_of_their_names_and_numbers_count() -> None:
    given = book("d10", "d9", "d2", Device("d1", False))
    assert begin(given, amount=2) == CallAllocate(Ticket(1), ("d2", "d9"))


@pytest.mark.behaviour("DP-29")
def test_reusable_devices_come_first_and_must_be_healthy() -> None:
    init = AssignmentKey("u1", "init", FOO)
    given = book("a", "b", Device("c", False), held={init: ["b", "c"]})
    assert begin(given, reusable="bc") == CallAllocate(Ticket(1), ("b",))
    given.failed(Ticket(1))
    assert begin(given, amount=2, reusable="bc") == CallAllocate(Ticket(2), ("a", "b"))


@pytest.mark.behaviour("DP-44")
def test_devices_are_noted_by_numa_node() -> None:
    given = book(Device("a", True, (0, 1)), "b")
    begin(given, amount=2)
    given.succeeded(Ticket(1), b"")
    assert given.assignments.get(SLOT) == Assignment({-1: ("b",), 0: ("a",), 1: ("a",)}, b"")
    assert given.assignments.in_use(FOO) == {"a", "b"}


def hints(
    given: DeviceAllocator, amount: int, held: str = "", reusable: str = ""
) -> list[tuple[int | None, bool]] | None:
    found = given.hints(FOO, amount, frozenset(held), frozenset(reusable))
    return None if found is None else [(hint.affinity, hint.preferred) for hint in found]


NUMA = [Device("a", True, (0,)), Device("b", True, (0,)), Device("c", True, (1,)), Device("d", True, (1,))]

HINTS = {
    "no topology": (book("a", "b"), (1,), None),
    "one": (book(*NUMA), (1,), [(1, True), (2, True), (3, False)]),
    "two": (book(*NUMA), (2,), [(1, True), (2, True), (3, False)]),
    "three": (book(*NUMA), (3,), [(3, True)]),
    "too many": (book(*NUMA), (5,), []),
    "narrow sets are in use": (book(*NUMA, held={OTHER: ["a", "c"]}), (2,), [(3, False)]),
    "unhealthy counts for width": (
        book(Device("a", False, (0,)), Device("b", True, (0,)), Device("c", True, (1,))),
        (2,),
        [(3, False)],
    ),
    "other nodes hold none": (
        book(Device("a", True, (3,)), Device("b", True, (5,))),
        (1,),
        [(8, True), (32, True), (40, False)],
    ),
}


@pytest.mark.parametrize(
    ("given", "arguments", "expected"),
    [
        pytest.param(*row, id=name, marks=pytest.mark.behaviour("DP-43" if name.startswith("other") else "DP-39"))
        for name, row in HINTS.items()
    ],
)
def test_hints(given: DeviceAllocator, arguments: tuple[int], expected: list[tuple[int, bool]] | None) -> None:
    assert hints(given, *arguments) == expected


@pytest.mark.behaviour("DP-43")
def test_nodes_that_the_machine_has_not() -> None:
    inventory = Inventory(300)
    session = inventory.opened(FOO, "foo.sock")
    inventory.update_devices(
        FOO, session, [Device("a", True, (0, 40)), Device("b", True, (2**40,)), Device("c", True, (1,))]
    )
    given = DeviceAllocator(inventory, machine=0b11)
    assert hints(given, 1) == [(1, True), (2, True), (3, False)]
    assert hints(DeviceAllocator(inventory, machine=0b100), 1) is None


@pytest.mark.behaviour("DP-40")
def test_hints_for_what_is_held() -> None:
    given = book(*NUMA, held={SLOT: ["c", "d"]})
    assert hints(given, 2, held="cd") == [(2, True), (3, False)]
    assert hints(given, 1, held="cd") == []
    assert hints(given, 3, held="cd") == []


@pytest.mark.behaviour("DP-41")
def test_hints_include_what_can_be_reused() -> None:
    init = AssignmentKey("u1", "init", FOO)
    given = book(*NUMA, held={init: ["a"]})
    assert hints(given, 1, reusable="a") == [(1, True), (3, False)]
    assert hints(given, 4, reusable="a") == [(3, True)]
