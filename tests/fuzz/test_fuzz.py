"""A short run of every fuzz target with a fixed seed; `make fuzz MINUTES=n` is the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzer import Report, drawn, fuzz_seed
from tests.fuzz.targets import TARGETS, Finding, FuzzedServer, Sent, Target, fuzzed_server

SEED = 1


@pytest.mark.parametrize("name", TARGETS)
async def test_no_input_of_a_seed_breaks_the_server(name: str) -> None:
    report = Report()
    async with fuzzed_server() as server:
        await fuzz_seed(server, name, SEED, report, count=3)
    assert report.findings == []
    assert report.inputs[name] > 20


def test_a_seed_draws_the_same_documents() -> None:
    target = TARGETS["json-body"]
    assert drawn(target, 7, 5) == drawn(target, 7, 5) != drawn(target, 8, 5)


async def test_crashes_and_internal_errors_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crash(server: FuzzedServer, sent: Sent) -> None:
        raise Finding("internal") if len(sent.body) % 2 else KeyError("bug")

    monkeypatch.setitem(TARGETS, "broken", Target(TARGETS["json-body"].inputs, crash))
    report = Report()
    async with fuzzed_server() as server:
        await fuzz_seed(server, "broken", SEED, report, count=1)
    assert 0 < len(report.findings) <= report.total
    assert all("--only broken --seed 1" in finding for finding in report.findings)
