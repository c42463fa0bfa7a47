"""Tools with the roles that are made for them, with less, and with the permissions of one namespace.

They answer what can be said, and note what is hidden.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dray.sim.holdings import plural
from dray.sim.snapshot import CLUSTER_SCOPED, PATH_KINDS
from tests.e2e.kubectl.tool import Kubectl
from tests.fork_server import run
from tests.servers import Server
from tests.unit.sim.cluster import GPU, device, device_class, resource_slice

READ = ["get", "list", "watch"]
RBAC = "rbac.authorization.k8s.io"
ROLES = Path(__file__).parents[3] / "deploy" / "rbac"
VIEWER_COMMANDS = (
    "claims",
    "decisions",
    "devices",
    "doctor",
    "explain pod/waiting",
    "plan",
    "rebalance",
    "record --for=1s -",
    "simulate",
    "snapshot",
    "top",
    "top nodes",
    "usage",
)


@pytest.fixture(scope="module")
def viewer(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who may read one namespace, in which a Pod waits."""
    kubectl = Kubectl(server.environment, "default")
    objects = [
        device_class("gpu", f'device.driver == "{GPU}"'),
        resource_slice("node-a", GPU, device("gpu-0"), nodeName="node-a"),
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": {"name": "viewer", "namespace": "default"},
            "rules": [{"apiGroups": ["", "resource.k8s.io", "apps"], "resources": ["*"], "verbs": READ}],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "viewer", "namespace": "default"},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "viewer"},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "alice"}],
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "waiting", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        },
    ]
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    kubectl("wait", "--for=condition=PodScheduled=False", "pod/waiting", "--timeout=60s")
    return environment_of(server, "alice-token", tmp_path_factory)


def environment_of(server: Server, token: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = tmp_path_factory.mktemp("user") / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return server.environment | {"KUBECONFIG": str(path)}


@pytest.fixture(scope="module")
def tools_viewer(server: Server, viewer: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a service account that has exactly the role for the tools, beside a waiting Pod."""
    kubectl = Kubectl(server.environment, "kube-public")
    kubectl("apply", "-f", str(ROLES / "tools-viewer.yaml"))
    kubectl("create", "serviceaccount", "reader")
    kubectl(
        "create",
        "clusterrolebinding",
        "reader",
        "--clusterrole=dray-tools-viewer",
        "--serviceaccount=kube-public:reader",
    )
    token = kubectl("create", "token", "reader").strip()
    return environment_of(server, token, tmp_path_factory)


def dray(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "dray", *arguments], env=environment)


def test_explain_goes_on_without_nodes(viewer: dict[str, str]) -> None:
    done = dray(viewer, "explain", "pod/waiting", "-n", "default")
    assert done.stdout.splitlines()[0].startswith("pod default/waiting is pending: ")
    assert "no nodes available to schedule pods" in done.stdout
    notes = [line for line in done.stdout.splitlines() if line.startswith("Note: ")]
    assert len(notes) == 2, "one for what was read in part, one for what was not read"
    assert notes[0].startswith("Note: only namespace default was read, because you may not list all pods, ")
    assert notes[1].startswith("Note: you may not list namespaces, nodes, ")
    assert notes[1].endswith(": what depends on them is not evaluated")


@pytest.mark.parametrize("flags", [("-n", "default"), ()], ids=["namespace", "namespace of the context"])
def test_claims_of_the_namespace(viewer: dict[str, str], flags: tuple[str, ...]) -> None:
    done = dray(viewer, "claims", *flags)
    assert (done.returncode, done.stdout) == (0, "No claims found.\n")
    assert "dray claims: note: only namespace default was read, because you may not list all " in done.stderr


def test_doctor_checks_what_it_can(viewer: dict[str, str]) -> None:
    done = dray(viewer, "doctor")
    assert done.returncode == 0, done.stderr
    assert "you may not list namespaces, nodes, " in done.stderr


@pytest.mark.parametrize("command", ["simulate", "plan", "rebalance"])
def test_placing_pods_needs_nodes(viewer: dict[str, str], command: str) -> None:
    done = dray(viewer, command)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"dray {command}: you may not list nodes, without which no Pod can be placed" in done.stderr


@pytest.mark.parametrize("arguments", [("claims", "-w"), ("record", "--for=1s", "-")], ids=["watch", "record"])
def test_what_is_watched_must_be_readable(viewer: dict[str, str], arguments: tuple[str, ...]) -> None:
    """Informers would wait for the permission for ever."""
    done = dray(viewer, *arguments)
    assert done.returncode == 1
    assert "is forbidden" in done.stderr


def test_devices_need_slices(viewer: dict[str, str]) -> None:
    done = dray(viewer, "devices")
    assert (done.returncode, done.stdout) == (1, "")
    assert "dray devices: without ResourceSlices there are no devices to list" in done.stderr


def test_nothing_readable_is_an_error(viewer: dict[str, str]) -> None:
    done = dray(viewer, "explain", "pod/waiting", "-n", "kube-system")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'cannot list resource "pods" in API group "" in the namespace "kube-system"' in done.stderr


def test_decisions_are_those_of_readable_namespaces(server: Server, viewer: dict[str, str]) -> None:
    done = dray(viewer, "decisions", "waiting")
    assert "pod default/waiting got no node" in done.stdout, done.stderr
    kubectl = Kubectl(server.environment, "default")
    kubectl("create", "namespace", "secret")
    kubectl("wait", "-n", "secret", "--for=create", "serviceaccount/default", "--timeout=60s")
    kubectl("run", "hidden", "--image=i", "-n", "secret", "--restart=Never")
    kubectl("wait", "-n", "secret", "--for=condition=PodScheduled=False", "pod/hidden", "--timeout=60s")
    assert "hidden" in dray(server.environment, "decisions", "-n", "secret").stdout
    seen = dray(viewer, "decisions")
    assert "hidden" not in seen.stdout
    assert "1 decision is hidden" in seen.stderr


@pytest.mark.parametrize("command", VIEWER_COMMANDS)
def test_each_tool_needs_no_more_than_the_role_for_tools(
    server: Server, tools_viewer: dict[str, str], command: str
) -> None:
    done = dray(tools_viewer, *command.split())
    as_admin = dray(server.environment, *command.split())
    assert done.returncode == as_admin.returncode, done.stderr
    assert "may not" not in done.stdout + done.stderr
    assert "forbidden" not in done.stdout + done.stderr


def test_the_namespaced_role_hides_only_what_belongs_to_the_cluster(
    server: Server, tmp_path_factory: pytest.TempPathFactory, viewer: dict[str, str]
) -> None:
    kubectl = Kubectl(server.environment, "default")
    kubectl("apply", "-f", str(ROLES / "tools-viewer-namespaced.yaml"))
    kubectl("create", "serviceaccount", "reader")
    kubectl("create", "rolebinding", "reader", "--role=dray-tools-viewer", "--serviceaccount=default:reader")
    token = kubectl("create", "token", "reader").strip()
    done = dray(environment_of(server, token, tmp_path_factory), "explain", "pod/waiting", "-n", "default")
    assert done.returncode == 0, done.stderr
    hidden = [line for line in done.stdout.splitlines() if line.startswith("Note: you may not list ")]
    assert len(hidden) == 1
    names = hidden[0].removeprefix("Note: you may not list ").partition(":")[0].replace(" and ", ", ").split(", ")
    cluster_scoped = {plural(kind) for kind in PATH_KINDS if kind in CLUSTER_SCOPED}
    assert {name.partition(".")[0] for name in names} == {name.partition(".")[0] for name in cluster_scoped}
