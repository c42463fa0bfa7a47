"""306 requests answered as kube-apiserver 1.36.4 answered them: status, reason and kind; exceptions are named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers import running_server

# Deliberate differences with their reasons. A request that no longer differs must be removed.
EXCEPTIONS: dict[str, str] = {}
# The answer depends on whether the client or the garbage collector is faster; both answers are correct.
RACES = {"fg-after": "the recorded garbage collector had not finished; ours often has"}

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).with_name("kube-apiserver-1.36.4.jsonl")

Answer = tuple[Any, Any, Any]


def read(path: Path) -> dict[str, Answer]:
    answers = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        try:
            body = json.loads(record["body"])
        except ValueError:
            body = None
        kind = body.get("kind") if isinstance(body, dict) else None
        reason = body.get("reason") if isinstance(body, dict) and kind == "Status" else None
        answers[record["name"]] = (record["status"], reason, kind)
    return answers


@pytest.mark.timeout(300)
def test_requests_are_answered_as_kube_apiserver_answered_them(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    recorded = read(RECORDED)
    out = tmp_path / "answers.jsonl"
    with running_server(tmp_path / "server") as server:
        probe = [sys.executable, "-m", "tests.golden.probe", server.url, str(out)]
        subprocess.run(probe, check=True, capture_output=True, timeout=240, cwd=ROOT)
    ours = read(out)
    different = {name for name, answer in recorded.items() if ours.get(name) != answer}
    lines = [f"{len(recorded) - len(different)} of {len(recorded)} recorded answers equal"]
    for name in sorted(different):
        why = EXCEPTIONS.get(name) or RACES.get(name) or "UNEXPLAINED"
        lines.append(f"  {name}: recorded {recorded[name]}, ours {ours.get(name)}: {why}")
    record_property("summary", "\n".join(lines))
    assert different - RACES.keys() == EXCEPTIONS.keys()
