"""Attacks with a node's credentials: claims of others, tokens for other services, and addresses of others."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import APIError, ForbiddenError, InvalidError
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server
from tests.security.requests import ADMIN, APPLY, MERGE, Requester

NODE = Requester("system:node:n1", ("system:nodes",))
ACCOUNT = "core/v1/serviceaccounts/default/token@default"
RBAC = "rbac.authorization.k8s.io"


@asynccontextmanager
async def cluster() -> AsyncIterator[Document]:
    """Run a server with a Pod on the node `n1` that has tokens for the API server and for `vault`; return the Pod."""
    sources = [
        {"serviceAccountToken": {"path": "api"}},
        {"serviceAccountToken": {"path": "vault", "audience": "vault"}},
    ]
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "nodeName": "n1",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "x", "resources": {"limits": {"example.com/gpu": "1"}}}],
            "volumes": [{"name": "tokens", "projected": {"sources": sources}}],
        },
    }
    async with in_process_server(SystemClock(), random.Random(1), "default") as server:
        ADMIN.connect(server)
        NODE.connect(server)
        pod = await ADMIN.create("core/v1/pods@default", body)
        await NODE.until_allowed("create", ACCOUNT, token_request(pod, "vault"))
        yield pod


def token_request(pod: Document, *audiences: str) -> Document:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
    spec: dict[str, Any] = {"boundObjectRef": reference, "expirationSeconds": 3600}
    if audiences:
        spec["audiences"] = list(audiences)
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


async def test_a_node_cannot_name_a_claim_in_a_pods_extended_resources_to_read_it() -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "foreign"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    }
    request = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "gpu"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "foreign", "requestMappings": [request]}}
    async with cluster():
        await ADMIN.create("resource.k8s.io/v1/resourceclaims@default", claim)
        with pytest.raises(ForbiddenError) as caught:
            await NODE.request("patch", "core/v1/pods/p/status@default", {"status": status}, content_type=MERGE)
        assert caught.value.message == ('pods "p" is forbidden: node "n1" cannot update extended resource claim status')
        with pytest.raises(ForbiddenError):
            await NODE.request("get", "resource.k8s.io/v1/resourceclaims/foreign@default")
        running = {"status": {"phase": "Running"}}
        patched = await NODE.request("patch", "core/v1/pods/p/status@default", running, content_type=MERGE)
        assert patched["status"]["phase"] == "Running"


async def test_a_node_gets_tokens_only_for_the_audiences_of_its_pods() -> None:
    async with cluster() as pod:
        await NODE.create(ACCOUNT, token_request(pod))
        await NODE.create(ACCOUNT, token_request(pod, "vault"))
        with pytest.raises(ForbiddenError) as caught:
            await NODE.create(ACCOUNT, token_request(pod, "bank"))
        assert caught.value.message == (
            'serviceaccounts "default" is forbidden: audience "bank" not found in pod spec volume, system:node:n1 is '
            "not authorized to request tokens for this audience"
        )
        with pytest.raises(ForbiddenError, match="node may only request 0 or 1 audiences"):
            await NODE.create(ACCOUNT, token_request(pod, "vault", "bank"))


async def test_an_administrator_can_grant_nodes_a_further_audience() -> None:
    rules = [{"apiGroups": [""], "resources": ["bank"], "verbs": ["request-serviceaccounts-token-audience"]}]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": "bank"}, "rules": rules}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "bank"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "bank"},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": "system:nodes"}],
    }
    async with cluster() as pod:
        await ADMIN.create(f"{RBAC}/v1/clusterroles", role)
        await ADMIN.create(f"{RBAC}/v1/clusterrolebindings", binding)
        answer = await NODE.until_allowed("create", ACCOUNT, token_request(pod, "bank"))
        assert answer["spec"]["audiences"] == ["bank"]


@pytest.mark.parametrize(
    "spec", [{"podCIDR": "0.0.0.0/1"}, {"podCIDRs": ["0.0.0.0/1"]}, {"podCIDR": "10.244.1.0/24", "podCIDRs": []}]
)
async def test_a_node_cannot_choose_the_addresses_of_its_pods(spec: Document) -> None:
    """All nodes would route them to it; and a range that covers the cluster's would leave none for others."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    text = 'nodes "n1" is forbidden: node "n1" is not allowed to choose the addresses of its Pods'
    async with cluster():
        with pytest.raises(ForbiddenError, match=text):
            await NODE.create("core/v1/nodes", {**node, "spec": spec})
        await NODE.create("core/v1/nodes", node)
        for path in ("core/v1/nodes/n1", "core/v1/nodes/n1/status"):
            with suppress(ForbiddenError):
                await NODE.request("patch", path, {"spec": spec}, content_type=MERGE)
            assert "podCIDR" not in (await NODE.request("get", "core/v1/nodes/n1"))["spec"]
        allocated = {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}
        await ADMIN.request("patch", "core/v1/nodes/n1", {"spec": allocated}, content_type=MERGE)
        nothing = {"podCIDR": None, "podCIDRs": None}
        with pytest.raises(InvalidError, match="node updates may not change podCIDR"):
            await NODE.request("patch", "core/v1/nodes/n1", {"spec": nothing}, content_type=MERGE)
        # Either of the two follows from the other.
        await NODE.request("patch", "core/v1/nodes/n1", {"spec": {"podCIDR": None}}, content_type=MERGE)
        assert (await NODE.request("get", "core/v1/nodes/n1"))["spec"] == allocated
        await NODE.request("patch", "core/v1/nodes/n1", {"spec": {"unschedulable": True}}, content_type=MERGE)


