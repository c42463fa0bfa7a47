"""Files of the user's own: what they hold, and what tools say of what they do not hold."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from dray.api.document import Document
from dray.cli.manifests import read_snapshot
from dray.cmd.main import main as dray
from dray.sim.holdings import HEADER, header_of, kubectl_line, missing_notes
from dray.sim.snapshot import PATH_KINDS, SnapshotError
from tests.unit.sim.cluster import GPU, claim, device, device_class, node, pod, resource_slice, whole

LATE = "2025-01-01T00:00:00Z"


def waiting(name: str, **entry: str) -> Document:
    made = pod(name)
    made["metadata"]["creationTimestamp"] = LATE
    made["spec"]["resourceClaims"] = [{"name": "gpu", **entry}]
    made["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/9 nodes are available: 9 full."}],
    }
    return made


def dumped(path: Path, documents: Sequence[Document]) -> str:
    """A file as `kubectl get -o yaml` writes it."""
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "items": list(documents), "kind": "List", "metadata": {}}))
    return str(path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with contextlib.suppress(SystemExit):
        dray(list(arguments))
    found = capsys.readouterr()
    return found.out + found.err


def test_a_dump_may_have_any_number_of_values(tmp_path: Path) -> None:
    many = [node(f"node-{number}") for number in range(8_000)]
    assert len(read_snapshot([dumped(tmp_path / "many.yaml", many)]).nodes) == 8_000


def test_the_items_of_a_dump_may_refer_to_each_other(tmp_path: Path) -> None:
    path = tmp_path / "anchors.yaml"
    path.write_text(
        "apiVersion: v1\nkind: List\nitems:\n"
        "- {apiVersion: v1, kind: Node, metadata: {name: a, labels: &labels {pool: x}}}\n"
        "- {apiVersion: v1, kind: Node, metadata: {name: b, labels: *labels}}\n"
    )
    assert [item.metadata.labels for item in read_snapshot([str(path)]).nodes] == [{"pool": "x"}] * 2


@pytest.mark.parametrize("line", ["- x", "---", "items:", "kind: List"])
def test_text_that_looks_like_structure_is_text(line: str, tmp_path: Path) -> None:
    labelled = node("a")
    labelled["metadata"]["annotations"] = {"note": f"first\n{line}\nlast"}
    found = read_snapshot([dumped(tmp_path / "a.yaml", [labelled, node("b")])])
    assert [item.metadata.name for item in found.nodes] == ["a", "b"]


def test_json_with_fractions_is_read_as_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node("a", note="took, 1.5 s")]}))
    assert len(read_snapshot([str(path)]).nodes) == 1


FORMS: dict[str, Callable[[Sequence[Document]], str]] = {
    "list": lambda items: json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    "array": json.dumps,
    "JSON lines": lambda items: "\n".join(map(json.dumps, items)),
    "indented JSON values": lambda items: "\n".join(json.dumps(item, indent=2) for item in items) + "\n\n",
    "JSON documents": lambda items: "\n---\n".join(map(json.dumps, items)),
    "YAML documents": lambda items: str(yaml.safe_dump_all(items)),
    "lists of kinds": lambda items: "".join(
        json.dumps({"apiVersion": "v1", "kind": f"{item['kind']}List", "items": [item]}) for item in items
    ),
    "with a byte order mark": lambda items: "\ufeff" + json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
}


@pytest.mark.behaviour("TT-16")
@pytest.mark.parametrize("form", FORMS)
def test_every_object_of_a_dump_is_read_whatever_its_form(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dump.json"
    path.write_text(FORMS[form]([pod("one"), node("node"), pod("two")]))
    found = read_snapshot([str(path)])
    assert [item["metadata"]["name"] for kind in ("Pod", "Node") for item in found.documents[kind]] == [
        "one",
        "two",
        "node",
    ]
    assert "not in the dump: nodes" not in shown(capsys, "doctor", "-f", str(path))


@pytest.mark.behaviour("TT-16")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "tool", ["doctor", "top", "claims", "simulate", "plan", "rebalance", "devices", "explain pod one"]
)
def test_a_dump_that_was_cut_off_is_not_read(
    form: str, tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dump.json"
    path.write_text(FORMS[form]([pod("one"), node("node"), pod("two")]).rstrip()[:-40])
    said = shown(capsys, *tool.split(), "-f", str(path))
    if form == "YAML documents":
        # Half of a document may be one, too.
        assert "two" not in said
        return
    assert said.startswith(f"dray {tool.split(maxsplit=1)[0]}: {path}: ")
    assert len(said.splitlines()) == 1


@pytest.mark.behaviour("TT-16")
@pytest.mark.parametrize("items", ["[]", "null"])
def test_an_empty_list_may_be_null(items: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(f'{{"apiVersion": "v1", "kind": "PodList", "items": {items}}}')
    assert "Pod" in read_snapshot([str(path)]).listed


def test_one_bad_object_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = node("bad")
    bad["status"]["conditions"] = "none"
    nameless = {"apiVersion": "v1", "kind": "Pod", "metadata": {}}
    found = read_snapshot([dumped(tmp_path / "a.yaml", [bad, nameless, node("good")])])
    assert [item.metadata.name for item in found.nodes] == ["good"]
    (note,) = found.hidden
    assert "objects with errors are not evaluated: Node bad: " in note
    assert "a Pod has no name" in note
    with pytest.raises(SnapshotError):
        read_snapshot([dumped(tmp_path / "b.yaml", [bad])])


def test_what_a_dump_lacks_may_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With Pods only: no Pod is broken, no template is missing, and one line says what to dump."""
    running = waiting("runs", resourceClaimTemplateName="gpu")
    running["spec"]["nodeName"] = "node-a"
    pods = [waiting("one", resourceClaimTemplateName="gpu"), waiting("two", resourceClaimName="mine"), running]
    path = dumped(tmp_path / "pods.yaml", pods)
    for name in ("one", "two"):
        text = shown(capsys, "explain", "pod", name, "-n", "team", "-f", path)
        assert "does not exist" not in text
        assert "is pending: 0/9 nodes are available: 9 full.; why, is not evaluated" in text
        assert "kubectl get " in text
    doctor = shown(capsys, "doctor", "-f", path)
    assert "error" not in doctor
    assert "delete" not in doctor
    assert "not in the dump: nodes, resourceclaims.resource.k8s.io, " in doctor
    assert "does not exist" not in shown(capsys, "explain", "pod", "runs", "-n", "team", "-f", path)
    for command in ("simulate", "plan", "rebalance"):
        assert "the dump has no nodes, without which no Pod can be placed; " in shown(capsys, command, "-f", path)


