"""`dray plan`, `dray rebalance` and `dray top fragmentation` on files: the verdict first, and precise errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dray.api.document import Document
from dray.cli import plan, rebalance, top
from dray.sim.snapshot import Snapshot
from tests.unit.sim.capacity.test_addition import EIGHT, ONE, TWO, catalogue
from tests.unit.sim.gpu_cluster import gpu_cluster, gpu_pod

FRAGMENTED = gpu_cluster(
    {"a": 2, "b": 2}, gpu_pod("x", 1, "a", [0]), gpu_pod("web", 1, "b", [0]), gpu_pod("big", 2), gpu_pod("big-2", 2)
)
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", "namespace": "team"}}
SPEC = {
    "containers": [{"name": "c", "image": "i"}],
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus-2"}],
}


def write(path: Path, documents: list[Document] | Snapshot) -> str:
    if isinstance(documents, Snapshot):
        documents = [item for items in documents.documents.values() for item in items]
    path.write_text("\n---\n".join(yaml.safe_dump(document) for document in documents))
    return str(path)


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    return write(tmp_path / "cluster.yaml", FRAGMENTED)


def test_a_plan_says_first_what_to_add(cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = write(tmp_path / "catalogue.yaml", catalogue(ONE, TWO, EIGHT))
    assert plan.main(["-f", cluster, "--catalogue", shapes]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Add 2 nodes (2 two): 2 of 2 Pods fit then", "Price 6: no other plan is cheaper"]
    assert lines[-1] == "2 Pods placed, 2 on new nodes; --all shows where each goes"
    assert plan.main(["-f", cluster, "--catalogue", shapes, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["items"]
    assert [(node["shape"], node["pods"]) for node in found["added"]] == [
        ("two", ["team/big"]),
        ("two", ["team/big-2"]),
    ]
    assert found["isOptimal"] is True
    assert {item["isNewNode"] for item in found["placements"]} == {True}


def test_a_forecast(cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = write(tmp_path / "catalogue.yaml", catalogue(TWO))
    pods = write(tmp_path / "pods.yaml", [{**POD, "spec": SPEC}])
    assert (
        plan.main(["-f", cluster, "--catalogue", shapes, "--pods", pods, "--times", "3", "--no-pending", "--all"]) == 0
    )
    out = capsys.readouterr().out
    assert out.startswith("Add 3 nodes (3 two): 3 of 3 Pods fit then\n")
    assert "team/new-3   two-3 (new)   device-0, device-1" in out
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"replicas": 2, "template": {"spec": SPEC}},
    }
    pods = write(tmp_path / "pods.yaml", [deployment])
    assert plan.main(["-f", cluster, "--catalogue", shapes, "--pods", pods, "--no-pending"]) == 0
    assert capsys.readouterr().out.startswith("Add 2 nodes (2 two): 2 of 2 Pods fit then\n")


def test_pods_with_scheduling_gates_are_noted(cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gated = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gated", "namespace": "team"},
        "spec": {**SPEC, "schedulingGates": [{"name": "example.com/budget"}]},
    }
    pods = write(tmp_path / "pods.yaml", [gated])
    plan.main(["-f", cluster, "--pods", pods, "--no-pending"])
    assert "Note: not scheduled until their scheduling gates are removed: team/gated" in capsys.readouterr().out


def test_pods_that_fit_on_no_shape(cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = write(tmp_path / "catalogue.yaml", catalogue(ONE))
    assert plan.main(["-f", cluster, "--catalogue", shapes]) == 1
    out = capsys.readouterr().out
    assert out.startswith("2 Pods of 2 fit on no node that could be added\n")
    assert (
        "  - team/big, team/big-2: fits on no node shape, even on an empty node: one: of 1 device 1 usable but 2" in out
    )


def test_removal_and_joint_placement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spare = write(tmp_path / "spare.yaml", gpu_cluster({"a": 2, "b": 1}, gpu_pod("x", 1, "a", [0])))
    assert plan.main(["-f", spare, "--remove"]) == 0
    assert capsys.readouterr().out.startswith("1 node of 2 can be removed (not more)\n")
    apart = write(tmp_path / "apart.yaml", gpu_cluster({"a": 2, "b": 1}, gpu_pod("a-small", 1), gpu_pod("b-large", 2)))
    assert plan.main(["-f", apart, "--joint"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("All 2 Pods fit if they are placed together; one by one, 1 would stay pending\n")
    assert out.endswith("What to do: create them in this order, or give the first ones a higher priority\n")


def test_no_node_helps_a_pod_that_waits_for_a_volume_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the scheduler has said; a planned Pod may bring its claim."""
    message = '0/2 nodes are available: persistentvolumeclaim "data" not found.'
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    spec = {"containers": SPEC["containers"], "volumes": volumes}
    waiting: Document = {**POD, "spec": spec, "status": {"phase": "Pending", "conditions": [condition]}}
    known = [item for items in gpu_cluster({"a": 2, "b": 2}).documents.values() for item in items]
    cluster = write(tmp_path / "cluster.yaml", [*known, waiting])
    assert plan.main(["-f", cluster]) == 1
    assert 'waits for PersistentVolumeClaim "data", which does not exist' in capsys.readouterr().out
    assert rebalance.main(["-f", cluster]) == 1
    assert 'waits for PersistentVolumeClaim "data", which does not exist' in capsys.readouterr().out
    planned = write(tmp_path / "pods.yaml", [{**POD, "metadata": {"name": "later", "namespace": "team"}, "spec": spec}])
    assert plan.main(["-f", cluster, "--pods", planned, "--no-pending"]) == 0


