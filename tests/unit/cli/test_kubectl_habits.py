"""Flags, names and messages that kubectl's users expect of `dray`, on files."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from dray.cli import complete
from dray.cli.command import Parser
from dray.cli.complete import candidates
from dray.cli.output import Column, table
from dray.cmd.completion import script
from dray.cmd.main import GROUPS, PROCESSES, TOOLS, usage
from dray.cmd.main import main as dray
from dray.cmd.settings import UpSettings
from dray.runtime.settings import help_text
from tests.unit.sim.cluster import GPU, claim, cluster, device, node, pod, resource_slice, whole


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    labelled = claim("labelled", labels={"app": "train"})
    documents = [item for items in cluster().documents.values() for item in items]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(whole(*documents, labelled, node("node-a"), node("node-b"))))
    return str(path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert dray(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The first line of a command that fails."""
    try:
        code = dray(list(arguments))
    except SystemExit as stop:
        code = int(str(stop.code))
    assert code in (1, 2)
    found = capsys.readouterr()
    assert found.out == ""
    return found.err.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("claims -l app=train -o name", "resourceclaim.resource.k8s.io/labelled\n"),
        ("claims -A --field-selector state=reserved -o name", "resourceclaim.resource.k8s.io/one\n"),
        ("claims --field-selector metadata.namespace!=team -o name", "resourceclaim.resource.k8s.io/share\n"),
        ("devices --state free -o name", f"device/{GPU}/node-a/gpu-1\n"),
        ("devices --state free -o jsonpath={.items[*].node}", "node-a\n"),
        (
            "devices --state free -o custom-columns=WHERE:.node,WHAT:.name,NO:.nothing",
            "WHERE    WHAT    NO\nnode-a   gpu-1   <none>\n",
        ),
        ("devices --state free -o custom-columns=WHERE:.node --no-headers", "node-a\n"),
    ],
)
def test_rows_are_selected_and_formatted(
    arguments: str, text: str, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, *arguments.split(), "-f", snapshot) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("devices --node node-aa", 'dray devices: node "node-aa" not found (did you mean "node-a"?)'),
        ("devices --class gpus", 'dray devices: class "gpus" not found (did you mean "gpu"?)'),
        ("devices --driver nobody", 'dray devices: driver "nobody" not found'),
        ("devices --stat free", 'dray devices: unknown flag: --stat (did you mean "--state"?)'),
        ("claims extra", "dray claims: unexpected argument: extra"),
        ("claims -o jsno", 'unknown format "jsno" (did you mean "json"?): choose table, wide'),
        ("claims -o jsonpath", "jsonpath needs a template, as in -o jsonpath='{.items[*].name}'"),
        ("claims -o custom-columns=NAME", "dray claims: custom-columns: 'NAME' is not TITLE:PATH, as in NAME:.name"),
        ("claims -o jsonpath={.items", "dray claims: unclosed brace in '{.items'"),
        ("claims -l ===", "argument -l/--selector: "),
        ("claims --field-selector sate=free", 'there is no field "sate" (did you mean "state"?)'),
        ("claims --state pendin", '(did you mean "pending"?)'),
        ("claims --field-selector state", '"state" is not FIELD=VALUE or FIELD!=VALUE'),
        ("explain pods/p x", "there is a name already in 'pods/p': 'x' is one too many"),
        ("explain pdo p", 'unknown kind "pdo" (did you mean "po"?)'),
        ("explain pod", "which pod? specify a name: dray explain pod NAME"),
        ("explain pod p --node nope -n team", 'dray explain: nodes "nope" not found'),
        ("explain pod pp -n team", 'dray explain: pods "pp" not found in namespace "team" (did you mean "p"?)'),
    ],
)
def test_mistakes_are_named(arguments: str, message: str, snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, *arguments.split(), "-f", snapshot)


def test_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert dray(["explian", "pod"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == 'dray: unknown command "explian"; did you mean "explain"?'


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        dray(["help", "devices"])
    assert "--field-selector" in capsys.readouterr().out
    assert "--data-dir" in shown(capsys, "help", "up")


def test_help_begins_with_what_people_use(capsys: pytest.CaptureFixture[str]) -> None:
    short, everything = shown(capsys, "up", "--help"), shown(capsys, "up", "--help-all")
    assert "--node-monitor-period" not in short
    assert "--help-all" in short
    assert "--node-monitor-period" in everything
    assert everything.startswith("usage: dray up")
    assert help_text(UpSettings) in everything


def test_every_command_is_in_the_list_once() -> None:
    shown = [line.split("  ")[1].strip() for line in usage().splitlines() if line.startswith("  ")]
    assert sorted(shown) == sorted([*PROCESSES, *TOOLS, "version", "help"])
    assert {name for names in GROUPS.values() for name in names} <= set(shown)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "error loading config file '{path}': line 1, column 2: "),
        ("- a\n", "error loading config file '{path}': not a map"),
        ("current-context: x\n", 'context "x" does not exist ({path}: it has no contexts)'),
        ("contexts: [{name: a, context: {}}]\ncurrent-context: x\n", "({path}: its contexts are a)"),
        (None, "($KUBECONFIG: {path} does not exist)"),
    ],
)
def test_a_bad_kubeconfig_is_named(
    content: str | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for command in (["devices"], ["explain", "pod", "x"]):
        assert message.replace("{path}", str(path)) in refused(capsys, *command)


def test_kinds_are_completed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert candidates(["explain", "d"]) == ["deployment", "daemonset"]
    assert candidates(["explain", "podg"]) == ["podgroup"]
    assert candidates(["explain", "pod", ""]) == []
    assert candidates(["devices", "--node", ""]) == []


def test_a_word_that_may_be_a_file_is_told_from_one_without_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "_names", lambda _kind, _words: ["web"])
    assert candidates(["explain", "pod", "x"]) == []
    assert candidates(["devices", "--node", "x"]) == []
    assert candidates(["explain", "pod", "web", "-f", "x"]) is None
    assert candidates(["top", "x"]) is None
    assert complete.main(["explain", "pod", "x"]) == 0
    assert complete.main(["top", "x"]) == 1


