"""A short run of every fuzz target with a fixed seed; `make fuzz MINUTES=n` is the long one."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import cast

import pytest
from hypothesis import strategies as st

from tests.fuzz import fuzzer
from tests.fuzz.fuzzer import Report, drawn, fuzz_seed
from tests.fuzz.target import Finding, FuzzedServer, Sent, Target
from tests.fuzz.targets import TARGETS, fuzzed_server
from tests.security.attacker import CONFIG_MAPS, Answer, Attacker

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


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (500, "Internal error occurred: x", True),
        (500, "x", True),
        (500, "", True),
        (503, "etcdserver: request timed out", True),
        (504, "Timeout: x", True),
        (500, "resourceVersion should not be set on objects to be created", False),
        (500, "resourceVersion should not be set on objects to be created: x", True),
        (500, 'strconv.ParseUint: parsing "a\nb": invalid syntax', False),
        (422, "x", False),
    ],
)
async def test_every_answer_of_500_is_a_finding_but_those_of_kubernetes(
    code: int, message: str, expected: bool
) -> None:
    class Broken:
        async def send(self, *_: object) -> Answer:
            return Answer(code, "", message, b"", 0.0)

    server = FuzzedServer(cast("Attacker", Broken()), 0)
    target = TARGETS["json-body"]
    with pytest.raises(Finding) if expected else nullcontext():
        await target.run(server, Sent("POST", CONFIG_MAPS, b""))


@pytest.mark.parametrize(("size", "expected"), [(10, True), (10_000, True), (100_000, False)])
async def test_time_is_judged_by_the_bytes_of_an_input(
    monkeypatch: pytest.MonkeyPatch, size: int, expected: bool
) -> None:
    now = 0.0

    def advance() -> float:
        nonlocal now
        now += 0.1
        return now

    async def nothing(server: FuzzedServer, sent: Sent) -> None:
        return

    monkeypatch.setattr(time, "process_time", advance)
    found = await fuzzer._problem(cast("FuzzedServer", None), Target(st.nothing(), nothing), Sent("", "", b"x" * size))
    assert found == (f"took 0.10 s of CPU time for {size:,} bytes" if expected else "")
