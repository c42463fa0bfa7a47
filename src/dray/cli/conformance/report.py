"""Renders findings as text, JSON or JUnit XML. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree

import orjson

from dray.cli.conformance.findings import Finding, Verdict, conforms, count
from dray.cli.conformance.requirements import Section

_COLOURS: Final = {
    Verdict.PASSED: "\x1b[32m",
    Verdict.FAILED: "\x1b[1;31m",
    Verdict.ADVICE: "\x1b[36m",
    Verdict.SKIPPED: "\x1b[33m",
}
_RESET: Final = "\x1b[0m"
WIDTH: Final = 120
_INDENT: Final = "          "


def to_text(findings: Sequence[Finding], subject: str, *, colours: bool) -> str:
    """Render one line per check; failed and skipped checks with their reason."""
    lines: list[str] = []
    section = None
    sections = list(Section)
    # Some checks run at the end, independently of their section.
    for finding in sorted(findings, key=lambda item: sections.index(item.requirement.section)):
        if finding.requirement.section is not section:
            section = finding.requirement.section
            lines += ["", str(section)]
        lines += _lines(finding, colours=colours)
    lines += ["", _summary(findings, subject, colours=colours), ""]
    return "\n".join(lines[1:])


def _lines(finding: Finding, *, colours: bool) -> Iterator[str]:
    yield f"  {_painted(f'{finding.verdict:<7}', finding.verdict, colours=colours)} {finding.title}"
    if finding.verdict in (Verdict.FAILED, Verdict.ADVICE):
        word = "required: " if finding.verdict is Verdict.FAILED else "better:   "
        yield from _wrapped(word, finding.requirement.text)
        yield from _wrapped("found:    ", finding.reason)
    elif finding.reason:
        yield from _wrapped("", finding.reason)


def _wrapped(head: str, text: str) -> list[str]:
    more = _INDENT + " " * len(head)
    return textwrap.wrap(text, WIDTH, initial_indent=_INDENT + head, subsequent_indent=more, break_long_words=False)


def _summary(findings: Sequence[Finding], subject: str, *, colours: bool) -> str:
    counts = ", ".join(
        f"{number} {verdict}"
        for verdict in Verdict
        if (number := count(findings, verdict)) or verdict is not Verdict.ADVICE
    )
    good = conforms(findings)
    word = _painted(
        "conforms" if good else "does not conform", Verdict.PASSED if good else Verdict.FAILED, colours=colours
    )
    return f"{subject} {word}: {counts}"


def _painted(text: str, verdict: Verdict, *, colours: bool) -> str:
    return f"{_COLOURS[verdict]}{text}{_RESET}" if colours else text


def to_json(findings: Sequence[Finding], subject: str) -> str:
    """Render JSON."""
    content = {
        "subject": subject,
        "conforms": conforms(findings),
        "counts": {str(verdict): count(findings, verdict) for verdict in Verdict},
        "findings": [
            {
                "name": finding.name,
                "section": str(finding.requirement.section),
                "variant": finding.variant,
                "verdict": str(finding.verdict),
                "reason": finding.reason,
                "requirement": finding.requirement.text,
                "seconds": round(finding.seconds, 3),
            }
            for finding in findings
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2).decode() + "\n"


def to_junit(findings: Sequence[Finding], subject: str) -> str:
    """Render JUnit XML."""
    suite = ElementTree.Element(
        "testsuite",
        name=f"dray conformance {subject}",
        tests=str(len(findings)),
        failures=str(count(findings, Verdict.FAILED)),
        skipped=str(count(findings, Verdict.SKIPPED)),
        errors="0",
        time=f"{sum(finding.seconds for finding in findings):.3f}",
    )
    for finding in findings:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"conformance.{finding.requirement.section.replace(' ', '_')}",
            name=finding.title,
            time=f"{finding.seconds:.3f}",
        )
        if finding.verdict is Verdict.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=_printable(finding.reason))
            failure.text = f"required: {finding.requirement.text}\nfound: {_printable(finding.reason)}"
        elif finding.verdict is Verdict.ADVICE:
            output = ElementTree.SubElement(case, "system-out")
            output.text = f"better: {finding.requirement.text}\nfound: {_printable(finding.reason)}"
        elif finding.verdict is Verdict.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=_printable(finding.reason))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _printable(text: str) -> str:
    """Replace control characters, which a driver may send and XML does not allow."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
