"""Client-side and server-side `apply`, `diff`, `replace` and `edit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Document, Kubectl, kubectl_version, needs_kubectl, write

STALE = "the object has been modified; please apply your changes to the latest version and try again"


def deployment(image: str, replicas: int, *extra: Document) -> Document:
    labels = {"app": "d"}
    containers = [{"name": "main", "image": image}, *extra]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    }


def test_created_unchanged_configured(kubectl: Kubectl) -> None:
    steps = [(1, "created"), (1, "unchanged"), (2, "configured")]
    for number, word in steps:
        shown = kubectl("apply", "-f", "-", stdin=deployment(f"i:{number}", 1))
        assert shown == f"deployment.apps/d {word}\n"
    assert kubectl.field("deployment/d", "spec.template.spec.containers[0].image") == "i:2"
    assert kubectl.field("deployment/d", "metadata.generation") == "2"


def test_apply_removes_fields_that_are_no_longer_in_the_manifest(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=bodies.config_map("c", a="1", b="2"))
    kubectl("patch", "configmap", "c", "-p", '{"data":{"other":"3"}}')
    kubectl("apply", "-f", "-", stdin=bodies.config_map("c", a="1"))
    assert kubectl.get("configmap", "c")["data"] == {"a": "1", "other": "3"}


def test_apply_merges_lists_by_name(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=deployment("i:1", 1, {"name": "side", "image": "s:1"}))
    kubectl("apply", "-f", "-", stdin=deployment("i:2", 1))
    containers = kubectl.get("deployment", "d")["spec"]["template"]["spec"]["containers"]
    assert [(item["name"], item["image"]) for item in containers] == [("main", "i:2")]


def test_apply_warns_about_objects_created_otherwise(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=bodies.config_map("c"))
    answer = kubectl.run("apply", "-f", "-", stdin=bodies.config_map("c", a="1"))
    assert answer.out == "configmap/c configured\n"
    assert "missing the kubectl.kubernetes.io/last-applied-configuration annotation" in answer.err


def test_prune_by_label(kubectl: Kubectl, tmp_path: Path) -> None:
    kept, gone = bodies.config_map("kept", a="1"), bodies.config_map("gone", a="1")
    for document in (kept, gone):
        document["metadata"]["labels"] = {"set": "s"}
    allow = "--prune-allowlist" if kubectl_version() >= (1, 26) else "--prune-whitelist"
    flags = ("--prune", "-l", "set=s", f"{allow}=core/v1/ConfigMap")
    kubectl("apply", *flags, "-f", write(tmp_path / "both.json", [kept, gone]))
    shown = kubectl("apply", *flags, "-f", write(tmp_path / "one.json", kept))
    assert shown.split("\n")[:-1] == ["configmap/kept unchanged", "configmap/gone pruned"]


class TestServerSide:
    def test_applied(self, kubectl: Kubectl) -> None:
        shown = kubectl("apply", "--server-side", "-f", "-", stdin=bodies.config_map("c", a="1"))
        assert shown == "configmap/c serverside-applied\n"
        show = ("--show-managed-fields",) if kubectl_version() >= (1, 21) else ()
        (entry,) = kubectl.get("configmap", "c", *show)["metadata"]["managedFields"]
        assert (entry["manager"], entry["operation"]) == ("kubectl", "Apply")
        assert entry["fieldsV1"] == {"f:data": {"f:a": {}}}

    @pytest.mark.behaviour("SP-36")
    def test_conflict_names_the_manager_and_force_takes_over(self, kubectl: Kubectl) -> None:
        kubectl("apply", "--server-side", "-f", "-", stdin=bodies.config_map("c", a="1", b="1"))
        other = ("apply", "--server-side", "--field-manager=other", "-f", "-")
        message = kubectl.error(*other, stdin=bodies.config_map("c", a="2"))
        assert 'Apply failed with 1 conflict: conflict with "kubectl"' in message
        assert ".data.a" in message
        assert "--force-conflicts" in message
        kubectl(*other, "--force-conflicts", stdin=bodies.config_map("c", a="2"))
        assert kubectl.get("configmap", "c")["data"] == {"a": "2", "b": "1"}

    def test_leaving_a_field_out_removes_it(self, kubectl: Kubectl) -> None:
        for data in ({"a": "1", "b": "2"}, {"a": "1"}):
            kubectl("apply", "--server-side", "-f", "-", stdin=bodies.config_map("c", **data))
        assert kubectl.get("configmap", "c")["data"] == {"a": "1"}

    @needs_kubectl(26)
    def test_takes_over_from_client_side_apply(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.config_map("c", a="1", b="2"))
        kubectl("apply", "--server-side", "-f", "-", stdin=bodies.config_map("c", a="3"))
        assert kubectl.get("configmap", "c")["data"] == {"a": "3"}

    def test_dry_run(self, kubectl: Kubectl) -> None:
        shown = kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=bodies.config_map("c", a="1"))
        assert shown == "configmap/c serverside-applied (server dry run)\n"
        assert "not found" in kubectl.error("get", "configmap", "c")


class TestDiff:
    def test_no_difference(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.config_map("c", a="1"))
        answer = kubectl.run("diff", "-f", "-", stdin=bodies.config_map("c", a="1"))
        assert (answer.code, answer.out) == (0, "")

    @pytest.mark.parametrize("side", ["--server-side=false", "--server-side"])
    def test_difference_is_shown_and_not_made(self, kubectl: Kubectl, side: str) -> None:
        if side == "--server-side" and kubectl_version() < (1, 21):
            pytest.skip("needs kubectl 1.21")
        kubectl("apply", side, "-f", "-", stdin=bodies.config_map("c", a="1"))
        before = kubectl.get("configmap", "c")
        answer = kubectl.run("diff", side, "-f", "-", stdin=bodies.config_map("c", a="2"))
        assert answer.code == 1
        assert {'-  a: "1"', '+  a: "2"'} <= set(answer.out.splitlines())
        assert kubectl.get("configmap", "c") == before

    def test_new_object(self, kubectl: Kubectl) -> None:
        answer = kubectl.run("diff", "-f", "-", stdin=bodies.pod("p"))
        assert answer.code == 1
        assert "+  serviceAccountName: default" in answer.out.splitlines()
        assert "not found" in kubectl.error("get", "pod", "p")


class TestReplace:
    def test_replaces(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.config_map("c", a="1"))
        assert kubectl("replace", "-f", "-", stdin=bodies.config_map("c", b="2")) == "configmap/c replaced\n"
        assert kubectl.get("configmap", "c")["data"] == {"b": "2"}

    def test_stale_version_is_a_conflict(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.config_map("c", a="1"))
        stale = kubectl.get("configmap", "c")
        kubectl("label", "configmap", "c", "touched=yes")
        message = kubectl.error("replace", "-f", "-", stdin=stale)
        assert message == (
            'Error from server (Conflict): error when replacing "STDIN": '
            f'Operation cannot be fulfilled on configmaps "c": {STALE}'
        )

    def test_force_makes_a_new_object(self, kubectl: Kubectl, tmp_path: Path) -> None:
        file = write(tmp_path / "c.json", bodies.config_map("c", a="1"))
        kubectl("create", "-f", file)
        uid = kubectl.field("configmap/c", "metadata.uid")
        shown = kubectl("replace", "--force", "-f", file)
        assert "configmap/c replaced" in shown
        assert kubectl.field("configmap/c", "metadata.uid") != uid

    def test_missing_object(self, kubectl: Kubectl) -> None:
        assert kubectl.error("replace", "-f", "-", stdin=bodies.config_map("c")) == (
            'Error from server (NotFound): error when replacing "STDIN": configmaps "c" not found'
        )


class TestEdit:
    def editing(self, kubectl: Kubectl, tmp_path: Path, script: str) -> Kubectl:
        editor = tmp_path / "editor"
        editor.write_text(f'#!/bin/sh\n{script} "$1"\n')
        editor.chmod(0o755)
        return kubectl.with_environment(KUBE_EDITOR=str(editor))

    def test_edited(self, kubectl: Kubectl, tmp_path: Path) -> None:
        kubectl("create", "configmap", "c", "--from-literal=key=before")
        tool = self.editing(kubectl, tmp_path, "sed -i 's/key: before/key: after/'")
        assert tool("edit", "configmap", "c") == "configmap/c edited\n"
        assert kubectl.field("configmap/c", "data.key") == "after"

    def test_not_edited(self, kubectl: Kubectl, tmp_path: Path) -> None:
        kubectl("create", "configmap", "c")
        tool = self.editing(kubectl, tmp_path, "true")
        answer = tool.run("edit", "configmap", "c")
        assert answer.code == 0
        assert "no changes made" in answer.out + answer.err

    def test_refused_edit_is_explained(self, kubectl: Kubectl, tmp_path: Path) -> None:
        kubectl("create", "-f", "-", stdin=bodies.claim("c"))
        # A refused edit is opened once more with the reason on top; the script keeps that and gives up.
        script = f'grep -q immutable "$1" && cp "$1" {tmp_path}/refused && exit 1; sed -i s/gpu.example.com/other/'
        answer = self.editing(kubectl, tmp_path, script).run("edit", "resourceclaim", "c")
        assert answer.code == 1
        assert 'resourceclaims.resource.k8s.io "c" is invalid' in answer.err
        reason = (tmp_path / "refused").read_text()
        assert '# resourceclaims.resource.k8s.io "c" was not valid:\n# * spec: Invalid value:' in reason
        assert "field is immutable" in reason

    @needs_kubectl(24)
    def test_edit_status(self, kubectl: Kubectl, tmp_path: Path) -> None:
        kubectl("create", "-f", "-", stdin=bodies.pod("p"))
        tool = self.editing(kubectl, tmp_path, "sed -i 's/phase: Pending/phase: Failed/'")
        assert tool("edit", "pod", "p", "--subresource=status") == "pod/p edited\n"
        assert kubectl.field("pod/p", "status.phase") == "Failed"


def test_view_and_set_last_applied(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("apply", "-f", "-", stdin=bodies.config_map("c", a="1"))
    shown = json.loads(kubectl("apply", "view-last-applied", "configmap", "c", "-o", "json"))
    assert shown["data"] == {"a": "1"}
    file = write(tmp_path / "c.json", bodies.config_map("c", a="1", b="2"))
    kubectl("apply", "set-last-applied", "-f", file)
    shown = json.loads(kubectl("apply", "view-last-applied", "configmap", "c", "-o", "json"))
    assert shown["data"] == {"a": "1", "b": "2"}
