"""What kube-scheduler answered about thousands of Pods, and what Dray's scheduler decides in the same states."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.differential.cases import make_case
from tests.differential.compare import NAMED, compare_case, same, without_details
from tests.differential.driver import Answer
from tests.differential.recorded_answers import FOLDER, RecordedCase, read_recording, recording_text

DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"
RECORDINGS = sorted(FOLDER.glob("*.jsonl"))
# Cases in one test.
PART = 20
PODS_MIN = 2000
COMPARED_MIN = 0.9


def parts() -> list[object]:
    """Return the recorded cases in groups, named after their file and first seed."""
    found: list[object] = []
    for file in RECORDINGS:
        cases = read_recording(file)[1]
        found += [
            pytest.param(cases[start : start + PART], id=f"{file.stem}-{cases[start].seed}")
            for start in range(0, len(cases), PART)
        ]
    return found


@pytest.mark.behaviour("SC-23")
@pytest.mark.parametrize("cases", parts())
def test_decisions_are_those_of_kube_scheduler(cases: list[RecordedCase]) -> None:
    found: dict[int, list[str]] = {}
    compared = 0
    for recorded in cases:
        case = make_case(recorded.seed)
        assert case.digest == recorded.digest, f"the generator makes another case from seed {recorded.seed}"
        comparison = compare_case(case, recorded.answers)
        compared += comparison.pods
        if comparison.unexplained:
            found[recorded.seed] = comparison.unexplained
    assert not found, "\n".join(f"seed {seed}: {item}" for seed, items in found.items() for item in items)
    # A difference that cannot be undone ends the comparison of a case.
    assert compared > COMPARED_MIN * sum(len(recorded.answers) for recorded in cases)


def test_enough_is_recorded() -> None:
    answers = [answer for file in RECORDINGS for case in read_recording(file)[1] for answer in case.answers]
    kinds = Counter(
        kind
        for answer in answers
        for kind, applies in {
            "placed": answer.node,
            "devices": answer.devices,
            "extended resources": "*" in answer.devices,
            "unschedulable": not answer.node,
            "preempted": answer.victims,
        }.items()
        if applies
    )
    assert len(answers) >= PODS_MIN
    assert min(kinds.values()) > len(answers) // 100, kinds


def test_named_differences_are_documented() -> None:
    text = " ".join(DIFFERENCES.read_text(encoding="utf-8").split())
    assert [name for name, named in NAMED.items() if named.line not in text] == []


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    answers = (
        Answer("node"),
        Answer("node", {"claim": ("r=gpu/node/gpu-0 admin",), "*": ()}),
        Answer("", {}, "0/1 nodes are available"),
        Answer("node", {}, "first a rejection", ("victim",)),
        Answer(),
    )
    file = tmp_path / "recording.jsonl"
    file.write_text(recording_text({"kubernetes": "1"}, [RecordedCase(7, "hash", answers)]))
    assert read_recording(file) == ({"kubernetes": "1"}, [RecordedCase(7, "hash", answers)])
    assert json.loads(file.read_text().splitlines()[1])[2][0] == "node"


@pytest.mark.parametrize(
    ("own", "kube"),
    [
        (
            "0/2 nodes are available: 2 cannot allocate all claims (1: (a) b; 1: c). preemption: none (x).",
            "0/2 nodes are available: 2 cannot allocate all claims. preemption: none (x).",
        ),
        ("1 node(s) were unschedulable.", "1 node(s) were unschedulable."),
    ],
)
def test_details_follow_the_text_of_kubernetes(own: str, kube: str) -> None:
    assert without_details(own) == kube
    assert same(Answer(message=kube), Answer(message=own))
    assert not same(Answer(message=kube), Answer(message="other"))


def test_a_wrong_answer_is_found() -> None:
    """Every part of a recorded answer counts."""
    recorded = next(case for case in read_recording(RECORDINGS[0])[1] if any(a.devices for a in case.answers))
    position = next(index for index, answer in enumerate(recorded.answers) if answer.devices)
    right = recorded.answers[position]
    wrong = (
        Answer("", {}, "0/9 nodes are available"),
        Answer(right.node, dict.fromkeys(right.devices, ("r0=gpu/node/none",))),
        Answer("node-none", right.devices),
        Answer(right.node, right.devices, right.message, ("pod-0",)),
    )
    case = make_case(recorded.seed)
    for answer in wrong:
        answers = (*recorded.answers[:position], answer, *recorded.answers[position + 1 :])
        assert any(item.kube == answer for item in compare_case(case, answers).differences), answer
