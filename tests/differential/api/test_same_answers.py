"""Random requests about every kind are answered as by kube-apiserver: the same verdict, errors and stored object.

The answers of kube-apiserver are in a file. With `KUBE_APISERVER`, the path of a kube-apiserver, it is also asked
anew, with another seed (`DIFFERENTIAL_SEED`, `DIFFERENTIAL_REQUESTS`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.differential.api import recording
from tests.differential.api.answers import answers, differences, prepare
from tests.differential.api.generator import Case, cases, digest
from tests.differential.api.known import KNOWN, explain
from tests.differential.api.servers import OUR_FLAGS, REAL_FLAGS
from tests.e2e.apiserver.calls import Caller, calling
from tests.kube_apiserver import needs_kube_apiserver, running_kube_apiserver
from tests.servers import running_server

DIFFERENCES: Final = Path(__file__).resolve().parents[3] / "docs" / "differences.md"
SHOWN_MAX: Final = 20
SEED: Final = int(os.environ.get("DIFFERENTIAL_SEED", "1"))
REQUESTS: Final = int(os.environ.get("DIFFERENTIAL_REQUESTS", "5000"))


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Caller]:
    with running_server(tmp_path / "ours", *OUR_FLAGS, command="apiserver") as server, calling(server) as caller:
        prepare(caller)
        yield caller


def compare(ours: Caller, answered: Iterable[tuple[Case, list[Any]]]) -> tuple[Counter[str], list[str]]:
    """How many requests are answered equally or differ in a known way, and those that differ otherwise."""
    counts: Counter[str] = Counter()
    unexplained = []
    for case, expected in answered:
        found = answers(ours, case)
        for step, one, other in zip(case.steps, expected, found, strict=True):
            counts["requests"] += 1
            names = explain(case.kind, step, one, other)
            if names is None:
                differing = "\n    ".join(differences(one, other))
                unexplained.append(f"{step.method} {step.path} {json.dumps(step.body)}\n    {differing}")
            elif not names:
                counts["equal"] += 1
            else:
                counts.update(names)
                # The objects are no longer the same.
                if one[0] != other[0] and min(one[0], other[0]) < 300:
                    break
    return counts, unexplained


def report(counts: Counter[str], unexplained: list[str], record_property: Callable[[str, object], None]) -> None:
    lines = [f"{counts['equal']} of {counts['requests']} answers equal"]
    lines += [f"  {counts[known.name]} differ: {known.name}" for known in KNOWN]
    record_property("summary", "\n".join(lines))
    assert not unexplained, f"{len(unexplained)} differences without a name:\n" + "\n".join(unexplained[:SHOWN_MAX])


@pytest.mark.behaviour("AK-01")
@pytest.mark.timeout(300)
def test_requests_are_answered_as_recorded(ours: Caller, record_property: Callable[[str, object], None]) -> None:
    recorded = recording.read()
    assert recorded.digest == digest(recorded.cases)
    counts, unexplained = compare(ours, zip(recorded.cases, recorded.answers, strict=True))
    report(counts, unexplained, record_property)


@needs_kube_apiserver
@pytest.mark.behaviour("AK-01")
@pytest.mark.timeout(1800)
def test_requests_are_answered_as_by_kube_apiserver(
    ours: Caller, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running_kube_apiserver(tmp_path / "real", *REAL_FLAGS) as server, calling(server) as real:
        prepare(real)
        counts, unexplained = compare(ours, ((case, answers(real, case)) for case in cases(SEED, REQUESTS)))
    report(counts, unexplained, record_property)


@pytest.mark.parametrize("name", [known.name for known in KNOWN])
def test_every_known_difference_is_documented(name: str) -> None:
    assert f"**{name}" in DIFFERENCES.read_text().lower()
