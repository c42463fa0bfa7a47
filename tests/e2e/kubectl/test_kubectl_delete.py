"""`delete` and `wait`: finalizers, grace, owners and namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Document, Kubectl, needs_kubectl, write

HOLD = '{"metadata":{"finalizers":["example.com/hold"]}}'
RELEASE = '{"metadata":{"finalizers":null}}'


def test_delete(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c")
    assert 'configmap "c" deleted' in kubectl("delete", "configmap", "c")
    assert kubectl.error("get", "configmap", "c") == 'Error from server (NotFound): configmaps "c" not found'


def test_missing_object(kubectl: Kubectl) -> None:
    assert kubectl.error("delete", "pod", "p") == 'Error from server (NotFound): pods "p" not found'
    assert kubectl("delete", "pod", "p", "--ignore-not-found") == ""


def test_delete_by_file(kubectl: Kubectl, tmp_path: Path) -> None:
    file = write(tmp_path / "both.json", [bodies.config_map("a"), bodies.pod("p")])
    kubectl("create", "-f", file)
    shown = kubectl("delete", "-f", file, "--now")
    assert 'configmap "a" deleted' in shown
    assert 'pod "p" deleted' in shown


def test_delete_by_label(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=[bodies.pod("p", a="1"), bodies.pod("q", a="1"), bodies.pod("r")])
    kubectl("delete", "pods", "-l", "a=1", "--now")
    assert kubectl("get", "pods", "-o", "name").split() == ["pod/r"]


def test_delete_all(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=[bodies.claim("a"), bodies.claim("b")])
    kubectl("delete", "resourceclaims", "--all")
    assert kubectl("get", "resourceclaims", "-o", "name") == ""


def test_server_dry_run_deletes_nothing(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c")
    assert "(server dry run)" in kubectl("delete", "configmap", "c", "--dry-run=server")
    kubectl("get", "configmap", "c")


def test_wait_ends_when_the_finalizer_goes(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c")
    kubectl("patch", "configmap", "c", "-p", HOLD)
    with kubectl.background("delete", "configmap", "c", "--wait") as lines:
        lines.until(lambda line: 'configmap "c" deleted' in line)
        assert kubectl.field("configmap/c", "metadata.deletionTimestamp")
        kubectl("patch", "configmap", "c", "--type=merge", "-p", RELEASE)
        assert lines.end() == 0
    assert "not found" in kubectl.error("get", "configmap", "c")


def test_wait_has_an_end(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c")
    kubectl("patch", "configmap", "c", "-p", HOLD)
    assert "timed out waiting for the condition" in kubectl.error("delete", "configmap", "c", "--timeout=1s")
    kubectl("patch", "configmap", "c", "--type=merge", "-p", RELEASE)


class TestPods:
    def bound(self, kubectl: Kubectl) -> None:
        document = bodies.pod("p")
        document["spec"]["nodeName"] = "nowhere"
        kubectl("create", "-f", "-", stdin=document)

    def test_grace_is_waited_for_on_a_node(self, kubectl: Kubectl) -> None:
        self.bound(kubectl)
        kubectl("delete", "pod", "p", "--wait=false", "--grace-period=20")
        pod = kubectl.get("pod", "p")
        assert pod["metadata"]["deletionGracePeriodSeconds"] == 20
        assert kubectl.table("pod", "p")[0]["STATUS"] == "Terminating"

    def test_force(self, kubectl: Kubectl) -> None:
        self.bound(kubectl)
        answer = kubectl.run("delete", "pod", "p", "--grace-period=0", "--force")
        assert answer.code == 0
        assert 'pod "p" force deleted' in answer.out
        assert "mmediate deletion does not wait for confirmation" in answer.err
        assert "not found" in kubectl.error("get", "pod", "p")

    def test_unscheduled_pods_go_at_once(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.pod("p"))
        kubectl("delete", "pod", "p", "--grace-period=300", "--timeout=10s")
        assert "not found" in kubectl.error("get", "pod", "p")


class TestCascade:
    @pytest.fixture
    def owner(self, kubectl: Kubectl) -> Kubectl:
        """A ReplicaSet that owns a ConfigMap."""
        kubectl("create", "-f", "-", stdin=bodies.replica_set("owner"))
        uid = kubectl.field("rs/owner", "metadata.uid")
        child = bodies.config_map("child")
        child["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner", "uid": uid, "blockOwnerDeletion": True}
        ]
        kubectl("create", "-f", "-", stdin=child)
        return kubectl

    def test_orphan(self, owner: Kubectl) -> None:
        owner("delete", "rs", "owner", "--cascade=orphan")
        assert owner.field("configmap/child", "metadata.ownerReferences") == ""

    def test_background(self, owner: Kubectl) -> None:
        owner("delete", "rs", "owner", "--cascade=background")
        owner.wait_until_gone("configmap/child")

    def test_foreground_waits_for_the_children(self, owner: Kubectl) -> None:
        owner("patch", "configmap", "child", "-p", HOLD)
        owner("delete", "rs", "owner", "--cascade=foreground", "--wait=false")
        metadata: Document = owner.get("rs", "owner")["metadata"]
        assert metadata["finalizers"] == ["foregroundDeletion"]
        # The child ends first, and the owner with it.
        owner("patch", "configmap", "child", "--type=merge", "-p", RELEASE)
        owner.wait_until_gone("rs/owner")


class TestWait:
    @needs_kubectl(24)
    def test_condition(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.pod("p"))
        with kubectl.background("wait", "--for=condition=Ready", "pod/p", "--timeout=20s") as lines:
            status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            kubectl("patch", "pod", "p", "--subresource=status", "-p", json.dumps(status))
            lines.until(lambda line: line == "pod/p condition met")
            assert lines.end() == 0

    @needs_kubectl(24)
    def test_jsonpath(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.pod("p"))
        arguments = ("--for=jsonpath={.status.phase}=Running", "pod/p", "--timeout=20s")
        with kubectl.background("wait", *arguments) as lines:
            kubectl("patch", "pod", "p", "--subresource=status", "-p", '{"status":{"phase":"Running"}}')
            lines.until(lambda line: line == "pod/p condition met")
            assert lines.end() == 0

    @needs_kubectl(24)
    def test_delete(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c")
        with kubectl.background("wait", "--for=delete", "configmap/c", "--timeout=20s") as lines:
            kubectl("delete", "configmap", "c")
            assert lines.end() == 0

    def test_condition_that_never_comes(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.pod("p"))
        message = kubectl.error("wait", "--for=condition=Ready", "pod/p", "--timeout=1s")
        assert "timed out waiting for the condition on pods/p" in message

    def test_missing_object(self, kubectl: Kubectl) -> None:
        message = kubectl.error("wait", "--for=condition=Ready", "pod/p", "--timeout=1s")
        assert message == 'Error from server (NotFound): pods "p" not found'


class TestNamespaces:
    def test_contents_go_with_it(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=[bodies.pod("p"), bodies.claim("c"), bodies.config_map("m")])
        assert f'namespace "{kubectl.namespace}" deleted' in kubectl("delete", "namespace", kubectl.namespace)
        assert "not found" in kubectl.error("get", "namespace", kubectl.namespace)
        assert kubectl("get", "pods,resourceclaims,configmaps", "-o", "name") == ""

    def test_terminating(self, kubectl: Kubectl) -> None:
        name = kubectl.namespace
        kubectl("create", "configmap", "c")
        kubectl("patch", "configmap", "c", "-p", HOLD)
        kubectl("delete", "namespace", name, "--wait=false")
        assert kubectl.table("namespace", name)[0]["STATUS"] == "Terminating"
        assert kubectl.error("create", "-f", "-", stdin=bodies.pod("late")) == (
            'Error from server (Forbidden): error when creating "STDIN": pods "late" is forbidden: '
            f"unable to create new content in namespace {name} because it is being terminated"
        )
        kubectl("patch", "configmap", "c", "--type=merge", "-p", RELEASE)
        kubectl.wait_until_gone(f"namespace/{name}")

    @needs_kubectl(23)
    def test_conditions_say_what_is_left(self, kubectl: Kubectl) -> None:
        name = kubectl.namespace
        kubectl("create", "configmap", "c")
        kubectl("patch", "configmap", "c", "-p", HOLD)
        kubectl("delete", "namespace", name, "--wait=false")
        kubectl("wait", "--for=condition=NamespaceFinalizersRemaining", f"namespace/{name}", "--timeout=10s")
        shown = " ".join(kubectl("describe", "namespace", name).split())
        assert "example.com/hold in 1 resource instances" in shown
        kubectl("patch", "configmap", "c", "--type=merge", "-p", RELEASE)

    @pytest.mark.parametrize("name", ["default", "kube-system"])
    def test_some_are_here_to_stay(self, kubectl: Kubectl, name: str) -> None:
        message = kubectl.error("delete", "namespace", name)
        assert message.endswith(
            f'Error from server (Forbidden): namespaces "{name}" is forbidden: this namespace may not be deleted'
        )
