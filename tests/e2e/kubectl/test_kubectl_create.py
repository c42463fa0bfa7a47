"""`kubectl create` with and without files, `run`, and defaulting."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Kubectl, kubectl_version, needs_kubectl, write


def test_create_namespace(kubectl: Kubectl) -> None:
    name = f"{kubectl.namespace}-more"
    assert kubectl("create", "namespace", name) == f"namespace/{name} created\n"
    namespace = kubectl.get("namespace", name)
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": name}
    assert namespace["spec"] == {"finalizers": ["kubernetes"]}
    account = kubectl.with_flags(f"--namespace={name}").get("serviceaccount", "default")
    assert account["metadata"]["namespace"] == name


@pytest.mark.parametrize(
    ("arguments", "shown", "path", "value"),
    [
        pytest.param(
            ("configmap", "x", "--from-literal=key=value"), "configmap/x", ".data.key", "value", id="configmap"
        ),
        pytest.param(
            ("secret", "generic", "x", "--from-literal=password=hush"),
            *("secret/x", ".data.password", base64.b64encode(b"hush").decode()),
            id="secret",
        ),
        pytest.param(("serviceaccount", "x"), "serviceaccount/x", ".metadata.name", "x", id="serviceaccount"),
        pytest.param(
            ("role", "x", "--verb=get,list", "--resource=pods"),
            *("role.rbac.authorization.k8s.io/x", ".rules[0].verbs", '["get","list"]'),
            id="role",
        ),
        pytest.param(
            ("rolebinding", "x", "--clusterrole=view", "--user=alice"),
            *("rolebinding.rbac.authorization.k8s.io/x", ".subjects[0].name", "alice"),
            id="rolebinding",
        ),
        pytest.param(
            ("clusterrole", "created", "--verb=get", "--resource=deviceclasses.resource.k8s.io"),
            *("clusterrole.rbac.authorization.k8s.io/created", ".rules[0].apiGroups[0]", "resource.k8s.io"),
            id="clusterrole",
        ),
        pytest.param(
            ("clusterrolebinding", "created", "--clusterrole=view", "--group=devs"),
            *("clusterrolebinding.rbac.authorization.k8s.io/created", ".roleRef.name", "view"),
            id="clusterrolebinding",
        ),
        pytest.param(
            ("quota", "x", "--hard=pods=3,count/resourceclaims.resource.k8s.io=2"),
            *("resourcequota/x", r".spec.hard.count/resourceclaims\.resource\.k8s\.io", "2"),
            id="quota",
        ),
        pytest.param(
            ("priorityclass", "created", "--value=7", "--description=d"),
            *("priorityclass.scheduling.k8s.io/created", ".value", "7"),
            id="priorityclass",
        ),
        pytest.param(
            ("deployment", "x", "--image=i", "--replicas=3"),
            *("deployment.apps/x", ".spec.replicas", "3"),
            id="deployment",
        ),
        pytest.param(
            ("job", "x", "--image=i", "--", "sh", "-c", "true"),
            *("job.batch/x", ".spec.template.spec.containers[0].command", '["sh","-c","true"]'),
            id="job",
        ),
    ],
)
def test_generators(kubectl: Kubectl, arguments: tuple[str, ...], shown: str, path: str, value: str) -> None:
    assert kubectl("create", *arguments) == f"{shown} created\n"
    assert kubectl("get", shown, "-o", f"jsonpath={{{path}}}") == value


@needs_kubectl(24)
def test_create_token(kubectl: Kubectl, as_alice: Kubectl) -> None:
    kubectl("create", "serviceaccount", "robot")
    token = kubectl("create", "token", "robot", "--duration=20m").strip()
    _, claims, _ = token.split(".")
    content = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    assert content["sub"] == f"system:serviceaccount:{kubectl.namespace}:robot"
    assert content["exp"] - content["iat"] == 20 * 60
    robot = as_alice.with_flags(f"--token={token}")
    assert f'User "{content["sub"]}" cannot list resource "pods"' in robot.error("get", "pods")


def test_create_from_files(kubectl: Kubectl, tmp_path: Path) -> None:
    write(tmp_path / "a.json", [bodies.config_map("a"), bodies.config_map("b")])
    (tmp_path / "c.json").write_text(json.dumps(bodies.config_map("c")))
    assert kubectl("create", "-f", str(tmp_path)).split("\n")[:-1] == [
        "configmap/a created",
        "configmap/b created",
        "configmap/c created",
    ]


def test_create_list(kubectl: Kubectl) -> None:
    items = [bodies.config_map("a"), bodies.pod("p")]
    shown = kubectl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "List", "items": items})
    assert shown == "configmap/a created\npod/p created\n"


def test_generate_name(kubectl: Kubectl) -> None:
    document = bodies.config_map("")
    document["metadata"] = {"generateName": "made-"}
    names = {kubectl("create", "-f", "-", "-o", "name", stdin=document).strip() for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith("configmap/made-") for name in names)


def test_save_config(kubectl: Kubectl) -> None:
    kubectl("create", "--save-config", "-f", "-", stdin=bodies.config_map("a", k="v"))
    assert "last-applied-configuration" in json.dumps(kubectl.get("configmap", "a")["metadata"]["annotations"])
    answer = kubectl.run("apply", "-f", "-", stdin=bodies.config_map("a", k="v"))
    assert (answer.out, answer.err) == ("configmap/a unchanged\n", "")


def test_server_dry_run_creates_nothing(kubectl: Kubectl) -> None:
    shown = kubectl("create", "--dry-run=server", "-f", "-", "-o", "json", stdin=bodies.pod("p"))
    assert json.loads(shown)["spec"]["serviceAccountName"] == "default"
    assert kubectl.error("get", "pod", "p") == 'Error from server (NotFound): pods "p" not found'


def test_run(kubectl: Kubectl) -> None:
    assert kubectl("run", "p", "--image=i", "--labels=a=b", "--env=K=v", "--", "sleep", "1") == "pod/p created\n"
    pod = kubectl.get("pod", "p")
    container = pod["spec"]["containers"][0]
    assert (container["args"], container["env"]) == (["sleep", "1"], [{"name": "K", "value": "v"}])
    assert pod["metadata"]["labels"] == {"a": "b"}
    assert (pod["status"]["phase"], pod["status"]["qosClass"]) == ("Pending", "BestEffort")


def test_run_with_overrides(kubectl: Kubectl) -> None:
    overrides = {"apiVersion": "v1", "spec": {"nodeSelector": {"disk": "fast"}, "restartPolicy": "Never"}}
    kubectl("run", "p", "--image=i", f"--overrides={json.dumps(overrides)}")
    assert kubectl.get("pod", "p")["spec"]["nodeSelector"] == {"disk": "fast"}


def test_defaults_of_a_pod(kubectl: Kubectl) -> None:
    document = bodies.pod("p")
    del document["spec"]["schedulerName"]
    kubectl("create", "-f", "-", stdin=document)
    spec = kubectl.get("pod", "p")["spec"]
    assert {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "priority": 0,
    }.items() <= spec.items()
    assert {item["key"] for item in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }


def test_priority_class_gives_pods_their_priority(kubectl: Kubectl) -> None:
    kubectl("create", "priorityclass", "urgent", "--value=1000")
    document = bodies.pod("p")
    document["spec"]["priorityClassName"] = "urgent"
    kubectl("create", "-f", "-", stdin=document)
    assert kubectl.field("pod/p", "spec.priority") == "1000"
    document["spec"]["priorityClassName"] = "unheard-of"
    document["metadata"]["name"] = "q"
    assert "no PriorityClass with name unheard-of was found" in kubectl.error("create", "-f", "-", stdin=document)


def test_edit_before_create(kubectl: Kubectl, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/key: before/key: after/" "$1"\n')
    editor.chmod(0o755)
    tool = kubectl.with_environment(KUBE_EDITOR=str(editor))
    file = write(tmp_path / "c.json", bodies.config_map("c", key="before"))
    assert "configmap/c created" in tool("create", "--edit", "-f", file)
    assert kubectl.field("configmap/c", "data.key") == "after"


def test_kubectl_version() -> None:
    assert kubectl_version() > (1, 0)
