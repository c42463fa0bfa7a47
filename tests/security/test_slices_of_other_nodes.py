"""A driver or an agent that was taken over on one node writes ResourceSlices of others: the deployed policies refuse.

The tokens are those that the API server gives to a Pod or for a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import yaml
from tools.generate_deploy import CHART, NAMESPACE, RBAC, render, values

from dray.api.document import Document
from tests.e2e.apiserver.calls import Answer, Caller, caller, calling
from tests.servers import Server, running_server

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
MERGE: Final = "application/merge-patch+json"
NODES: Final = ("node-a", "node-b")
PATHS: Final = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "DaemonSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
DEPLOYED: Final = {
    "example-driver": render(CHART / "templates" / "driver.yaml", values(driver={"enabled": True})),
    "dray-node": (RBAC / "node.yaml").read_text(),
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Two nodes, with a Pod of each account on them."""

    server: Server
    admin: Caller

    def token(self, account: str, bound_to: Document | None) -> str:
        """A token of a service account; it is bound to a Pod, to a node or to nothing."""
        path = f"{PATHS['ServiceAccount']}/{account}/token"
        spec: Document = {"expirationSeconds": 3600} | ({"boundObjectRef": bound_to} if bound_to else {})
        answer = self.admin.call("POST", path, {"spec": spec})
        assert answer.status == 201, answer.body
        return str(answer.json()["status"]["token"])

    def of_pod(self, account: str, node: str) -> Caller:
        """A caller with the token that a Pod on the node gets."""
        return caller(
            self.server, self.token(account, {"apiVersion": "v1", "kind": "Pod", "name": f"{account}-{node}"})
        )

    def of_node(self, account: str, node: str) -> Caller:
        """A caller with a token for the node itself."""
        return caller(self.server, self.token(account, {"apiVersion": "v1", "kind": "Node", "name": node}))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    flags = ("--store=memory", "--disable-admission-plugins=TaintNodesByCondition")
    with (
        running_server(tmp_path_factory.mktemp("server"), *flags, command="apiserver") as server,
        calling(server) as admin,
    ):
        create(admin, "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for node in NODES:
            create(admin, "/api/v1/nodes", {"metadata": {"name": node}})
        for account, text in DEPLOYED.items():
            for document in yaml.safe_load_all(text):
                create(admin, PATHS[document["kind"]], document)
            for node in NODES:
                create(admin, f"/api/v1/namespaces/{NAMESPACE}/pods", pod_of(account, node))
        yield Cluster(server, admin)


@pytest.fixture(autouse=True)
def no_slices(cluster: Cluster) -> None:
    assert cluster.admin.call("DELETE", SLICES).status == 200


def create(admin: Caller, path: str, document: Document) -> None:
    answer = admin.call("POST", path, document)
    assert answer.status == 201, answer.body


def pod_of(account: str, node: str) -> Document:
    spec = {"serviceAccountName": account, "nodeName": node, "containers": [{"name": "c", "image": "i"}]}
    return {"metadata": {"name": f"{account}-{node}"}, "spec": spec}


def slice_of(node: str, name: str = "s", **place: Any) -> Document:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    where = place or {"nodeName": node}
    return {"metadata": {"name": name}, "spec": {"driver": "gpu.example.com", "pool": pool, **where}}


def refused(answer: Answer, why: str = "a token of node node-a may write only the ResourceSlices of this node") -> bool:
    return answer.status == 403 and answer.message.endswith(f"denied request: {why}")


@pytest.mark.parametrize("account", DEPLOYED)
@pytest.mark.parametrize("bound", ["of_pod", "of_node"])
def test_the_slices_of_the_own_node_can_be_written(cluster: Cluster, account: str, bound: str) -> None:
    driver = getattr(cluster, bound)(account, "node-a")
    assert driver.call("POST", SLICES, slice_of("node-a")).status == 201
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert driver.call("PATCH", f"{SLICES}/s", labels, content_type=MERGE).status == 200
    assert driver.call("DELETE", f"{SLICES}/s").status == 200
    driver.close()


@pytest.mark.parametrize("account", DEPLOYED)
@pytest.mark.parametrize("bound", ["of_pod", "of_node"])
def test_the_slices_of_other_nodes_cannot(cluster: Cluster, account: str, bound: str) -> None:
    create(cluster.admin, SLICES, slice_of("node-b"))
    driver = getattr(cluster, bound)(account, "node-a")
    assert refused(driver.call("POST", SLICES, slice_of("node-b", "new")))
    assert refused(driver.call("PATCH", f"{SLICES}/s", {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE))
    assert refused(driver.call("DELETE", f"{SLICES}/s"))
    assert refused(driver.call("DELETE", SLICES))
    beta = "/apis/resource.k8s.io/v1beta1/resourceslices"
    assert refused(driver.call("DELETE", f"{beta}/s"))
    assert cluster.admin.get(f"{SLICES}/s").json()["metadata"].get("labels") is None
    driver.close()


LABELLED: Final = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}


@pytest.mark.parametrize("place", [{"allNodes": True}, {"nodeSelector": LABELLED}])
def test_devices_of_all_nodes_cannot_be_published(cluster: Cluster, place: Document) -> None:
    driver = cluster.of_pod("example-driver", "node-a")
    assert refused(driver.call("POST", SLICES, slice_of("", **place)))
    driver.close()


def test_a_slice_cannot_be_taken_from_another_node(cluster: Cluster) -> None:
    create(cluster.admin, SLICES, slice_of("node-b"))
    driver = cluster.of_pod("example-driver", "node-a")
    stolen = {"spec": {"nodeName": "node-a"}}
    assert driver.call("PATCH", f"{SLICES}/s", stolen, content_type=MERGE).status in (403, 422)
    assert cluster.admin.get(f"{SLICES}/s").json()["spec"]["nodeName"] == "node-b"
    driver.close()


@pytest.mark.parametrize("account", DEPLOYED)
def test_a_token_without_a_node_writes_nothing(cluster: Cluster, account: str) -> None:
    """Not even slices without a node."""
    thief = caller(cluster.server, cluster.token(account, None))
    why = "the token is bound to no node; ResourceSlices are written with the token of a Pod or of a node"
    for body in (slice_of("node-a"), slice_of("", allNodes=True)):
        assert refused(thief.call("POST", SLICES, body), why)
    thief.close()


def test_others_are_not_restricted(cluster: Cluster) -> None:
    create(cluster.admin, SLICES, slice_of("", allNodes=True))
