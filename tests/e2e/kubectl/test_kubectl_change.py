"""`patch` of every type, and the commands that send patches."""

from __future__ import annotations

import json

import pytest

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Kubectl, kubectl_version, needs_kubectl


class TestPatch:
    def test_json(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c", "--from-literal=a=1")
        operations = [
            {"op": "test", "path": "/data/a", "value": "1"},
            {"op": "add", "path": "/data/b", "value": "2"},
            {"op": "remove", "path": "/data/a"},
        ]
        shown = kubectl("patch", "configmap", "c", "--type=json", "-p", json.dumps(operations))
        assert shown == "configmap/c patched\n"
        assert kubectl.get("configmap", "c")["data"] == {"b": "2"}

    def test_json_test_that_fails(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c", "--from-literal=a=1")
        operations = [{"op": "test", "path": "/data/a", "value": "2"}]
        message = kubectl.error("patch", "configmap", "c", "--type=json", "-p", json.dumps(operations))
        assert message.startswith("The request is invalid")
        assert kubectl.field("configmap/c", "data.a") == "1"

    def test_merge(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.config_map("c", a="1", b="2"))
        kubectl("patch", "configmap", "c", "--type=merge", "-p", '{"data":{"a":null,"c":"3"}}')
        assert kubectl.get("configmap", "c")["data"] == {"b": "2", "c": "3"}

    def test_strategic_merges_containers_by_name(self, kubectl: Kubectl) -> None:
        kubectl("create", "deployment", "d", "--image=i:1")
        kubectl("set", "env", "deployment/d", "A=1")
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s"}]}}}}
        kubectl("patch", "deployment", "d", "-p", json.dumps(patch))
        containers = kubectl.get("deployment", "d")["spec"]["template"]["spec"]["containers"]
        assert sorted(item["image"] for item in containers) == ["i:1", "s"]
        assert [item["env"] for item in containers if "env" in item] == [[{"name": "A", "value": "1"}]]

    def test_strategic_delete_directive(self, kubectl: Kubectl) -> None:
        document = bodies.replica_set("r")
        document["spec"]["template"]["spec"]["containers"].append({"name": "side", "image": "s"})
        kubectl("create", "-f", "-", stdin=document)
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}}
        kubectl("patch", "replicaset", "r", "-p", json.dumps(patch))
        assert kubectl("get", "rs", "r", "-o", "jsonpath={.spec.template.spec.containers[*].name}") == "main"

    def test_no_change(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c", "--from-literal=a=1")
        version = kubectl.field("configmap/c", "metadata.resourceVersion")
        assert kubectl("patch", "configmap", "c", "-p", '{"data":{"a":"1"}}') == "configmap/c patched (no change)\n"
        assert kubectl.field("configmap/c", "metadata.resourceVersion") == version

    @needs_kubectl(24)
    def test_status_only(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.pod("p"))
        patch = {"metadata": {"labels": {"a": "b"}}, "spec": {"priority": 9}, "status": {"phase": "Running"}}
        kubectl("patch", "pod", "p", "--subresource=status", "--type=merge", "-p", json.dumps(patch))
        pod = kubectl.get("pod", "p")
        assert (pod["status"]["phase"], pod["spec"]["priority"]) == ("Running", 0)

    @needs_kubectl(24)
    @pytest.mark.parametrize("patch_type", ["json", "merge", "strategic"])
    def test_scale_subresource_of_every_type(self, kubectl: Kubectl, patch_type: str) -> None:
        kubectl("create", "deployment", "d", "--image=i")
        merge = {"spec": {"replicas": 4}}
        patch = [{"op": "replace", "path": "/spec/replicas", "value": 4}] if patch_type == "json" else merge
        flags = ("--subresource=scale", f"--type={patch_type}", "-p", json.dumps(patch))
        assert kubectl("patch", "deployment", "d", *flags) in (
            "deployment.apps/d patched\n",
            "scale.autoscaling/d patched\n",
        )
        assert kubectl.field("deployment/d", "spec.replicas") == "4"

    def test_dry_run(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c", "--from-literal=a=1")
        arguments = ("configmap", "c", "--dry-run=server", "-p", '{"data":{"a":"2"}}', "-o", "jsonpath={.data.a}")
        assert kubectl("patch", *arguments) == "2"
        assert kubectl.field("configmap/c", "data.a") == "1"

    def test_nonsense(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c")
        message = kubectl.error("patch", "configmap", "c", "--type=merge", "-p", '{"data":[1]}')
        assert "cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string" in message


class TestLabelsAndAnnotations:
    def test_label(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c")
        assert kubectl("label", "configmap", "c", "a=1", "b=2") == "configmap/c labeled\n"
        assert "--overwrite is false" in kubectl.error("label", "configmap", "c", "a=3")
        kubectl("label", "configmap", "c", "a=3", "--overwrite")
        kubectl("label", "configmap", "c", "b-")
        assert kubectl.get("configmap", "c")["metadata"]["labels"] == {"a": "3"}

    def test_label_all_by_selector(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=[bodies.pod("p", a="1"), bodies.pod("q", a="1"), bodies.pod("r")])
        kubectl("label", "pods", "-l", "a=1", "found=yes")
        assert kubectl("get", "pods", "-l", "found", "-o", "name").split() == ["pod/p", "pod/q"]

    def test_invalid_label_key(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c")
        message = kubectl.error("label", "configmap", "c", "bad key=1")
        assert 'metadata.labels: Invalid value: "bad key": name part must consist of' in message

    def test_annotate(self, kubectl: Kubectl) -> None:
        kubectl("create", "configmap", "c")
        assert kubectl("annotate", "configmap", "c", "note=hello there").startswith("configmap/c annotate")
        assert kubectl.get("configmap", "c")["metadata"]["annotations"]["note"] == "hello there"
        kubectl("annotate", "configmap", "c", "note-")
        assert "annotations" not in kubectl.get("configmap", "c")["metadata"]


class TestScaleAndRollout:
    def test_scale(self, kubectl: Kubectl) -> None:
        kubectl("create", "deployment", "d", "--image=i")
        assert kubectl("scale", "deployment", "d", "--replicas=5") == "deployment.apps/d scaled\n"
        assert kubectl.table("deployment", "d")[0]["READY"] == "0/5"

    def test_scale_with_precondition(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.replica_set("r"))
        kubectl("scale", "rs", "r", "--current-replicas=0", "--replicas=2")
        message = kubectl.error("scale", "rs", "r", "--current-replicas=0", "--replicas=3")
        assert "xpected replicas to be 0, was 2" in message

    def test_scale_below_zero(self, kubectl: Kubectl) -> None:
        kubectl("create", "deployment", "d", "--image=i")
        patch = '{"spec":{"replicas":-1}}'
        assert "spec.replicas: Invalid value: -1: must be greater than or equal to 0" in kubectl.error(
            *("patch", "deployment", "d", "-p", patch)
        )

    def test_set_image(self, kubectl: Kubectl) -> None:
        kubectl("create", "deployment", "d", "--image=i:1")
        name = kubectl.field("deployment/d", "spec.template.spec.containers[0].name")
        assert kubectl("set", "image", "deployment/d", f"{name}=i:2") == "deployment.apps/d image updated\n"
        deployment = kubectl.get("deployment", "d")
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "i:2"
        assert deployment["metadata"]["generation"] == 2

    def test_set_resources(self, kubectl: Kubectl) -> None:
        kubectl("create", "deployment", "d", "--image=i")
        kubectl("set", "resources", "deployment/d", "--requests=cpu=100m,memory=1Gi", "--limits=cpu=1")
        container = kubectl.get("deployment", "d")["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "100m", "memory": "1Gi"}}

    def test_restart_and_pause(self, kubectl: Kubectl) -> None:
        kubectl("create", "deployment", "d", "--image=i")
        assert kubectl("rollout", "restart", "deployment/d") == "deployment.apps/d restarted\n"
        template = kubectl.get("deployment", "d")["spec"]["template"]
        assert "kubectl.kubernetes.io/restartedAt" in template["metadata"]["annotations"]
        assert kubectl("rollout", "pause", "deployment/d") == "deployment.apps/d paused\n"
        assert kubectl.field("deployment/d", "spec.paused") == "true"
        kubectl("rollout", "resume", "deployment/d")


class TestNodes:
    def test_cordon_and_uncordon(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.node("c"))
        assert kubectl("cordon", "c") == "node/c cordoned\n"
        assert kubectl.table("node", "c")[0]["STATUS"] == "Unknown,SchedulingDisabled"
        assert kubectl("cordon", "c") == "node/c already cordoned\n"
        assert kubectl("uncordon", "c") == "node/c uncordoned\n"
        assert kubectl.field("node/c", "spec.unschedulable") == ""

    def test_taint(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.node("t"))
        assert kubectl("taint", "node", "t", "gpu=yes:NoSchedule") == "node/t tainted\n"
        assert {"key": "gpu", "value": "yes", "effect": "NoSchedule"} in kubectl.get("node", "t")["spec"]["taints"]
        assert "already has gpu taint" in kubectl.error("taint", "node", "t", "gpu=no:NoSchedule")
        kubectl("taint", "node", "t", "gpu=no:NoSchedule", "--overwrite")
        assert kubectl("taint", "node", "t", "gpu-") == "node/t untainted\n"
        assert "gpu" not in kubectl.field("node/t", "spec.taints[*].key").split()

    def test_drain_evicts_pods(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.node("d"))
        bound = bodies.pod("p")
        bound["spec"] |= {"nodeName": "d", "terminationGracePeriodSeconds": 0}
        kubectl("create", "-f", "-", stdin=bound)
        shown = kubectl("drain", "d", "--force", "--ignore-daemonsets", "--timeout=10s", "--grace-period=0")
        # Old versions delete where they find no group `policy`.
        assert ("pod/p evicted" if kubectl_version() >= (1, 22) else "pod/p deleted") in shown
        assert "not found" in kubectl.error("get", "pod", "p")
