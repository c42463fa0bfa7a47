from __future__ import annotations

from dray.store.state import MARK_SECONDS, CompactionPolicy, CompactionSchedule


def test_nothing_is_due_before_the_age() -> None:
    schedule = CompactionSchedule(CompactionPolicy(age_seconds=300))
    assert [schedule.due(now, revision=int(now) + 10, compacted=0) for now in (0, 100, 299)] == [0, 0, 0]
    assert schedule.due(300, revision=400, compacted=0) == 10


def test_the_revision_of_five_minutes_ago_is_due() -> None:
    schedule = CompactionSchedule(CompactionPolicy())
    compacted = 0
    for second in range(0, 3600, 5):
        due = schedule.due(second, revision=1000 + second, compacted=compacted)
        if due:
            assert due == 1000 + second - 300
            compacted = due
    assert compacted == 1000 + 3595 - 300


def test_what_is_compacted_is_not_due_again() -> None:
    schedule = CompactionSchedule(CompactionPolicy())
    schedule.due(0, revision=7, compacted=0)
    assert schedule.due(400, revision=7, compacted=7) == 0


def test_too_many_revisions_are_due_at_once() -> None:
    schedule = CompactionSchedule(CompactionPolicy(age_seconds=300, revisions_kept_max=50))
    assert schedule.due(0, revision=50, compacted=0) == 0
    assert schedule.due(1, revision=80, compacted=0) == 30


def test_marks_are_bounded_however_often_it_is_asked() -> None:
    schedule = CompactionSchedule(CompactionPolicy(age_seconds=300))
    for tick in range(100_000):
        schedule.due(tick * 0.1, revision=tick, compacted=0)
    assert len(schedule._marks) <= 300 / MARK_SECONDS + 1