_RANGES: Document = {"podCIDR": "0.0.0.0/1", "podCIDRs": ["0.0.0.0/1"]}
_OWN: Document = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": _RANGES}
_JSON_PATCHES = [{"op": "add", "path": f"/spec/{name}", "value": value} for name, value in _RANGES.items()]


@pytest.mark.parametrize("subresource", ["", "/status"])
@pytest.mark.parametrize(
    ("verb", "body", "content_type"),
    [
        ("update", _OWN, "application/json"),
        ("patch", _OWN, MERGE),
        ("patch", _OWN, "application/strategic-merge-patch+json"),
        ("patch", _JSON_PATCHES, "application/json-patch+json"),
        ("patch", [{"op": "replace", "path": "", "value": _OWN}], "application/json-patch+json"),
        ("patch", _OWN, APPLY),
        ("patch", {**_OWN, "spec": {"podCIDRs": ["::/1"]}}, APPLY),
    ],
)
async def test_a_node_cannot_choose_addresses_by_any_verb(
    verb: str, body: Any, content_type: str, subresource: str
) -> None:
    query = {"fieldManager": "m", "force": "true"} if content_type == APPLY else None
    async with cluster():
        for exists in (False, True):
            if exists:
                await NODE.create("core/v1/nodes", {key: value for key, value in _OWN.items() if key != "spec"})
            with suppress(APIError):
                await NODE.request(verb, f"core/v1/nodes/n1{subresource}", body, content_type=content_type, query=query)
            nodes = (await ADMIN.request("list", "core/v1/nodes"))["items"]
            assert [{"podCIDR", "podCIDRs"} & node["spec"].keys() for node in nodes] == [set()] * exists


async def test_a_node_cannot_choose_addresses_by_the_name_of_another_node() -> None:
    """Neither for itself with a generated name, nor for others, nor by deleting and creating again."""
    other = {**_OWN, "metadata": {"generateName": "n"}}
    async with cluster():
        await ADMIN.create("core/v1/nodes", {**_OWN, "spec": {"podCIDR": "10.244.1.0/24"}})
        for verb, path, body in (
            ("create", "core/v1/nodes", other),
            ("create", "core/v1/nodes", {**_OWN, "metadata": {"name": "n2"}}),
            ("delete", "core/v1/nodes/n1", None),
        ):
            with pytest.raises(ForbiddenError):
                await NODE.request(verb, path, body)
        assert (await ADMIN.request("get", "core/v1/nodes/n1"))["spec"]["podCIDR"] == "10.244.1.0/24"