def test_an_empty_dump_has_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dumped(tmp_path / "empty.yaml", [])
    text = shown(capsys, "doctor", "-f", path)
    assert "No problems found in what could be read.\n" in text
    assert "not in the dump: nodes, pods" in text
    assert "the dump has no resourceslices" in shown(capsys, "devices", "-f", path)
    assert "No claims are known: the dump has no resourceclaims." in shown(capsys, "claims", "-f", path)
    found = shown(capsys, "explain", "deployment", "web", "-f", path)
    assert "deployments default/web is not known: the dump has no deployments" in found


def test_a_dump_without_drivers_needs_no_devices(tmp_path: Path) -> None:
    found = read_snapshot([dumped(tmp_path / "a.yaml", [node("a"), pod("p", "a")])])
    assert missing_notes(found, PATH_KINDS) == ()


@pytest.mark.parametrize("kind", ["ResourceClaimTemplate", "ResourceClaim"])
def test_a_header_says_that_a_kind_has_no_objects(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(whole(node("a"), waiting("p", resourceClaimTemplateName="gpu"))))
    found = read_snapshot([str(path)])
    assert found.unread(kind) == ""
    assert missing_notes(found, PATH_KINDS) == ()


def test_an_empty_list_of_a_kind_says_it_too(tmp_path: Path) -> None:
    path = tmp_path / "raw.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": []}))
    found = read_snapshot([str(path)])
    assert (found.unread("Pod"), found.unread("Node")) == ("", "the dump has no nodes")


def test_rights_are_kept_in_a_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What its author might not list is named when somebody else reads it."""
    document = whole(node("a"), claim("c"))
    document["metadata"][HEADER] |= {"ResourceSlice": None, "Pod": "team"}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document))
    found = read_snapshot([str(path)])
    assert found.partial == {"ResourceSlice": None, "Pod": "team"}
    assert header_of(found) == document["metadata"][HEADER]
    assert "where it fits is not evaluated: you may not list resourceslices" in shown(
        capsys, "explain", "claim", "c", "-n", "team", "-f", str(path)
    )


def test_the_command_that_dumps_everything(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "snapshot", "--print-command")
    assert text == f"{kubectl_line()}\n"
    assert text.startswith("kubectl get ")
    assert " -A -o json > cluster.json" in text
    for kind in ("nodes", "pods", "resourceslices.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io"):
        assert kind in text


def test_a_claim_that_is_being_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stuck = claim("stuck", deletionTimestamp=LATE, finalizers=["driver.example.com/cleanup"])
    objects = [node("node-a"), device_class("gpu", "true"), resource_slice("a", GPU, device("d"), nodeName="node-a")]
    path = dumped(tmp_path / "a.yaml", [*objects, stuck])
    text = shown(capsys, "explain", "claim", "stuck", "-n", "team", "-f", path)
    assert "claim team/stuck is being deleted since " in text
    assert "finalizer driver.example.com/cleanup keeps it" in text
