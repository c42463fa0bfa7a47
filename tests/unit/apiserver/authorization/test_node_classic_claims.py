"""A node's access to classic claims: reading those of its Pods, and releasing their reservations."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ForbiddenError
from dray.apiserver.authorization.node import NodeAuthorizer
from dray.apiserver.authorization.node_index import NodeIndex
from dray.apiserver.authorization.node_restriction import check_node_write
from dray.apiserver.request import Attributes, UserInfo

N1 = UserInfo("system:node:n1", groups=("system:nodes", "system:authenticated"))
CDI = "cdi.k8s.io"
NO_RELATION = "no relationship found between node 'n1' and this object"


def pod(name: str, node: str) -> Document:
    entries = [
        {"name": "named", "resourceClaimName": f"{name}-shared"},
        {"name": "gpu", "template": {"spec": {"resourceClassName": "gpu"}}},
        {"name": "new", "resourceClaimTemplateName": "t"},
    ]
    return {
        "metadata": {"namespace": "x", "name": name, "uid": f"{name}-uid"},
        "spec": {"nodeName": node, "resourceClaims": entries},
    }


@pytest.fixture
def index() -> NodeIndex:
    built = NodeIndex()
    for name, node in (("p", "n1"), ("q", "n2")):
        built.apply_pod(pod(name, node))
    return built


def asks(verb: str, name: str, subresource: str = "", group: str = CDI) -> Attributes:
    return Attributes(
        N1, verb, group=group, resource="resourceclaims", subresource=subresource, namespace="x", name=name
    )


@pytest.mark.behaviour("CL-45")
@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        pytest.param(asks("get", "p-shared"), "", id="get by name"),
        pytest.param(asks("get", "p-gpu"), "", id="get its own"),
        pytest.param(asks("update", "p-gpu", "status"), "", id="update"),
        pytest.param(asks("patch", "p-shared", "status"), "", id="patch"),
        pytest.param(asks("get", "q-gpu"), NO_RELATION, id="another node's"),
        pytest.param(asks("update", "q-shared", "status"), NO_RELATION, id="update another node's"),
        pytest.param(asks("get", "p-new"), NO_RELATION, id="not a classic entry"),
        pytest.param(asks("get", "p-gpu", group="resource.k8s.io"), NO_RELATION, id="of the other group"),
        pytest.param(asks("update", "p-gpu"), "can only get claims, and update their status", id="the claim itself"),
        pytest.param(asks("delete", "p-gpu"), "can only get claims, and update their status", id="delete"),
        pytest.param(asks("list", ""), "can only get claims, and update their status", id="list"),
    ],
)
def test_a_node_reaches_the_claims_of_its_pods_only(index: NodeIndex, attributes: Attributes, reason: str) -> None:
    decision = NodeAuthorizer(index).authorize(attributes)
    assert (decision.allowed, decision.reason) == (not reason, reason)


def claim(*users: str, **status: Any) -> Document:
    reserved = [{"apiVersion": "v1", "kind": "Pod", "name": user, "uid": f"{user}-uid"} for user in users]
    return {
        "metadata": {"name": "c", "namespace": "x"},
        "status": {"phase": "Allocated", "reservedFor": reserved, **status},
    }


OLD = claim("p", "q", "gone")


@pytest.mark.behaviour("CL-45")
@pytest.mark.parametrize(
    ("new", "why"),
    [
        pytest.param(claim("q", "gone"), "", id="its own"),
        pytest.param(claim("p", "q", "gone"), "", id="nothing"),
        pytest.param(claim("p", "gone"), "can only remove pods with spec.nodeName set to itself", id="another node's"),
        pytest.param(claim("p", "q"), "can only remove pods with spec.nodeName set to itself", id="one that is gone"),
        pytest.param(claim("p", "q", "gone", "new"), "can only remove users", id="add"),
        pytest.param(claim("q", "gone", phase="Pending"), "can only remove users", id="free it"),
        pytest.param(claim("q", "gone", attributes={"a": "b"}), "can only remove users", id="attributes"),
    ],
)
def test_a_node_takes_its_own_pods_out_of_a_claims_users(index: NodeIndex, new: Document, why: str) -> None:
    attributes, old = asks("update", "p-shared", "status"), copy.deepcopy(OLD)
    if not why:
        check_node_write(attributes, new, old, index)
        return
    with pytest.raises(ForbiddenError, match=why):
        check_node_write(attributes, new, old, index)


@pytest.mark.parametrize(("new", "old"), [(OLD, None), (None, OLD)])
def test_a_node_neither_makes_nor_deletes_claims(index: NodeIndex, new: Document | None, old: Document | None) -> None:
    with pytest.raises(ForbiddenError, match="can only update the status of classic claims"):
        check_node_write(asks("create", "p-shared"), new, old, index)
