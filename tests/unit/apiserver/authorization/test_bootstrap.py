"""The default roles: the permissions of each identity, and reconciliation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import Document
from dray.apiserver.authorization.bootstrap import AUTOUPDATE, Verb, bootstrap_documents, plan_bootstrap
from dray.apiserver.authorization.rbac import RBACIndex
from dray.apiserver.request import ANONYMOUS, Attributes, UserInfo

ALICE = UserInfo("alice", groups=("system:authenticated",))
SCHEDULER = UserInfo("system:kube-scheduler", groups=("system:authenticated",))
MANAGER = UserInfo("system:kube-controller-manager", groups=("system:authenticated",))
DRA = "resource.k8s.io"
SCHEDULING = "scheduling.k8s.io"


@pytest.fixture(scope="module")
def index() -> RBACIndex:
    built = RBACIndex()
    for document in bootstrap_documents():
        built.apply(document)
    for name in ("view", "edit", "admin", "dray:driver"):
        built.apply(grant(name, UserInfo(f"{name}-user")))
    return built


def grant(role: str, user: UserInfo) -> Document:
    return {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"test-{role}"},
        "roleRef": {"kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "name": user.name}],
    }


def may(user: UserInfo | str, verb: str, resource: str = "", *, path: str = "", **more: Any) -> Attributes:
    resource, _, subresource = resource.partition("/")
    who = UserInfo(f"{user}-user") if isinstance(user, str) else user
    return Attributes(who, verb, resource=resource, subresource=subresource, path=path, **more)


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version", "/version/"])
def test_anonymous_callers_reach_health_and_version(index: RBACIndex, path: str) -> None:
    assert index.authorize(may(ANONYMOUS, "get", path=path)).allowed


@pytest.mark.parametrize(
    "attributes",
    [
        *[
            may(ANONYMOUS, "get", path=path)
            for path in ("/", "/api", "/apis", "/openapi/v3", "/metrics", "/healthz/etcd")
        ],
        may(ANONYMOUS, "post", path="/healthz"),
        may(ANONYMOUS, "list", "pods"),
        may(ANONYMOUS, "create", "selfsubjectaccessreviews", group="authorization.k8s.io"),
    ],
)
def test_and_nothing_else(index: RBACIndex, attributes: Attributes) -> None:
    assert not index.authorize(attributes).allowed


def test_the_rules_of_everyone_are_those_of_kubernetes(index: RBACIndex) -> None:
    rules = index.rules_for(ALICE, "golden").rules
    assert [rule.document() for rule in rules if rule.resources] == [
        {
            "verbs": ["create"],
            "apiGroups": ["authorization.k8s.io"],
            "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        },
        {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
    ]
    discovery = "/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/"
    assert [rule.document() for rule in rules if rule.urls] == [
        {"verbs": ["get"], "nonResourceURLs": discovery.split()},
        {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"]},
    ]


@pytest.mark.parametrize(
    ("attributes", "allowed"),
    [
        (may("view", "list", "pods", namespace="x"), True),
        (may("view", "get", "pods/log", namespace="x"), True),
        (may("view", "get", "resourceclaims", group=DRA, namespace="x"), True),
        (may("view", "get", "secrets", namespace="x"), False),
        (may("view", "create", "pods", namespace="x"), False),
        (may("edit", "get", "pods", namespace="x"), True),
        (may("edit", "create", "pods", namespace="x"), True),
        (may("edit", "create", "resourceclaims", group=DRA, namespace="x"), True),
        (may("edit", "update", "resourceclaims/status", group=DRA, namespace="x"), False),
        (may("edit", "create", "roles", group="rbac.authorization.k8s.io", namespace="x"), False),
        (may("admin", "create", "roles", group="rbac.authorization.k8s.io", namespace="x"), True),
        (may("admin", "create", "pods", namespace="x"), True),
        (may("admin", "update", "resourcequotas", namespace="x"), False),
        (may("admin", "create", "deviceclasses", group=DRA), False),
        (may("dray:driver", "create", "resourceslices", group=DRA), True),
        (may("dray:driver", "patch", "resourceclaims/status", group=DRA, namespace="x"), True),
        (may("dray:driver", "update", "resourceclaims", group=DRA, namespace="x"), False),
        (may("dray:driver", "update", "resourceclaims/binding", group=DRA, namespace="x"), False),
        (may(SCHEDULER, "create", "pods/binding", namespace="x"), True),
        (may(SCHEDULER, "patch", "resourceclaims/status", group=DRA, namespace="x"), True),
        (may(SCHEDULER, "update", "resourceclaims/binding", group=DRA, namespace="x"), True),
        (may(SCHEDULER, "watch", "resourceslices", group=DRA), True),
        (may(SCHEDULER, "update", "leases", group="coordination.k8s.io", name="kube-scheduler"), True),
        (may(SCHEDULER, "update", "leases", group="coordination.k8s.io", name="other"), False),
        (may(SCHEDULER, "create", "pods", namespace="x"), False),
        (may(SCHEDULER, "get", "secrets", namespace="x"), False),
        (may(MANAGER, "create", "resourceclaims", group=DRA, namespace="x"), True),
        (may(MANAGER, "update", "deployments/status", group="apps", namespace="x"), True),
        (may(MANAGER, "create", "clusterrolebindings", group="rbac.authorization.k8s.io"), False),
    ],
)
def test_who_may_what(index: RBACIndex, attributes: Attributes, allowed: bool) -> None:
    assert index.authorize(attributes).allowed is allowed


@pytest.mark.behaviour("N-135")
@pytest.mark.parametrize(
    ("user", "verb", "resource", "allowed"),
    [
        ("view", "list", "podgroups", True),
        ("view", "get", "workloads", True),
        ("view", "create", "podgroups", False),
        ("edit", "create", "podgroups", True),
        ("edit", "delete", "workloads", True),
        (SCHEDULER, "watch", "podgroups", True),
        (SCHEDULER, "patch", "podgroups/status", True),
        (SCHEDULER, "create", "podgroups", False),
        (MANAGER, "list", "podgroups", True),
        (MANAGER, "patch", "podgroups/status", True),
    ],
)
def test_rights_on_groups(index: RBACIndex, user: UserInfo | str, verb: str, resource: str, allowed: bool) -> None:
    assert index.authorize(may(user, verb, resource, group=SCHEDULING, namespace="x")).allowed is allowed


def test_an_empty_cluster_gets_all_roles_once() -> None:
    writes = plan_bootstrap([])
    assert {write.verb for write in writes} == {Verb.CREATE}
    documents = [write.document for write in writes]
    assert documents == bootstrap_documents()
    assert plan_bootstrap(documents) == []
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))
    assert {"cluster-admin", "admin", "edit", "view", "system:node"} <= {name for _, name in names}


def stored(name: str, kind: str = "ClusterRole") -> tuple[list[Document], Document]:
    documents = copy.deepcopy(bootstrap_documents())
    return documents, next(item for item in documents if (item["kind"], item["metadata"]["name"]) == (kind, name))


def test_taken_rights_come_back_and_given_ones_stay() -> None:
    documents, role = stored("system:basic-user")
    extra = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    lost = role["rules"].pop()
    role["rules"].append(extra)
    role["metadata"]["resourceVersion"] = "7"
    before = copy.deepcopy(documents)
    (write,) = plan_bootstrap(documents)
    assert (write.verb, write.document["metadata"]["resourceVersion"]) == (Verb.UPDATE, "7")
    assert write.document["rules"][-2:] == [extra, lost]
    assert documents == before, "the plan changes nothing itself"


def test_a_protected_role_is_not_changed() -> None:
    documents, role = stored("system:discovery")
    role["rules"] = []
    role["metadata"]["annotations"][AUTOUPDATE] = "false"
    assert plan_bootstrap(documents) == []


def test_missing_subjects_are_added_and_a_changed_role_is_bound_anew() -> None:
    documents, binding = stored("system:public-info-viewer", "ClusterRoleBinding")
    dropped = binding["subjects"].pop()
    (write,) = plan_bootstrap(documents)
    assert write.verb is Verb.UPDATE
    assert write.document["subjects"][-1] == dropped
    binding["roleRef"]["name"] = "cluster-admin"
    removed, created = plan_bootstrap(documents)
    assert (removed.verb, created.verb) == (Verb.DELETE, Verb.CREATE)
    assert created.document["roleRef"]["name"] == "system:public-info-viewer"


def test_a_missing_aggregation_is_restored() -> None:
    documents, role = stored("admin")
    del role["aggregationRule"]
    (write,) = plan_bootstrap(documents)
    assert "aggregate-to-admin" in str(write.document["aggregationRule"])