def test_rebalancing_for_pending_pods_and_for_a_shape(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rebalance.main(["plan", "-f", cluster]) == 1
    out = capsys.readouterr().out
    assert out.startswith("1 move lets 1 of 2 pending Pods fit\n")
    assert "To carry it out: dray rebalance plan --apply" in out
    shape = write(tmp_path / "shape.yaml", [{**POD, "spec": SPEC}])
    assert rebalance.main(["-f", cluster, "--shape", shape]) == 0
    assert capsys.readouterr().out.startswith("1 move makes room for 1 more Pod\n")


def test_fragmentation(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert top.main(["fragmentation", "-f", cluster, "-o", "csv"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "REQUESTS,FOR EXAMPLE,PODS,MORE FIT,AT MOST",
        "1 gpu,team/web,2,2,2",
        "2 gpu,team/big,2,0,1",
    ]


ERRORS = {
    "unknown class": (["--fallback", "h100=gpu"], 1, 'dray plan: no device class "h100"\n'),
    "bad fallback": (["--fallback", "gpu"], 1, "dray plan: cannot read the fallback 'gpu': expected CLASS=OTHER-CLASS"),
    "times without pods": (["--times", "3"], 2, "dray plan: --times needs --pods: it repeats the Pods of the file\n"),
    "both shapes": (["--catalogue", "a", "--node-template", "b"], 2, "cannot be combined"),
    "no such file": (["--catalogue", "nope.yaml"], 1, "dray plan: nope.yaml: No such file or directory\n"),
    "unknown group": (["--joint", "--group", "g", "-n", "team"], 1, "no pending Pods of PodGroup team/g"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_bad_input_gets_one_line(name: str, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, code, message = ERRORS[name]
    with pytest.raises(SystemExit) as caught:
        plan.main(["-f", cluster, *flags])
    assert caught.value.code == code
    assert message in capsys.readouterr().err


PODS_ERRORS = {
    "no Pods": ([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}], "cannot plan a ConfigMap"),
    "no containers": ([{**POD, "spec": {}}], "Pod new has no containers"),
    "no template": ([{**POD, "spec": {**SPEC, "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "x"}]}}],
                    'pod team/new: resource claim template "x": '),
    "unknown priority": ([{**POD, "spec": {**SPEC, "priorityClassName": "x"}}], 'Pod new: no PriorityClass "x"'),
}  # fmt: skip


@pytest.mark.parametrize("name", PODS_ERRORS)
def test_bad_pods_get_one_line(name: str, cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents, message = PODS_ERRORS[name]
    with pytest.raises(SystemExit) as caught:
        plan.main(["-f", cluster, "--pods", write(tmp_path / "pods.yaml", documents)])
    assert caught.value.code == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_pod_to_rebalance_for_must_be_pending(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rebalance.main(["-f", cluster, "--for", "bgi", "-n", "team"])
    assert capsys.readouterr().err == 'dray rebalance: no pending pod team/bgi (did you mean "big"?)\n'
    with pytest.raises(SystemExit):
        rebalance.main(["-f", cluster, "--apply"])
    assert "--apply needs a cluster" in capsys.readouterr().err
