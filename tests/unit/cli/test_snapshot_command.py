"""What `dray snapshot` writes, and where to."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dray.api.document import Document
from dray.cli.snapshot import main
from dray.sim.name_table import NameTable
from tests.unit.sim.cluster import node, pod

SECRET = {"env": [{"name": "PASSWORD", "value": "x"}], "envFrom": [{"secretRef": {"name": "s"}}]}


def documents() -> list[Document]:
    made = pod("p")
    made["spec"]["containers"][0] |= {**SECRET, "args": ["--token=x"]}
    made["spec"]["initContainers"] = [{"name": "i", "image": "i", **SECRET}]
    made["spec"]["volumes"] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "keys", "secret": {"secretName": "s"}},
    ]
    made["metadata"] |= {"managedFields": [{}], "annotations": {"note": "x", "kubernetes.io/config.mirror": "y"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "team"},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i", **SECRET}]}}},
    }
    return [made, job]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents()}))
    return path


def snapshot(source: Path, *flags: str) -> list[Document]:
    command = (sys.executable, "-m", "dray", "snapshot", "-f", str(source), *flags)
    result = subprocess.run(command, check=True, capture_output=True)
    items: list[Document] = json.loads(result.stdout)["items"]
    return items


def test_what_no_tool_reads_is_left_out(source: Path) -> None:
    made, job = snapshot(source)
    assert "PASSWORD" not in str((made, job))
    assert "secretRef" not in str((made, job))
    assert made["metadata"]["annotations"] == {"kubernetes.io/config.mirror": "y"}
    assert "managedFields" not in made["metadata"]
    assert "args" not in made["spec"]["containers"][0]
    claim, empty = made["spec"]["volumes"]
    assert (claim["persistentVolumeClaim"], empty) == ({"claimName": "c"}, {"name": "keys", "emptyDir": {}})
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container.keys() == {"name", "image", "resources"}


def test_environments_are_there_if_asked_for(source: Path) -> None:
    assert snapshot(source, "--environment")[0]["spec"]["containers"][0]["env"] == SECRET["env"]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_file_that_it_is_redirected_to_is_readable_only_by_its_user(
    source: Path, tmp_path: Path, output: str
) -> None:
    path = tmp_path / "out"
    path.touch()
    path.chmod(0o666)
    with path.open("w") as file:
        command = (sys.executable, "-m", "dray", "snapshot", "-f", str(source), "-o", output)
        subprocess.run(command, check=True, stdout=file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.path.getsize(path)


def test_names_are_put_back_into_answers(source: Path, tmp_path: Path) -> None:
    table = tmp_path / "names.json"
    # The second object is a workload: the digest of its template is another one in each snapshot.
    first, _ = snapshot(source, "--anonymize", str(table))
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    assert snapshot(source, "--anonymize", str(table))[0] == first, "the names are used again"
    command = (sys.executable, "-m", "dray", "translate", str(table))
    done = subprocess.run(command, check=True, capture_output=True, input=json.dumps(first).encode())
    assert json.loads(done.stdout) == snapshot(source)[0]


def test_a_table_that_cannot_be_written_does_not_end_the_one_before(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "names.json"
    snapshot(source, "--anonymize", str(path))
    before = path.read_text()
    monkeypatch.setattr(NameTable, "to_document", lambda _table: {"words": object()})
    with pytest.raises(TypeError):
        main(["-f", str(source), "--anonymize", str(path)])
    assert path.read_text() == before


def test_a_file_that_is_no_table(source: Path) -> None:
    command = (sys.executable, "-m", "dray", "snapshot", "-f", str(source), "--anonymize", str(source))
    before = source.read_text()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, source.read_text()) == (1, "", before)
    expected = f"dray snapshot: {source}: this is no table of names, as `dray snapshot --anonymize` writes it"
    assert done.stderr.splitlines()[-1] == expected


def test_a_reduced_dump_says_the_same(tmp_path: Path) -> None:
    items = [node(f"node-{number}", unschedulable=True) for number in range(20)]
    items += [node(f"tainted-{number}", taints=[{"key": "a", "effect": "NoSchedule"}]) for number in range(20)]
    items += [pod(f"running-{number}", "node-1") for number in range(20)]
    source, small = tmp_path / "cluster.json", tmp_path / "small.json"
    source.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, pod("p")]}))
    command = (sys.executable, "-m", "dray", "reduce", "pod/p", "-n", "team", "-f", str(source))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    small.write_text(done.stdout)
    names = [item["metadata"]["name"] for item in json.loads(done.stdout)["items"]]
    assert len(names) < 8
    assert "p" in names
    assert "dray reduce: " in done.stderr
    explained = (sys.executable, "-m", "dray", "explain", "pod/p", "-n", "team", "-f")
    before, after = (
        subprocess.run((*explained, str(path)), check=True, capture_output=True, text=True).stdout.splitlines()[0]
        for path in (source, small)
    )
    assert re.sub(r"\S*\d\S*", "#", before) == re.sub(r"\S*\d\S*", "#", after)


def test_what_does_not_exist_cannot_be_reduced(source: Path) -> None:
    command = (sys.executable, "-m", "dray", "reduce", "pod/q", "-n", "team", "-f", str(source))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert 'pods "q" not found' in done.stderr
