"""Recorded decisions of kube-scheduler: seeds with answers. The objects are made again from the seeds.

A file has a header in its first line, and one line for each case: the seed, the hash of the case, and the answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.differential.driver import Answer

FOLDER: Final = Path(__file__).with_name("recorded")


@dataclass(frozen=True, slots=True)
class RecordedCase:
    """The answers about the Pods of a case."""

    seed: int
    digest: str
    answers: tuple[Answer, ...]


def read_recording(file: Path) -> tuple[dict[str, Any], list[RecordedCase]]:
    """Return the header and the cases."""
    header, *lines = file.read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    return json.loads(header), [
        RecordedCase(seed, digest, tuple(map(_answer, answers))) for seed, digest, answers in cases
    ]


def recording_text(header: dict[str, Any], cases: Iterable[RecordedCase]) -> str:
    """Return the content of a file."""
    rows: list[Any] = [header]
    rows += [[case.seed, case.digest, list(map(_document, case.answers))] for case in cases]
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def _document(answer: Answer) -> Any:
    """Return the shortest form: a node alone, or a list without what is empty at its end."""
    parts: list[Any] = [
        answer.node,
        {entry: list(devices) for entry, devices in answer.devices.items()},
        answer.message,
        list(answer.victims),
    ]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts[0] if len(parts) == 1 else parts


def _answer(document: Any) -> Answer:
    parts: Sequence[Any] = [document] if isinstance(document, str) else document
    defaults: Sequence[Any] = ("", {}, "", ())
    node, devices, message, victims = [*parts, *defaults[len(parts) :]]
    return Answer(node, {entry: tuple(found) for entry, found in devices.items()}, message, tuple(victims))
