"""The counted rejections of nodes equal those of a plain dictionary, whatever is entered, removed and copied."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from dray.framework.node_statuses import (
    NUMBERED_MAX,
    NodeStatuses,
    copy_of,
    count_statuses,
    distinct_statuses,
    names_with,
)
from dray.framework.snapshot import Snapshot
from dray.framework.status import Status, unschedulable
from tests.unit.scheduler.builders import node_info

NODES = NUMBERED_MAX + 4
# Two are equal, and not the same. There are more than have numbers.
STATUSES = [unschedulable(f"reason {number}") for number in (0, 1, 2, 2, *range(3, NUMBERED_MAX + 4))]
FEW = [0, 1, 2, 3, None]
MANY = [*range(len(STATUSES)), None]
STEPS = st.sampled_from((FEW, MANY)).flatmap(
    lambda kinds: st.lists(st.tuples(st.integers(0, NODES - 1), st.sampled_from(kinds)), max_size=60)
)


def check(statuses: NodeStatuses, plain: dict[str, Status], order: list[str]) -> None:
    assert list(statuses) == [name for name in order if name in plain]
    assert (dict(statuses), len(statuses)) == (plain, len(plain))
    assert all(statuses[name] is status for name, status in plain.items())
    counts = count_statuses(statuses)
    assert {id(status): count for status, count, _ in counts} == Counter(map(id, plain.values()))
    assert all(plain[name] is status for status, _, name in counts)
    assert {id(status) for status in distinct_statuses(statuses)} == {id(status) for status in distinct_statuses(plain)}
    for wanted in (STATUSES[:1], STATUSES[1:3], STATUSES):
        assert set(names_with(statuses, wanted)) == set(names_with(plain, wanted))
        assert names_with(statuses, wanted) == [name for name in order if name in names_with(plain, wanted)]
        with_wanted = names_with(plain, wanted)
        assert [node.name for node in statuses.nodes_with(wanted)] == sorted(with_wanted, key=order_of_number)


def order_of_number(name: str) -> int:
    return int(name.removeprefix("n"))


def check_part(statuses: NodeStatuses, plain: dict[str, Status], start: int, count: int) -> None:
    order = [f"n{number % NODES}" for number in range(start, start + count)]
    expected: dict[int, tuple[Status, int, str]] = {}
    for name in order:
        if name in plain:
            _, known, _ = expected.get(id(plain[name]), (plain[name], 0, name))
            expected[id(plain[name])] = plain[name], known + 1, name
    counts = statuses.counts_within(start, count)
    assert counts == list(expected.values())
    assert [id(status) for status, _, _ in counts] == list(expected)


@settings(max_examples=150, deadline=None)
@given(STEPS, STEPS, st.integers(0, NODES - 1), st.integers(0, NODES))
def test_counted_statuses_equal_a_dictionary(
    steps: list[tuple[int, int | None]], later: list[tuple[int, int | None]], start: int, count: int
) -> None:
    names = [f"n{number}" for number in range(NODES)]
    statuses = NodeStatuses(Snapshot([node_info(name) for name in names]))
    plain: dict[str, Status] = {}

    def enter(target: NodeStatuses, expected: dict[str, Status], given: list[tuple[int, int | None]]) -> None:
        for index, kind in given:
            name = names[index]
            if kind is not None:
                target[name] = expected[name] = STATUSES[kind]
            elif name in expected:
                del target[name], expected[name]

    enter(statuses, plain, steps)
    check(statuses, plain, names)
    check_part(statuses, plain, start, count)
    copy, plain_copy = statuses.copy_from(start), copy_of(plain)
    assert isinstance(plain_copy, dict)
    enter(copy, plain_copy, later)
    check(copy, plain_copy, names[start:] + names[:start])
    check_part(copy, plain_copy, start, count)
    # What was copied is as before.
    check(statuses, plain, names)
