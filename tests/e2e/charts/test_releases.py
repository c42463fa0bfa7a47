"""Releases are installed, upgraded and uninstalled as helm 4 does it, and nothing of them is left.

`HELM` in the environment names a helm of version 4: it then installs the same chart. With `CHARTS`, a folder with a
folder for each chart, it installs them, too; `CHARTS_BEFORE` has earlier versions, from which they are upgraded.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dray.api.document import Document
from tests.e2e.apiserver.calls import Caller, calling
from tests.e2e.charts.release import HOOK, Release, wait
from tests.e2e.kubectl.tool import Kubectl
from tests.servers import Server, running_server

SHAPES: Final = Path(__file__).with_name("templates") / "shapes.yaml"
HELM: Final = os.environ.get("HELM", "")
CHARTS: Final = Path(os.environ["CHARTS"]) if os.environ.get("CHARTS") else None
BEFORE: Final = Path(os.environ["CHARTS_BEFORE"]) if os.environ.get("CHARTS_BEFORE") else None
NAMES: Final = sorted(item.parent.name for item in CHARTS.glob("*/Chart.yaml")) if CHARTS else []
needs_helm = pytest.mark.skipif(not HELM, reason="HELM names no helm 4")
HELM_SECONDS_MAX = 300.0
# What charts need to be told before they render anything.
VALUES: Final = {
    # Its controller wants a node of a control plane.
    "dra-driver-nvidia-gpu": ("--set=gpuResourcesEnabledOverride=true", "--set=controller.affinity=null"),
    "cluster-autoscaler": ("--set=autoDiscovery.clusterName=test",),
}
KEPT: Final = "helm.sh/resource-policy"
DEFINITION: Final = "CustomResourceDefinition"
# They come and go by themselves.
TRANSIENT: Final = frozenset({"events", "leases", "nodes", "pods", "resourceslices", "ipaddresses", "replicasets"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("releases")
    with running_server(folder, "--nodes=1", "--store=memory") as server, finishing_jobs(server):
        yield server


@contextmanager
def finishing_jobs(server: Server) -> Iterator[None]:
    """Let the Pods of Jobs succeed, as the programs of hooks would: on a simulated node none ends by itself."""
    ended = threading.Event()

    def finish() -> None:
        with calling(server) as caller:
            while not ended.wait(0.1):
                selected = "labelSelector=batch.kubernetes.io/job-name&fieldSelector=status.phase=Running"
                for pod in caller.call("GET", f"/api/v1/pods?{selected}").json()["items"]:
                    place = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
                    status = {"status": {"phase": "Succeeded"}}
                    caller.call("PATCH", place, status, content_type="application/merge-patch+json")

    thread = threading.Thread(target=finish)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def shapes() -> list[Document]:
    return list(yaml.safe_load_all(SHAPES.read_text()))


def next_version() -> list[Document]:
    """The chart with another template, a value that is set instead of null, and an object less and more."""
    documents = [item for item in shapes() if item["metadata"]["name"] != "settings"]
    deployment = next(item for item in documents if item["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "LEVEL", "value": ""}]
    deployment["spec"]["revisionHistoryLimit"] = 3
    added = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}, "data": None}
    return [*documents, added]


def objects(caller: Caller) -> set[str]:
    """The paths of all objects that releases could leave behind."""
    found = set()
    for root in group_versions(caller):
        for item in caller.call("GET", root).json()["resources"]:
            if "/" in item["name"] or "list" not in item["verbs"] or item["name"] in TRANSIENT:
                continue
            for obj in caller.call("GET", f"{root}/{item['name']}").json()["items"]:
                metadata = obj["metadata"]
                found.add(f"{root}/{item['name']} {metadata.get('namespace', '')}/{metadata['name']}")
    return found


def group_versions(caller: Caller) -> list[str]:
    groups = caller.call("GET", "/apis").json()["groups"]
    return ["/api/v1", *(f"/apis/{version['groupVersion']}" for group in groups for version in group["versions"])]


def deployment(caller: Caller, namespace: str) -> Any:
    return caller.call("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/controller").json()


def replica_sets(caller: Caller, namespace: str) -> int:
    return len(caller.call("GET", f"/apis/apps/v1/namespaces/{namespace}/replicasets").json()["items"])


def is_rolled_out(caller: Caller, namespace: str) -> bool:
    found = deployment(caller, namespace)
    status = found.get("status") or {}
    return (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas") == status.get("availableReplicas") == status.get("replicas") == 1
    )


@contextmanager
def own_namespace(server: Server, name: str) -> Iterator[str]:
    """A namespace that ends in time."""
    kubectl = Kubectl(server.environment, namespace="")
    kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--timeout=25s")


def write_chart(folder: Path, documents: Sequence[Document], version: str) -> Path:
    """Write the documents as a chart, which has its definitions in a folder of their own."""
    (folder / "templates").mkdir(parents=True)
    (folder / "crds").mkdir()
    (folder / "Chart.yaml").write_text(f"apiVersion: v2\nname: shapes\nversion: {version}\n")
    for number, document in enumerate(documents):
        place = folder / ("crds" if document["kind"] == DEFINITION else "templates")
        # YAML, in which null stays null.
        (place / f"{number}.yaml").write_text(yaml.safe_dump(document))
    return folder


def helm(server: Server, *arguments: str) -> str:
    command = (HELM, *arguments)
    done = subprocess.run(
        command, env=server.environment, capture_output=True, text=True, check=False, timeout=HELM_SECONDS_MAX
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def definitions(caller: Caller) -> set[str]:
    items = caller.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions").json()["items"]
    return {item["metadata"]["name"] for item in items}


def delete_definitions(caller: Caller, names: set[str]) -> None:
    """Delete them and wait: helm leaves definitions to their users."""
    for name in names:
        caller.call("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    wait(lambda: not names & definitions(caller))


def check_rolled_out(caller: Caller, namespace: str, count: int) -> None:
    wait(lambda: is_rolled_out(caller, namespace))
    # A Deployment whose template never equals that of its ReplicaSet would have made further ones by now.
    assert replica_sets(caller, namespace) == count
    daemon_set = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/driver"
    wait(lambda: caller.call("GET", daemon_set).json()["status"].get("numberAvailable") == 1)


def check_stored(release: Release) -> None:
    """What was null is not stored, and belongs to helm like all that the chart has."""
    for document in release.objects:
        assert b":null" not in release.caller.call("GET", release.path(document)).body, document["kind"]
    found = deployment(release.caller, release.namespace)
    environment = found["spec"]["template"]["spec"]["containers"][0]["env"]
    assert environment == [{"name": "PROFILE_PATH"}, {"name": "LEVEL", "value": "4"}]
    owned = next(item["fieldsV1"] for item in found["metadata"]["managedFields"] if item["manager"] == "helm")
    assert "f:revisionHistoryLimit" in owned["f:spec"]
    assert "f:nodeSelector" in owned["f:spec"]["f:template"]["f:spec"]


def test_a_release_is_installed_upgraded_and_uninstalled(server: Server, caller: Caller) -> None:
    before = objects(caller)
    with own_namespace(server, "shapes") as namespace:
        release = Release(caller, namespace)
        release.install(shapes())
        check_rolled_out(caller, namespace, 1)
        check_stored(release)
        release.install(shapes())
        check_rolled_out(caller, namespace, 1)
        release.install(next_version())
        check_rolled_out(caller, namespace, 2)
        assert deployment(caller, namespace)["spec"]["revisionHistoryLimit"] == 3
        release.uninstall(next_version())
    assert objects(caller) == before


@needs_helm
def test_helm_installs_upgrades_and_uninstalls_the_same_chart(server: Server, caller: Caller, tmp_path: Path) -> None:
    before = objects(caller)
    first = write_chart(tmp_path / "first", shapes(), "1.0.0")
    second = write_chart(tmp_path / "second", next_version(), "2.0.0")
    with own_namespace(server, "shapes") as namespace:
        own = (f"--namespace={namespace}", "--timeout=60s")
        helm(server, "install", "shapes", str(first), *own)
        check_rolled_out(caller, namespace, 1)
        helm(server, "upgrade", "shapes", str(second), *own, "--force-conflicts")
        check_rolled_out(caller, namespace, 2)
        helm(server, "rollback", "shapes", "1", *own, "--force-conflicts")
        check_rolled_out(caller, namespace, 2)
        assert "revisionHistoryLimit" in deployment(caller, namespace)["spec"]
        helm(server, "uninstall", "shapes", *own)
        delete_definitions(caller, {"things.shapes.example.com"})
    assert objects(caller) == before


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_a_chart_of_others_comes_and_goes(server: Server, caller: Caller, name: str) -> None:
    assert CHARTS is not None
    chart, before, defined = CHARTS / name, objects(caller), definitions(caller)
    earlier = BEFORE / name if BEFORE and (BEFORE / name / "Chart.yaml").exists() else chart
    with own_namespace(server, f"chart-{name}") as namespace:
        own = (f"--namespace={namespace}", "--timeout=120s", "--force-conflicts")
        helm(server, "install", "release", str(earlier), *own, "--wait=watcher", *VALUES.get(name, ()))
        for file in sorted(chart.glob("crds/*.yaml")):
            # Helm does not upgrade definitions: users do, or a hook.
            if file.name != "kustomization.yaml":
                Kubectl(server.environment, namespace="")(
                    "apply", "--server-side", "--force-conflicts", "-f", str(file)
                )
        helm(server, "upgrade", "release", str(chart), *own, *VALUES.get(name, ()))
        helm(server, "rollback", "release", "1", *own)
        helm(server, "uninstall", "release", f"--namespace={namespace}", "--timeout=120s")
        delete_definitions(caller, definitions(caller) - defined)
    left = {item for item in objects(caller) - before if not _is_kept(caller, item)}
    assert left == set()


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_a_chart_of_others_is_rendered_and_applied_by_kubectl(
    server: Server, caller: Caller, name: str, tmp_path: Path
) -> None:
    """By kubectl apply of both kinds, diff, replace and prune."""
    assert CHARTS is not None
    before, defined = objects(caller), definitions(caller)
    with own_namespace(server, f"kubectl-{name}") as namespace:
        # Some charts have objects in several namespaces, and some name none.
        kubectl = Kubectl(server.environment, namespace="")
        own = (f"--namespace={namespace}", "--no-hooks", "--kube-version=1.37.0", *VALUES.get(name, ()))
        rendered = helm(server, "template", "release", str(CHARTS / name), "--include-crds", *own)
        documents = [each for each in yaml.safe_load_all(rendered) if each and each["metadata"]["name"] != namespace]
        for document in documents:
            document["metadata"].setdefault("labels", {})["pruned-by"] = name
            document["metadata"]["labels"] = document["metadata"]["labels"] or {}
        crds, others = (
            [each for each in documents if (each["kind"] == DEFINITION) == wanted] for wanted in (True, False)
        )
        file, fewer = tmp_path / "all.yaml", tmp_path / "fewer.yaml"
        if crds:
            # Too large for the annotation of a client-side apply.
            file.write_text(yaml.safe_dump_all(crds))
            kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
            kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(file))
        file.write_text(yaml.safe_dump_all(others))
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
        kubectl("diff", "--server-side", "--force-conflicts", "-f", str(file))
        kubectl("apply", "-f", str(file))
        kubectl("diff", "-f", str(file))
        written = resource_versions(caller, namespace)
        kubectl("apply", "-f", str(file))
        assert resource_versions(caller, namespace) == written
        kubectl("replace", "--save-config", "-f", str(file))
        pruned = next((each for each in others if each["kind"] in ("ConfigMap", "Secret", "Service")), None)
        if pruned is not None:
            fewer.write_text(yaml.safe_dump_all([each for each in others if each is not pruned]))
            kubectl("apply", "--prune", "-l", f"pruned-by={name}", "-f", str(fewer))
            assert caller.get(Release(caller, "default").path(pruned)).status == 404
        kubectl("delete", "--ignore-not-found", "--timeout=60s", "-f", str(file))
        delete_definitions(caller, definitions(caller) - defined)
    assert {item for item in objects(caller) - before if not _is_kept(caller, item)} == set()


def resource_versions(caller: Caller, namespace: str) -> dict[str, str]:
    """Those of what nobody but its author writes."""
    kinds = ("serviceaccounts", "configmaps", "services")
    items = [item for kind in kinds for item in caller.get(f"/api/v1/namespaces/{namespace}/{kind}").json()["items"]]
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items}


def _is_kept(caller: Caller, item: str) -> bool:
    """Whether helm leaves an object: a hook without a delete policy, or what is to be kept and is in its namespace."""
    collection, _, place = item.partition(" ")
    namespace, _, name = place.partition("/")
    root, _, resource = collection.rpartition("/")
    paths = [f"{root}/namespaces/{namespace}/{resource}/{name}" if namespace else f"{collection}/{name}"]
    if namespace:
        paths.append(f"/api/v1/namespaces/{namespace}")
    return any({HOOK, KEPT} & annotations_of(caller, path).keys() for path in paths)


def annotations_of(caller: Caller, path: str) -> dict[str, str]:
    return dict(caller.get(path).json().get("metadata", {}).get("annotations") or {})