@pytest.mark.parametrize(
    "words",
    [["devices", "--node", "="], ["devices", "--node", "=", "a"], ["devices", "--node=a"], ["devices", "--node", "a"]],
)
def test_names_are_completed_as_shells_split_words(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """Bash makes three words of a flag with `=`, and completes what follows."""
    monkeypatch.setattr(complete, "_names", lambda kind, _words: {"Node": ["a-0", "a-1"]}[kind])
    start = "--node=" if words[-1].startswith("--") else ""
    assert candidates(words) == [f"{start}a-0", f"{start}a-1"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dray", "devices", "--node=a-"], "--node=a-0"),
        (["dray", "devices", "--node", "=", "a-"], "a-0"),
        (["dray", "devices", "--no"], "--node"),
        (["dray", "dev"], "devices"),
        (["dray", "devices", "--node", "pyproject"], ""),
        (["dray", "devices", "any", "pyproject"], "pyproject.toml"),
    ],
)
def test_the_script_completes_in_bash(words: list[str], expected: str, tmp_path: Path) -> None:
    """File names are offered only where the word may be anything."""
    (tmp_path / "pyproject.toml").touch()
    stub = 'dray() { case "${*: -2}" in *--node=*) echo --node=a-0;; any*) return 1;; *) echo a-0;; esac; }'
    array = " ".join(shlex.quote(word) for word in words)
    call = f'COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _dray; echo "${{COMPREPLY[@]}}"'
    text = "\n".join([stub, script("bash", {"devices": ["--node"]}, {"devices": "all devices"}), call])
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_names_are_completed_in_the_namespace_of_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    user = {"name": "u", "user": {}}
    config = {"current-context": "c", "contexts": [context], "clusters": [cluster], "users": [user]}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config"} | config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert complete.namespace_of([]) == "team"
    assert complete.namespace_of(["-n", "other"]) == "other"


def test_tables_are_wrapped_to_the_width_of_a_terminal() -> None:
    columns: list[Column[tuple[str, str]]] = [
        Column("NODE", lambda row: row[0], colour=lambda _: "green"),
        Column("REASON", lambda row: row[1]),
    ]
    rows = [("node-a", "all devices of this node are in use by others"), ("b", "short")]
    assert table(rows, columns, width=36).splitlines() == [
        "NODE     REASON",
        "node-a   all devices of this node",
        "         are in use by others",
        "b        short",
    ]
    assert len(table(rows, columns).splitlines()) == 3
    long = [(f"node-{'a' * 20}", f"claim-{'b' * 20}", "all devices of this node are in use by others")]
    three: list[Column[tuple[str, str, str]]] = [
        Column("NODE", lambda row: row[0]),
        Column("CLAIM", lambda row: row[1]),
        Column("REASON", lambda row: row[2]),
    ]
    assert max(map(len, table(long, three, width=90).splitlines())) <= 90
    assert max(map(len, table(long, three, width=50).splitlines())) <= 50
    assert table(long, three, width=200) == table(long, three)


def test_abbreviated_flags_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("dray x", "")
    parser.add_argument("--namespace")
    with pytest.raises(SystemExit):
        parser.parse_args(["--name", "a"])
    assert 'unknown flag: --name (did you mean "--namespace"?)' in capsys.readouterr().err


def test_explain_takes_what_kubectl_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.json"
    documents = [node("node-a"), resource_slice("node-a", GPU, device("gpu-0"), nodeName="node-a"), pod("p", "node-a")]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
    for arguments in (["pod", "p"], ["po", "p"], ["pod/p"], ["Pods/p"]):
        text = shown(capsys, "explain", *arguments, "-n", "team", "-f", str(path))
        assert text.splitlines()[0] == "pod team/p is starting on node-a"


@pytest.mark.parametrize(
    "name",
    ["deployment.apps/x", "job.batch/x", "replicaset.apps/x", "resourceclaim.resource.k8s.io/x", "statefulset.apps/x"],
)
def test_explain_takes_what_output_name_prints(snapshot: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ' "x" not found in namespace "team"' in refused(capsys, "explain", name, "-n", "team", "-f", snapshot)
