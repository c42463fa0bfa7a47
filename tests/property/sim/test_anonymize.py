"""Laws of anonymized snapshots: the tools answer as on the original, name by name, and no name of it is left."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.features import FeatureGates
from dray.sim.anonymize import anonymized
from dray.sim.doctor.rules import examine
from dray.sim.explain.explainer import explain
from dray.sim.explain.subject import pod_subject
from dray.sim.name_table import NameTable, message_words
from dray.sim.physical_devices import physical_devices
from dray.sim.snapshot import Snapshot
from dray.sim.whatif.changes import Changed
from dray.sim.whatif.preemption import Preemption
from dray.sim.whatif.simulation import Run, simulate
from tests.property.sim.messy_clusters import MessyCluster

NOW = datetime(2026, 1, 1, 2, tzinfo=UTC)
GATES = FeatureGates()
SEEDS = range(8)
SUGGESTION = "did you mean"


def table(seed: int) -> NameTable:
    return NameTable(b"key", random.Random(seed))


def answers(snapshot: Snapshot) -> Iterator[str]:
    """What the tools say, one line for each object."""
    for pod in snapshot.pods:
        subject = pod_subject(snapshot, NamespacedName(pod.metadata.namespace or "", pod.metadata.name or ""))
        answer = explain(snapshot, subject, NOW, gates=GATES)
        assert answer.verdict is not None
        yield f"{subject.pod}: {answer.verdict.sentence} {answer.changes} {answer.groups} {answer.given}"
    for finding in examine(snapshot, NOW):
        yield f"{finding}"
    for device in physical_devices(snapshot):
        yield f"{device.node} {device.pool} {device.name}: {device.state} {device.used} {device.reason}"
    outcome = simulate(Run(snapshot, Changed(snapshot), NOW, GATES, lambda *_: None, Preemption.NEVER), [])
    for placed in outcome.placed:
        yield f"{placed.name} on {placed.node}"


def snapshot_of(documents: list[Document]) -> Snapshot:
    return Snapshot.of(json.loads(json.dumps(documents)))


def stem(line: str) -> str:
    """The line up to a suggestion: how similar two names are is kept only nearly."""
    return line.partition(" (did you mean ")[0].partition("; ")[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_answers_are_those_of_the_original(seed: int) -> None:
    documents = MessyCluster(seed).documents
    names = table(seed)
    found = answers(snapshot_of(anonymized(documents, names)))
    for expected, other in zip(answers(snapshot_of(documents)), found, strict=True):
        translated = names.translated(other)
        if SUGGESTION in expected + translated:
            assert stem(translated) == stem(expected)
        else:
            assert translated == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_later_snapshots_agree_with_the_first(seed: int) -> None:
    first, later = MessyCluster(seed).documents, MessyCluster(seed + 1000).documents
    names = table(seed)
    known = anonymized(first, names)
    names = NameTable.from_document(json.loads(json.dumps(names.to_document())), random.Random(seed))
    both = anonymized([*first, *later], names)
    assert both[: len(first)] == known
    assert json.loads(names.translated(json.dumps(both[len(first) :]))) == later


@pytest.mark.parametrize("seed", range(20))
def test_words_are_unique_and_no_words_of_messages(seed: int) -> None:
    rng = random.Random(seed)
    parts = list({"".join(rng.choices("abcdeFG", k=rng.randint(3, 9))) for _ in range(rng.randint(1, 300))})
    names = table(seed)
    names.add(parts[::2])
    names.add(parts)
    words = [names.word(part) for part in parts]
    assert len(set(words)) == len(parts)
    assert not message_words() & set(words)
    assert names.translated(" ".join(words)) == " ".join(parts)
