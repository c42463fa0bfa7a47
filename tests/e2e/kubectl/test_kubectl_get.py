"""`kubectl get` in all output formats."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Kubectl, rows_of


@pytest.fixture
def pods(kubectl: Kubectl) -> Kubectl:
    """A namespace with two labelled Pods."""
    kubectl("create", "-f", "-", stdin=[bodies.pod("a", app="web", tier="front"), bodies.pod("b", app="web")])
    return kubectl


def test_table(pods: Kubectl) -> None:
    rows = pods.table("pods")
    assert [list(row) for row in rows[:1]] == [["NAME", "READY", "STATUS", "RESTARTS", "AGE"]]
    assert [(row["NAME"], row["READY"], row["STATUS"], row["RESTARTS"]) for row in rows] == [
        ("a", "0/1", "Pending", "0"),
        ("b", "0/1", "Pending", "0"),
    ]
    assert all(row["AGE"].endswith("s") for row in rows)


def test_wide_table(pods: Kubectl) -> None:
    row = pods.table("pod", "a", "--output=wide")[0]
    assert list(row)[5:] == ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    assert row["NODE"] == "<none>"


def test_node_wide_table(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=bodies.node("wide"))
    row = kubectl.table("node", "wide", "-o", "wide")[0]
    assert row["STATUS"] == "Unknown"
    assert "CONTAINER-RUNTIME" in row


def test_yaml_and_json_show_the_same_object(pods: Kubectl) -> None:
    as_json = json.loads(pods("get", "pod", "a", "-o", "json"))
    assert yaml.safe_load(pods("get", "pod", "a", "-o", "yaml")) == as_json
    assert (as_json["apiVersion"], as_json["kind"]) == ("v1", "Pod")
    assert as_json["metadata"]["labels"] == {"app": "web", "tier": "front"}


def test_list_as_json(pods: Kubectl) -> None:
    found = pods.get("pods")
    assert found["kind"] == "List"
    assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b"]


def test_jsonpath(pods: Kubectl) -> None:
    assert pods("get", "pods", "-o", "jsonpath={.items[*].metadata.name}") == "a b"
    assert pods.field("pod/a", "spec.containers[0].image") == "example.com/image:1"


def test_go_template(pods: Kubectl) -> None:
    template = "{{range .items}}{{.metadata.name}};{{end}}"
    assert pods("get", "pods", "-o", f"go-template={template}") == "a;b;"


def test_custom_columns(pods: Kubectl) -> None:
    shown = pods("get", "pods", "-o", "custom-columns=WHO:.metadata.name,IMAGE:.spec.containers[0].image")
    assert rows_of(shown) == [
        {"WHO": "a", "IMAGE": "example.com/image:1"},
        {"WHO": "b", "IMAGE": "example.com/image:1"},
    ]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=web", ["pod/a", "pod/b"]),
        ("app=web,tier=front", ["pod/a"]),
        ("app=web,!tier", ["pod/b"]),
        ("app in (web, mail),tier!=front", ["pod/b"]),
        ("app notin (web)", []),
    ],
)
def test_label_selector(pods: Kubectl, selector: str, names: list[str]) -> None:
    assert pods("get", "pods", "-l", selector, "-o", "name").split() == names


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=a", ["pod/a"]),
        ("metadata.name!=a", ["pod/b"]),
        ("status.phase=Pending,spec.nodeName=", ["pod/a", "pod/b"]),
        ("status.phase=Running", []),
    ],
)
def test_field_selector(pods: Kubectl, selector: str, names: list[str]) -> None:
    assert pods("get", "pods", f"--field-selector={selector}", "-o", "name").split() == names


def test_unknown_field_selector(pods: Kubectl) -> None:
    message = pods.error("get", "pods", "--field-selector=spec.nope=1")
    assert message == (
        'Error from server (BadRequest): Unable to find "/v1, Resource=pods" that match label selector "", '
        'field selector "spec.nope=1": field label not supported: spec.nope'
    )


def test_labels_as_columns(pods: Kubectl) -> None:
    assert [row["TIER"] for row in pods.table("pods", "-L", "tier")] == ["front", ""]
    assert pods.table("pod", "a", "--show-labels")[0]["LABELS"] == "app=web,tier=front"


def test_all_namespaces(pods: Kubectl) -> None:
    rows = pods.table("pods", "-A")
    assert {"NAMESPACE": pods.namespace, "NAME": "a"}.items() <= next(
        row for row in rows if row["NAMESPACE"] == pods.namespace
    ).items()


def test_get_all_shows_workloads_only(pods: Kubectl) -> None:
    pods("create", "configmap", "hidden")
    pods("create", "-f", "-", stdin=bodies.replica_set("r"))
    names = pods("get", "all", "-o", "name").split()
    assert names == ["pod/a", "pod/b", "replicaset.apps/r"]


def test_several_kinds_and_names(pods: Kubectl) -> None:
    pods("create", "configmap", "c")
    assert pods("get", "pod/a", "configmap/c", "-o", "name").split() == ["pod/a", "configmap/c"]
    assert pods("get", "po,cm", "-o", "name").split() == [
        "pod/a",
        "pod/b",
        "configmap/c",
        "configmap/kube-root-ca.crt",
    ]


def test_sorting(pods: Kubectl) -> None:
    pods("annotate", "pod", "a", "rank=2")
    pods("annotate", "pod", "b", "rank=1")
    assert pods("get", "pods", "--sort-by=.metadata.annotations.rank", "-o", "name").split() == ["pod/b", "pod/a"]


def test_chunked_list_is_complete(pods: Kubectl) -> None:
    pods("create", "-f", "-", stdin=[bodies.pod(f"c{number}") for number in range(5)])
    assert len(pods("get", "pods", "--chunk-size=2", "-o", "name").split()) == 7


def test_no_resources_found(kubectl: Kubectl) -> None:
    answer = kubectl.run("get", "pods")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == f"No resources found in {kubectl.namespace} namespace.\n"


def test_raw_path(kubectl: Kubectl) -> None:
    found = json.loads(kubectl("get", "--raw", f"/api/v1/namespaces/{kubectl.namespace}"))
    assert found["status"] == {"phase": "Active"}
    assert kubectl("get", "--raw", "/readyz") == "ok"


def test_watch_shows_changes(pods: Kubectl) -> None:
    with pods.background("get", "pods", "-l", "tier=front", "-w") as lines:
        lines.until_cells("a", "0/1", "Pending")
        pods("label", "pod", "b", "tier=front")
        lines.until_cells("b", "0/1", "Pending")
        pods("patch", "pod", "a", "-p", '{"metadata":{"finalizers":["example.com/hold"]}}')
        pods("delete", "pod", "a", "--now", "--wait=false")
        lines.until_cells("a", "0/1", "Terminating")


def test_watch_only_names(kubectl: Kubectl) -> None:
    with kubectl.background("get", "configmaps", "--watch", "-o", "name") as lines:
        lines.until(lambda line: line == "configmap/kube-root-ca.crt")
        kubectl("create", "configmap", "new")
        lines.until(lambda line: line == "configmap/new")


def test_watch_events_of_the_watch(kubectl: Kubectl) -> None:
    with kubectl.background("get", "configmaps", "--watch", "--output-watch-events") as lines:
        lines.until_cells("ADDED", "kube-root-ca.crt")
        kubectl("create", "configmap", "c", "--from-literal=a=1")
        lines.until_cells("ADDED", "c", "1")
        kubectl("patch", "configmap", "c", "-p", '{"data":{"b":"2"}}')
        lines.until_cells("MODIFIED", "c", "2")
        kubectl("delete", "configmap", "c")
        lines.until_cells("DELETED", "c", "2")
