"""When, where and how often probes ask, and what their answers mean."""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.types.core_v1 import HTTPGetAction, Probe
from dray.node.agent.pod.events import ProbeKind
from dray.node.agent.probes.thresholds import ThresholdCounter, first_at, http_url, resolve_port
from tests.unit.node.agent.builders import START, a_container, at


def judge(kind: ProbeKind = ProbeKind.LIVENESS, **probe: Any) -> ThresholdCounter:
    return ThresholdCounter(msgspec.convert(probe, Probe), kind)


def verdicts(subject: ThresholdCounter, answers: str) -> list[bool | None]:
    return [subject.answer(healthy=answer == "+") for answer in answers]


def test_a_failure_needs_as_many_answers_as_the_threshold() -> None:
    assert verdicts(judge(failureThreshold=3), "--+---") == [None, None, True, None, None, False]


def test_a_failing_liveness_probe_says_so_again() -> None:
    assert verdicts(judge(failureThreshold=1), "---") == [False, False, False]


def test_readiness_says_only_changes() -> None:
    subject = judge(ProbeKind.READINESS, failureThreshold=1, successThreshold=2)
    assert verdicts(subject, "--+++-") == [False, None, None, True, None, False]


def test_the_default_threshold_is_three() -> None:
    assert verdicts(judge(), "---") == [None, None, False]


def test_where_and_when_to_ask() -> None:
    subject = a_container(ports=[{"name": "web", "containerPort": 8080}])
    assert http_url(subject, HTTPGetAction(port="web", path="ok"), "10.0.0.1") == "http://10.0.0.1:8080/ok"
    assert http_url(subject, HTTPGetAction(port=1, scheme="HTTPS", host="::1"), "") == "https://[::1]:1/"
    assert resolve_port(subject, "81") == 81
    assert resolve_port(subject, "none") == 0
    assert first_at(Probe(initial_delay_seconds=5), START) == at(5)
