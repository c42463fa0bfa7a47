"""Privilege escalation checks."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ForbiddenError, NotFoundError
from dray.apiserver.authorization.escalation import check_binding_write, check_role_write
from dray.apiserver.authorization.rbac import RBACIndex
from dray.apiserver.request import UserInfo

ALICE = UserInfo("alice", groups=("devs", "system:authenticated"))
MASTER = UserInfo("root", groups=("system:masters",))
RBAC = "rbac.authorization.k8s.io"


def rule(verbs: str, resources: str = "pods", group: str = "", **more: Any) -> Document:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()} | more


def role(*rules: Document, name: str = "new", namespace: str = "x") -> Document:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"kind": "Role" if namespace else "ClusterRole", "metadata": metadata, "rules": list(rules)}


def bound(name: str, namespace: str = "x", kind: str = "ClusterRole") -> Document:
    metadata = {"name": "new"} | ({"namespace": namespace} if namespace else {})
    return {
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "User", "name": "bob"}],
    }


def held(*rules: Document) -> RBACIndex:
    """Return alice's rules in the namespace x."""
    index = RBACIndex()
    index.apply(role(*rules, name="hers", namespace=""))
    index.apply(role(rule("get list", "pods secrets"), name="big", namespace=""))
    index.apply(role({"nonResourceURLs": ["/a/b"], "verbs": ["get"]}, name="paths", namespace=""))
    index.apply(bound("hers") | {"subjects": [{"kind": "User", "name": "alice"}]})
    return index


def try_role(index: RBACIndex, new: Document, old: Document | None = None, user: UserInfo = ALICE) -> None:
    check_role_write(index, user, new, old, index.authorize)


def try_binding(index: RBACIndex, new: Document, user: UserInfo = ALICE, old: Document | None = None) -> None:
    check_binding_write(index, user, new, old, index.authorize)


@pytest.mark.parametrize(
    ("owned", "wanted"),
    [
        pytest.param(rule("get list"), rule("get"), id="fewer verbs"),
        pytest.param(rule("*"), rule("get delete"), id="any verb"),
        pytest.param(rule("get", "*"), rule("get", "pods pods/log"), id="any resource"),
        pytest.param(rule("get", "*/scale"), rule("get", "pods/scale"), id="any scale"),
        pytest.param(rule("get"), rule("get", resourceNames=["a"]), id="a name of all"),
        pytest.param(rule("get", resourceNames=["a", "b"]), rule("get", resourceNames=["a"]), id="fewer names"),
        pytest.param(rule("get", group="*"), rule("get", group="apps"), id="any group"),
    ],
)
def test_a_role_within_ones_rights_is_fine(owned: Document, wanted: Document) -> None:
    try_role(held(owned), role(wanted))


@pytest.mark.parametrize(
    ("owned", "wanted", "missing"),
    [
        pytest.param(
            rule("list"),
            rule("get"),
            '{APIGroups:[""], Resources:["pods"], Verbs:["get"]}',
            id="another verb",
        ),
        pytest.param(
            rule("get"),
            rule("get delete", "pods secrets"),
            '{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}\n'
            '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete"]}',
            id="some of it",
        ),
        pytest.param(
            rule("get", resourceNames=["a"]),
            rule("get"),
            '{APIGroups:[""], Resources:["pods"], Verbs:["get"]}',
            id="all of a name",
        ),
        pytest.param(
            rule("get", resourceNames=["a"]),
            rule("get", resourceNames=["a", "b"]),
            '{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}',
            id="another name",
        ),
        pytest.param(
            rule("get"),
            rule("*", "*", "*"),
            '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}',
            id="everything",
        ),
    ],
)
def test_a_role_with_permissions_that_the_writer_lacks_is_rejected(
    owned: Document, wanted: Document, missing: str
) -> None:
    with pytest.raises(ForbiddenError) as caught:
        try_role(held(owned), role(wanted))
    assert caught.value.message == (
        'roles.rbac.authorization.k8s.io "new" is forbidden: user "alice" (groups=["devs" "system:authenticated"]) '
        f"is attempting to grant RBAC permissions not currently held:\n{missing}"
    )


def test_the_right_to_escalate_and_masters_are_exempt() -> None:
    try_role(held(rule("escalate", "roles", RBAC)), role(rule("*", "*", "*")))
    try_role(held(rule("get")), role(rule("*", "*", "*")), user=MASTER)


def test_an_update_requires_all_rules_unless_it_changes_only_finalizers_and_owner_references() -> None:
    old = role(rule("*", "*", "*"))
    metadata = old["metadata"]
    index = held(rule("get"))
    try_role(index, old, old)
    try_role(index, old | {"metadata": metadata | {"finalizers": ["a/b"], "ownerReferences": [{}]}}, old)
    with pytest.raises(ForbiddenError):
        try_role(index, old | {"metadata": metadata | {"labels": {"a": "b"}}}, old)


def test_aggregation_requires_full_authority() -> None:
    new = role(namespace="") | {"aggregationRule": {"clusterRoleSelectors": [{}]}}
    with pytest.raises(ForbiddenError, match="must have cluster-admin privileges to use the aggregationRule"):
        try_role(held(rule("get")), new)


def test_rights_in_a_namespace_are_none_in_the_cluster() -> None:
    with pytest.raises(ForbiddenError):
        try_role(held(rule("get")), role(rule("get"), namespace=""))


def test_bindings_grant_no_more_than_the_writer_has() -> None:
    try_binding(held(rule("get list", "pods secrets")), bound("big"))
    with pytest.raises(ForbiddenError) as caught:
        try_binding(held(rule("get list")), bound("big"))
    assert caught.value.message == (
        'rolebindings.rbac.authorization.k8s.io "new" is forbidden: user "alice" '
        '(groups=["devs" "system:authenticated"]) is attempting to grant RBAC permissions not currently held:\n'
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}'
    )


def test_the_right_to_bind_is_per_role() -> None:
    index = held(rule("bind", "clusterroles", RBAC, resourceNames=["big"]))
    try_binding(index, bound("big"))
    with pytest.raises(ForbiddenError, match=r'\{NonResourceURLs:\["/a/b"\], Verbs:\["get"\]\}'):
        try_binding(index, bound("paths"))
    with pytest.raises(ForbiddenError):
        try_binding(index, bound("big", namespace=""))
    try_binding(held(rule("get")), bound("big"), MASTER)


def test_a_binding_to_no_role_is_not_found() -> None:
    with pytest.raises(NotFoundError) as caught:
        try_binding(held(rule("get")), bound("nope"))
    assert caught.value.message == 'clusterroles.rbac.authorization.k8s.io "nope" not found'
