"""The chain of authorizers, access reviews as in Kubernetes, and impersonation."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import BadRequestError, ForbiddenError, InvalidError
from dray.apiserver.authentication.impersonation import impersonate, is_impersonating
from dray.apiserver.authorization.authorizer import Authorizer, attributes_of
from dray.apiserver.authorization.bootstrap import bootstrap_documents
from dray.apiserver.authorization.node import NodeAuthorizer
from dray.apiserver.authorization.node_index import NodeIndex
from dray.apiserver.authorization.rbac import RBACIndex
from dray.apiserver.request import ANONYMOUS, Attributes, UserInfo

ADMIN = UserInfo("admin", "admin-uid", ("system:masters", "system:authenticated"))
ALICE = UserInfo("alice", groups=("devs", "system:authenticated"))
CLERK = UserInfo("clerk", groups=("system:authenticated",))
N1 = UserInfo("system:node:n1", groups=("system:nodes", "system:authenticated"))


def may_impersonate(resources: str, group: str, *names: str) -> Document:
    return {
        "apiGroups": [group],
        "resources": resources.split(),
        "verbs": ["impersonate"],
        "resourceNames": list(names),
    }


@pytest.fixture(scope="module")
def authorizer() -> Authorizer:
    rbac = RBACIndex()
    role = {
        "kind": "ClusterRole",
        "metadata": {"name": "clerk"},
        "rules": [
            may_impersonate("users", "", "bob", "system:anonymous"),
            may_impersonate("groups", "", "devs"),
            may_impersonate("userextras/scopes", "authentication.k8s.io", "view"),
            may_impersonate("uids", "authentication.k8s.io", "7"),
        ],
    }
    binding = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "clerk"},
        "roleRef": {"kind": "ClusterRole", "name": "clerk"},
        "subjects": [{"kind": "User", "name": "clerk"}],
    }
    edit = {
        "kind": "RoleBinding",
        "metadata": {"name": "clerk", "namespace": "x"},
        "roleRef": {"kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "User", "name": "clerk"}],
    }
    for document in [*bootstrap_documents(), role, binding, edit]:
        rbac.apply(document)
    return Authorizer(rbac, NodeAuthorizer(NodeIndex()))


def pods(verb: str = "get", **more: str) -> Document:
    return {"resourceAttributes": {"verb": verb, "resource": "pods", **more}}


def test_system_masters_are_always_allowed(authorizer: Authorizer) -> None:
    assert authorizer.self_subject_access_review(ADMIN, pods(namespace="golden")) == {"allowed": True}
    assert authorizer.authorize(Attributes(ADMIN, "eat", path="/cake")).allowed


def test_masters_do_not_need_the_binding() -> None:
    empty = Authorizer(RBACIndex(), NodeAuthorizer(NodeIndex()))
    assert empty.authorize(Attributes(ADMIN, "get", resource="pods")).allowed


def test_a_denial_has_no_reason(authorizer: Authorizer) -> None:
    assert authorizer.self_subject_access_review(ALICE, pods()) == {"allowed": False}
    spec = {"user": "alice", "groups": ["devs"], "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}
    assert authorizer.subject_access_review(spec) == {"allowed": False}
    assert authorizer.local_subject_access_review({"user": "alice", **pods(namespace="x")}, "x") == {"allowed": False}


def test_an_allowance_has_one(authorizer: Authorizer) -> None:
    spec = {"groups": ["system:authenticated"], "nonResourceAttributes": {"verb": "get", "path": "/apis/apps"}}
    assert authorizer.subject_access_review(spec) == {
        "allowed": True,
        "reason": 'RBAC: allowed by ClusterRoleBinding "system:discovery" of ClusterRole "system:discovery" '
        'to Group "system:authenticated"',
    }


def test_an_empty_review_is_invalid(authorizer: Authorizer) -> None:
    with pytest.raises(InvalidError) as caught:
        authorizer.subject_access_review({})
    status = caught.value.status()
    assert status["message"] == (
        '.authorization.k8s.io "" is invalid: [spec.resourceAttributes: Invalid value: null: exactly one of '
        "nonResourceAttributes or resourceAttributes must be specified, "
        'spec.user: Invalid value: "": at least one of user or group must be specified]'
    )
    assert status["details"] == {
        "group": "authorization.k8s.io",
        "causes": [
            {
                "reason": "FieldValueInvalid",
                "message": "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes "
                "must be specified",
                "field": "spec.resourceAttributes",
            },
            {
                "reason": "FieldValueInvalid",
                "message": 'Invalid value: "": at least one of user or group must be specified',
                "field": "spec.user",
            },
        ],
    }


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"user": "a", **pods(namespace="y")}, "must match metadata.namespace"),
        ({"user": "a", "nonResourceAttributes": {"verb": "get", "path": "/"}}, "disallowed on this kind of request"),
    ],
)
def test_a_local_review_stays_in_its_namespace(authorizer: Authorizer, spec: Document, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        authorizer.local_subject_access_review(spec, "x")


def test_both_kinds_of_attributes_are_one_too_many(authorizer: Authorizer) -> None:
    with pytest.raises(InvalidError, match="cannot be specified in combination with resourceAttributes"):
        authorizer.self_subject_access_review(ALICE, {**pods(), "nonResourceAttributes": {"path": "/"}})


@pytest.mark.parametrize(
    ("selector", "allowed"),
    [
        ({"rawSelector": "spec.nodeName=n1"}, True),
        ({"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}, True),
        ({"requirements": [{"key": "spec.nodeName", "operator": "NotIn", "values": ["n1"]}]}, False),
        ({"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1", "n2"]}]}, False),
        ({"requirements": [{"key": "a", "operator": "NotIn", "values": ["b,spec.nodeName=n1"]}]}, False),
        ({}, False),
    ],
)
def test_a_review_asks_with_selectors_too(authorizer: Authorizer, selector: Document, allowed: bool) -> None:
    spec = {"resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": selector}}
    assert authorizer.self_subject_access_review(N1, spec)["allowed"] is allowed
    assert attributes_of(N1, spec).user is N1


def test_rules_reviews(authorizer: Authorizer) -> None:
    status = authorizer.self_subject_rules_review(ALICE, "golden")
    assert list(status) == ["resourceRules", "nonResourceRules", "incomplete"]
    assert [rule["resources"] for rule in status["resourceRules"]] == [
        ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        ["selfsubjectreviews"],
    ]
    assert status["incomplete"] is False
    of_node = authorizer.self_subject_rules_review(N1, "golden")
    assert (of_node["incomplete"], of_node["evaluationError"]) == (
        True,
        "node authorizer does not support user rule resolution",
    )
    with pytest.raises(BadRequestError, match="no namespace on request"):
        authorizer.self_subject_rules_review(ALICE, "")


@pytest.mark.parametrize(
    ("verb", "selector", "allowed"),
    [
        ("watch", "metadata.name=n1", True),
        ("list", "spec.x=y,metadata.name==n1", True),
        ("list", "metadata.name!=n1", False),
        ("list", "metadata.name=n2", False),
        ("list", r"a=b\\,metadata.name=n1", True),
        ("list", r"a=b\,metadata.name=n1", False),
        ("list", r"metadata.name=n1\,x", False),
        ("list", "", False),
    ],
)
def test_a_watch_of_one_object_is_about_that_object(
    authorizer: Authorizer, verb: str, selector: str, allowed: bool
) -> None:
    attributes = Attributes(N1, verb, resource="nodes", field_selector=selector)
    if allowed:
        authorizer.check(attributes)
    else:
        with pytest.raises(ForbiddenError):
            authorizer.check(attributes)


# --- Impersonation.


def acting(authorizer: Authorizer, user: UserInfo, *headers: tuple[str, str]) -> UserInfo:
    return impersonate(headers, user, authorizer.authorize)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param([], CLERK, id="no headers"),
        pytest.param([("Impersonate-User", "bob")], UserInfo("bob", groups=("system:authenticated",)), id="user"),
        pytest.param(
            [("Impersonate-User", "bob"), ("Impersonate-Group", "devs")],
            UserInfo("bob", groups=("devs", "system:authenticated")),
            id="group",
        ),
        pytest.param(
            [("impersonate-user", "bob"), ("Impersonate-Uid", "7"), ("Impersonate-Extra-Scopes", "view")],
            UserInfo("bob", "7", ("system:authenticated",), {"scopes": ("view",)}),
            id="uid and extra",
        ),
        pytest.param([("Impersonate-User", "system:anonymous")], ANONYMOUS, id="anonymous"),
        pytest.param(
            [("Impersonate-User", "system:serviceaccount:x:robot")],
            UserInfo(
                "system:serviceaccount:x:robot",
                groups=("system:serviceaccounts", "system:serviceaccounts:x", "system:authenticated"),
            ),
            id="service account, by the edit role",
        ),
    ],
)
def test_acting_as_someone_one_may_be(
    authorizer: Authorizer, headers: list[tuple[str, str]], expected: UserInfo
) -> None:
    assert acting(authorizer, CLERK, *headers) == expected


def test_an_administrator_may_be_anyone(authorizer: Authorizer) -> None:
    user = acting(authorizer, ADMIN, ("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters"))
    assert user.groups == ("system:masters", "system:authenticated")
    assert "system:masters" not in acting(authorizer, ADMIN, ("Impersonate-User", "bob")).groups


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (
            [("Impersonate-User", "root")],
            'users "root" is forbidden: User "clerk" cannot impersonate resource "users" in API group "" '
            "at the cluster scope",
        ),
        (
            [("Impersonate-User", "bob"), ("Impersonate-Group", "devs"), ("Impersonate-Group", "system:masters")],
            'groups "system:masters" is forbidden: User "clerk" cannot impersonate resource "groups" in API group "" '
            "at the cluster scope",
        ),
        (
            [("Impersonate-User", "bob"), ("Impersonate-Extra-Scopes", "all")],
            'userextras.authentication.k8s.io "all" is forbidden: User "clerk" cannot impersonate resource '
            '"userextras/scopes" in API group "authentication.k8s.io" at the cluster scope',
        ),
        (
            [("Impersonate-User", "bob"), ("Impersonate-Uid", "8")],
            'uids.authentication.k8s.io "8" is forbidden: User "clerk" cannot impersonate resource "uids" in API group '
            '"authentication.k8s.io" at the cluster scope',
        ),
        (
            [("Impersonate-User", "system:serviceaccount:kube-system:root")],
            'serviceaccounts "root" is forbidden: User "clerk" cannot impersonate resource "serviceaccounts" in '
            'API group "" in the namespace "kube-system"',
        ),
    ],
)
def test_impersonation_without_permission_is_rejected(
    authorizer: Authorizer, headers: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(ForbiddenError) as caught:
        acting(authorizer, CLERK, *headers)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "header", [("Impersonate-Group", "devs"), ("Impersonate-Uid", "7"), ("Impersonate-Extra-a", "b")]
)
def test_groups_need_a_user(authorizer: Authorizer, header: tuple[str, str]) -> None:
    with pytest.raises(BadRequestError, match="without impersonating a user"):
        acting(authorizer, ADMIN, header)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["Accept"], False), (["Accept", "IMPERSONATE-user"], True), (["impersonate-extra-x"], True)],
)
def test_impersonation_is_noticed(names: Any, expected: bool) -> None:
    assert is_impersonating(names) is expected
