"""Decisions and messages of RBAC, and their invalidation by changes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.errors import ForbiddenError
from dray.apiserver.authorization.authorizer import forbidden_error
from dray.apiserver.authorization.rbac import Decision, RBACIndex, selector_matches
from dray.apiserver.request import Attributes, UserInfo

ALICE = UserInfo("alice", groups=("devs", "system:authenticated"))
ROBOT = UserInfo("system:serviceaccount:apps:robot", groups=("system:serviceaccounts", "system:serviceaccounts:apps"))


def rule(verbs: str, groups: str = "", resources: str = "pods", names: str = "") -> Document:
    written: Document = {"verbs": verbs.split(), "apiGroups": groups.split(",") if groups else [""]}
    written["resources"] = resources.split()
    return written | ({"resourceNames": names.split()} if names else {})


def urls(verbs: str, paths: str) -> Document:
    return {"verbs": verbs.split(), "nonResourceURLs": paths.split()}


def role(name: str, *rules: Document, namespace: str = "", labels: dict[str, str] | None = None) -> Document:
    metadata: Document = {"name": name, "labels": labels or {}} | ({"namespace": namespace} if namespace else {})
    return {"kind": "Role" if namespace else "ClusterRole", "metadata": metadata, "rules": list(rules)}


def aggregated(name: str, label: str, **labels: str) -> Document:
    document = role(name, rule("*", "*", "*"), labels=labels)
    return document | {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}}


def binding(name: str, to: str, *subjects: tuple[str, ...], namespace: str = "", kind: str = "ClusterRole") -> Document:
    listed = [
        {"kind": subject[0], "name": subject[1]} | ({"namespace": subject[2]} if len(subject) > 2 else {})
        for subject in subjects
    ]
    return {
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
        "roleRef": {"kind": kind, "name": to},
        "subjects": listed,
    }


def index(*documents: Document) -> RBACIndex:
    built = RBACIndex()
    for document in documents:
        built.apply(document)
    return built


def asks(verb: str, resource: str = "pods", *, user: UserInfo = ALICE, **more: Any) -> Attributes:
    return Attributes(user, verb, resource=resource, **more)


def rights(*rules: Document) -> RBACIndex:
    """Give alice these rules in all namespaces."""
    return index(role("r", *rules), binding("b", "r", ("User", "alice")))


@pytest.mark.parametrize(
    ("rules", "attributes", "allowed"),
    [
        pytest.param([rule("get")], asks("get"), True, id="exact"),
        pytest.param([rule("get")], asks("list"), False, id="another verb"),
        pytest.param([rule("*")], asks("anything"), True, id="any verb"),
        pytest.param([rule("get")], asks("get", group="apps"), False, id="another group"),
        pytest.param([rule("get", "*")], asks("get", group="apps"), True, id="any group"),
        pytest.param([rule("get", resources="nodes")], asks("get"), False, id="another resource"),
        pytest.param([rule("get", resources="*")], asks("get"), True, id="any resource"),
        pytest.param([rule("get", resources="*")], asks("get", subresource="log"), True, id="any with subresource"),
        pytest.param([rule("get")], asks("get", subresource="log"), False, id="resource is not subresource"),
        pytest.param([rule("get", resources="pods/log")], asks("get", subresource="log"), True, id="subresource"),
        pytest.param([rule("get", resources="pods/log")], asks("get"), False, id="subresource is not resource"),
        pytest.param([rule("get", resources="*/scale")], asks("get", subresource="scale"), True, id="any scale"),
        pytest.param([rule("get", resources="*/scale")], asks("get", "scale"), False, id="scale is a subresource"),
        pytest.param([rule("get", resources="pods/*")], asks("get", subresource="log"), False, id="no such wildcard"),
        pytest.param([rule("get", names="a b")], asks("get", name="b"), True, id="named"),
        pytest.param([rule("get", names="a b")], asks("get", name="c"), False, id="another name"),
        pytest.param([rule("create", names="a")], asks("create"), False, id="a new object has no name yet"),
        pytest.param([rule("get", names="a"), rule("get")], asks("get", name="c"), True, id="named and not"),
        pytest.param([rule("get")], asks("get", namespace="x"), True, id="cluster role binding counts in namespaces"),
        pytest.param([urls("get", "/metrics")], Attributes(ALICE, "get", path="/metrics"), True, id="path"),
        pytest.param([urls("get", "/metrics")], Attributes(ALICE, "get", path="/metrics/x"), False, id="longer path"),
        pytest.param([urls("get", "/api/*")], Attributes(ALICE, "get", path="/api/v1"), True, id="path prefix"),
        pytest.param([urls("get", "/api/*")], Attributes(ALICE, "get", path="/apis"), False, id="not the prefix"),
        pytest.param([urls("get", "*")], Attributes(ALICE, "post", path="/x"), False, id="path verb"),
        pytest.param([urls("*", "*")], Attributes(ALICE, "post", path="/x"), True, id="any path"),
        pytest.param([urls("*", "*")], asks("get"), False, id="paths are not resources"),
        pytest.param([rule("*", "*", "*")], Attributes(ALICE, "get", path="/x"), False, id="resources are not paths"),
    ],
)
def test_rules(rules: list[Document], attributes: Attributes, allowed: bool) -> None:
    decide = rights(*rules)
    assert decide.authorize(attributes).allowed is allowed
    assert decide.authorize(attributes).allowed is allowed, "a remembered decision differs"


@pytest.mark.parametrize(
    ("documents", "attributes", "reason"),
    [
        pytest.param(
            [role("cluster-admin", rule("*", "*", "*")), binding("cluster-admin", "cluster-admin", ("Group", "devs"))],
            asks("get"),
            'RBAC: allowed by ClusterRoleBinding "cluster-admin" of ClusterRole "cluster-admin" to Group "devs"',
            id="cluster role binding",
        ),
        pytest.param(
            [
                role("r", rule("get"), namespace="x"),
                binding("rb", "r", ("User", "alice"), namespace="x", kind="Role"),
            ],
            asks("get", namespace="x"),
            'RBAC: allowed by RoleBinding "rb/x" of Role "r" to User "alice"',
            id="role binding",
        ),
        pytest.param(
            [role("r", rule("get")), binding("rb", "r", ("ServiceAccount", "robot", "apps"), namespace="x")],
            asks("get", user=ROBOT, namespace="x"),
            'RBAC: allowed by RoleBinding "rb/x" of ClusterRole "r" to ServiceAccount "robot/apps"',
            id="service account",
        ),
        pytest.param(
            [role("r", rule("get")), binding("rb", "r", ("ServiceAccount", "robot"), namespace="apps")],
            asks("get", user=ROBOT, namespace="apps"),
            'RBAC: allowed by RoleBinding "rb/apps" of ClusterRole "r" to ServiceAccount "robot/apps"',
            id="service account of the binding's namespace",
        ),
    ],
)
def test_the_reason_names_binding_role_and_subject(
    documents: list[Document], attributes: Attributes, reason: str
) -> None:
    assert index(*documents).authorize(attributes) == Decision(allowed=True, reason=reason)


def test_a_role_binding_counts_in_its_namespace_only() -> None:
    decide = index(role("r", rule("get")), binding("rb", "r", ("User", "alice"), namespace="x"))
    assert decide.authorize(asks("get", namespace="x")).allowed
    assert not decide.authorize(asks("get", namespace="y")).allowed
    assert not decide.authorize(asks("get")).allowed


def test_a_role_of_another_namespace_is_not_found() -> None:
    decide = index(
        role("r", rule("get"), namespace="y"), binding("rb", "r", ("User", "alice"), namespace="x", kind="Role")
    )
    assert decide.authorize(asks("get", namespace="x")) == Decision(
        allowed=False, reason='RBAC: role.rbac.authorization.k8s.io "r" not found'
    )


def test_missing_roles_are_reported() -> None:
    decide = index(binding("a", "one", ("User", "alice")), binding("b", "two", ("Group", "devs")))
    assert decide.authorize(asks("get")).reason == (
        'RBAC: [clusterrole.rbac.authorization.k8s.io "one" not found, '
        'clusterrole.rbac.authorization.k8s.io "two" not found]'
    )
    assert not decide.authorize(Attributes(ALICE, "get", path="/x")).allowed


def test_every_change_is_seen_at_once() -> None:
    decide = RBACIndex()
    steps = [
        (lambda: decide.apply(binding("b", "r", ("User", "alice"))), False),
        (lambda: decide.apply(role("r", rule("get"))), True),
        (lambda: decide.apply(role("r", rule("list"))), False),
        (lambda: decide.apply(role("r", rule("get"))), True),
        (lambda: decide.apply(binding("b", "r", ("User", "bob"))), False),
        (lambda: decide.apply(binding("b", "r", ("Group", "devs"))), True),
        (lambda: decide.remove("ClusterRole", NamespacedName("", "r")), False),
        (lambda: decide.apply(role("r", rule("get"))), True),
        (lambda: decide.remove("ClusterRoleBinding", NamespacedName("", "b")), False),
        (lambda: decide.remove("ClusterRoleBinding", NamespacedName("", "b")), False),
    ]
    for number, (step, allowed) in enumerate(steps):
        step()
        assert decide.authorize(asks("get")).allowed is allowed, number
    assert not decide._by_subject, "nothing of a removed binding is left"


def test_aggregated_roles_follow_their_parts() -> None:
    decide = index(
        aggregated("admin", "to-admin"),
        aggregated("edit", "to-edit", **{"to-admin": "true"}),
        role("part", rule("get"), labels={"to-edit": "true"}),
        binding("b", "admin", ("User", "alice")),
    )
    assert decide.authorize(asks("get")).allowed
    assert not decide.authorize(asks("delete")).allowed, "an aggregated role's own rules count for nothing"
    decide.apply(role("late", rule("delete"), labels={"to-admin": "true"}))
    assert decide.authorize(asks("delete")).allowed
    decide.remove("ClusterRole", NamespacedName("", "part"))
    assert not decide.authorize(asks("get")).allowed


def test_circles_of_aggregation_end() -> None:
    decide = index(
        aggregated("a", "to-a", **{"to-b": "true"}),
        aggregated("b", "to-b", **{"to-a": "true"}),
        role("part", rule("get"), labels={"to-b": "true"}),
        binding("x", "a", ("User", "alice")),
    )
    assert decide.authorize(asks("get")).allowed


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "z", "operator": "In", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "z", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_label_selectors(selector: Document, expected: bool) -> None:
    assert selector_matches(selector, {"a": "1"}) is expected


@pytest.mark.parametrize(
    ("attributes", "message", "details"),
    [
        (
            asks("list", namespace="golden"),
            'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "golden"',
            {"kind": "pods"},
        ),
        (
            asks("get", namespace="golden", name="x"),
            'pods "x" is forbidden: User "alice" cannot get resource "pods" in API group "" in the namespace "golden"',
            {"name": "x", "kind": "pods"},
        ),
        (
            asks("create", "resourceclaims", group="resource.k8s.io", namespace="golden"),
            'resourceclaims.resource.k8s.io is forbidden: User "alice" cannot create resource "resourceclaims" in '
            'API group "resource.k8s.io" in the namespace "golden"',
            {"group": "resource.k8s.io", "kind": "resourceclaims"},
        ),
        (
            asks("get", subresource="log", name="p"),
            'pods "p" is forbidden: User "alice" cannot get resource "pods/log" in API group "" at the cluster scope',
            {"name": "p", "kind": "pods"},
        ),
        (
            Attributes(ALICE, "get", path="/metrics"),
            'forbidden: User "alice" cannot get path "/metrics"',
            {},
        ),
        (
            Attributes(UserInfo("<b>"), "get", path="/a&b"),
            'forbidden: User "&lt;b&gt;" cannot get path "/a&amp;b"',
            {},
        ),
    ],
)
def test_forbidden_messages(attributes: Attributes, message: str, details: Document) -> None:
    error = forbidden_error(attributes)
    assert isinstance(error, ForbiddenError)
    assert error.status() == {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Forbidden", "details": details, "code": 403,
    }  # fmt: skip


def test_a_denial_has_a_reason() -> None:
    error = forbidden_error(asks("list"), "because")
    assert error.message.endswith('cannot list resource "pods" in API group "" at the cluster scope: because')


def test_a_check_does_not_slow_down_with_the_number_of_bindings() -> None:
    decide = index(role("r", rule("get")), binding("mine", "r", ("Group", "devs")))
    for number in range(5000):
        decide.apply(binding(f"b{number}", "r", ("User", f"u{number}"), namespace=f"ns{number % 50}"))
    attributes = asks("get", namespace="ns1", name="p")
    decide.authorize(attributes)
    best = min(_seconds(decide, attributes) for _ in range(20))
    # A hundred checks in under 5 ms although 5,000 bindings exist; a scan would take seconds.
    assert best < 0.005
    fresh = asks("get", namespace="ns2")
    started = time.perf_counter()
    decide.authorize(fresh)
    assert time.perf_counter() - started < 0.01


def _seconds(decide: RBACIndex, attributes: Attributes) -> float:
    started = time.perf_counter()
    for _ in range(100):
        decide.authorize(attributes)
    return time.perf_counter() - started
