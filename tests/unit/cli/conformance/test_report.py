"""The findings as text, JSON and XML."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import orjson
import pytest

from dray.cli.conformance.checks import classic
from dray.cli.conformance.findings import CheckFailedError, Finding, Verdict, conforms, fail_on
from dray.cli.conformance.harness import Check
from dray.cli.conformance.report import to_json, to_junit, to_text
from dray.cli.conformance.requirements import REQUIREMENTS
from dray.cli.conformance.runner import DRIVER_CHECKS, PLUGIN_CHECKS

FINDINGS = [
    Finding("registration-socket", Verdict.PASSED, "/x.sock"),
    Finding("prepare-answered", Verdict.FAILED, "no \x00 answer", "v1", 0.25),
    Finding("health-first", Verdict.SKIPPED, "no health"),
    Finding("slices-monotonic", Verdict.PASSED),
]


def test_every_requirement_has_one_check() -> None:
    checks: list[Check[Any]] = [*DRIVER_CHECKS, *PLUGIN_CHECKS, *classic.CONTROLLER.all, *classic.PLUGIN.all]
    assert sorted(check.name for check in checks) == sorted(REQUIREMENTS)


def test_requirements_are_sentences() -> None:
    assert all(item.text.endswith(".") and item.text[0].isupper() for item in REQUIREMENTS.values())


def test_text() -> None:
    assert to_text(FINDINGS, "x", colours=False) == (
        "registration\n"
        "  passed  registration-socket\n"
        "          /x.sock\n"
        "\n"
        "slices\n"
        "  passed  slices-monotonic\n"
        "\n"
        "claims\n"
        "  failed  prepare-answered (v1)\n"
        "          required: The response of NodePrepareResources has an entry without error for the UID of each "
        "claim, and no\n"
        "                    others.\n"
        "          found:    no \x00 answer\n"
        "\n"
        "health\n"
        "  skipped health-first\n"
        "          no health\n"
        "\n"
        "x does not conform: 2 passed, 1 failed, 1 skipped\n"
    )


@pytest.mark.driver_conformance
def test_advice_is_reported_and_does_not_fail() -> None:
    findings = [FINDINGS[0], Finding("prepare-empty", Verdict.ADVICE, "not so good")]
    assert to_text(findings, "x", colours=False).endswith(
        "  advice  prepare-empty\n"
        "          better:   Calls without claims succeed with an empty response.\n"
        "          found:    not so good\n"
        "\n"
        "x conforms: 1 passed, 0 failed, 1 advice, 0 skipped\n"
    )
    assert orjson.loads(to_json(findings, "x"))["conforms"] is True
    suite = ElementTree.fromstring(to_junit(findings, "x"))
    assert (suite.get("failures"), [item.text for item in suite.iter("system-out")]) == (
        "0",
        ["better: Calls without claims succeed with an empty response.\nfound: not so good"],
    )


def test_colours() -> None:
    text = to_text(FINDINGS[:1], "x", colours=True)
    assert "\x1b[32mpassed \x1b[0m registration-socket" in text
    assert text.endswith("x \x1b[32mconforms\x1b[0m: 1 passed, 0 failed, 0 skipped\n")


def test_json() -> None:
    content = orjson.loads(to_json(FINDINGS, "x"))
    assert content["counts"] == {"passed": 2, "failed": 1, "advice": 0, "skipped": 1}
    assert content["conforms"] is False
    assert content["findings"][1] == {
        "name": "prepare-answered",
        "section": "claims",
        "variant": "v1",
        "verdict": "failed",
        "reason": "no \x00 answer",
        "requirement": REQUIREMENTS["prepare-answered"].text,
        "seconds": 0.25,
    }


def test_junit() -> None:
    suite = ElementTree.fromstring(to_junit(FINDINGS, "x"))
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "skipped": "1",
    }
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "no \N{REPLACEMENT CHARACTER} answer"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([Verdict.PASSED, Verdict.SKIPPED], True),
        ([Verdict.PASSED, Verdict.ADVICE], True),
        ([Verdict.PASSED, Verdict.FAILED], False),
        # Nothing was shown.
        ([Verdict.SKIPPED], False),
        ([], False),
    ],
)
def test_conforms(verdicts: list[Verdict], expected: bool) -> None:
    assert conforms([Finding("health-first", verdict) for verdict in verdicts]) is expected


def test_hold() -> None:
    fail_on([])
    with pytest.raises(CheckFailedError, match=r"^a; b$"):
        fail_on(iter(["a", "b"]))
