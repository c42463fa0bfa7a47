"""A device plugin that is deployed as a DaemonSet, on the agent inside `dray up`, and a Pod that uses its device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubectl.tool import Kubectl, kubectl_version
from tests.servers import running_server

EXAMPLE = Path(__file__).parents[3] / "examples" / "device-plugin" / "host_devices.py"
TIMEOUT = "--timeout=25s"


def daemon_set(folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(EXAMPLE), "--resource=example.com/null", "--pattern=/dev/null"]
    labels = {"app": "plugin"}
    container = {
        "name": "plugin",
        "image": "any",
        "command": [*command, f"--folder={folder}"],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "plugins", "mountPath": str(folder)}],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "plugins", "hostPath": {"path": str(folder), "type": "Directory"}}],
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-node-critical",
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "plugin"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


@pytest.mark.skipif(kubectl_version() == (0, 0), reason="needs kubectl")
def test_a_device_plugin_as_a_daemon_set(tmp_path_factory: pytest.TempPathFactory) -> None:
    # A socket's path has 107 characters at most.
    tmp_path = tmp_path_factory.mktemp("ds")
    root = f"--node-root-dir={tmp_path / 'node'}"
    with running_server(tmp_path, "--node", "--node-runtime=process", root, "--store=memory") as server:
        kubectl = Kubectl(server.environment, "default")
        folder = tmp_path / "node" / "device-plugins"
        kubectl("apply", "--filename=-", stdin=daemon_set(folder))
        kubectl("rollout", "status", "daemonset/plugin", TIMEOUT)
        (node,) = kubectl.get("nodes")["items"]
        name = node["metadata"]["name"]
        path = "jsonpath={.status.allocatable.example\\.com/null}"
        kubectl("wait", f"--for={path}=1", f"node/{name}", TIMEOUT)
        container = {
            "name": "c",
            "image": "any",
            "command": ["sh", "-c", "echo $NULL_DEVICES"],
            "resources": {"limits": {"example.com/null": "1"}},
        }
        pod = {"restartPolicy": "Never", "containers": [container]}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": pod}
        kubectl("apply", "--filename=-", stdin=document)
        kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/user", TIMEOUT)
        assert kubectl("logs", "user") == "/dev/null\n"
        kubectl("delete", "daemonset", "plugin", "--cascade=foreground", TIMEOUT)
        assert kubectl.get("pods", "--selector=app=plugin")["items"] == []
