"""The default roles: the permissions of each identity, and reconciliation."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import Document, key_of
from dray.apiserver.authentication import certificates
from dray.apiserver.authorization.bootstrap import AUTOUPDATE, Verb, bootstrap_documents, plan_bootstrap
from dray.apiserver.authorization.rbac import RBACIndex
from dray.apiserver.request import ANONYMOUS, Attributes, UserInfo

ALICE = UserInfo("alice", groups=("system:authenticated",))
SCHEDULER = UserInfo("system:kube-scheduler", groups=("system:authenticated",))
MANAGER = UserInfo("system:kube-controller-manager", groups=("system:authenticated",))
KUBELET_CLIENT = UserInfo(certificates.KUBELET_CLIENT.user, groups=("system:authenticated",))
AUTHENTICATION = "extension-apiserver-authentication"
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
        (may(SCHEDULER, "get", "configmaps", namespace="kube-system", name=AUTHENTICATION), True),
        (may(SCHEDULER, "get", "configmaps", namespace="default", name=AUTHENTICATION), False),
        (may(SCHEDULER, "get", "configmaps", namespace="kube-system", name="other"), False),
        (may(SCHEDULER, "update", "leases", group="coordination.k8s.io", namespace="kube-system", name="x"), True),
        (may(KUBELET_CLIENT, "get", "nodes/proxy", name="n"), True),
        (may(KUBELET_CLIENT, "create", "nodes/proxy", name="n"), True),
        (may(KUBELET_CLIENT, "get", "nodes/log", name="n"), True),
        (may(KUBELET_CLIENT, "get", "nodes/stats", name="n"), True),
        (may(KUBELET_CLIENT, "delete", "nodes", name="n"), False),
        (may(KUBELET_CLIENT, "list", "secrets", namespace="x"), False),
        (may(UserInfo("system:node:n", groups=("system:nodes",)), "list", "secrets", namespace="x"), False),
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
    keys = [(document["kind"], key_of(document)) for document in documents]
    assert len(keys) == len(set(keys))
    assert {"cluster-admin", "admin", "edit", "view", "system:node"} <= {key.name for _, key in keys}


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


# The roles and bindings of kube-apiserver 1.37 with its default gates, by the beginning of their names.
OF_KUBERNETES = {
    "": "admin cluster-admin edit view",
    "system:": (
        "aggregate-to-admin aggregate-to-edit aggregate-to-view auth-delegator basic-user "
        "cluster-trust-bundle-discovery discovery heapster kube-aggregator kube-controller-manager kube-dns "
        "kube-scheduler kubelet-api-admin monitoring node node-bootstrapper node-problem-detector node-proxier "
        "persistent-volume-provisioner public-info-viewer "
        "service-account-issuer-discovery volume-scheduler"
    ),
    "system:certificates.k8s.io:": (
        "certificatesigningrequests:nodeclient certificatesigningrequests:selfnodeclient "
        "kube-apiserver-client-approver kube-apiserver-client-kubelet-approver kubelet-serving-approver "
        "legacy-unknown-approver"
    ),
    "system:controller:": (
        "attachdetach-controller certificate-controller clusterrole-aggregation-controller cronjob-controller "
        "daemon-set-controller deployment-controller device-taint-eviction-controller disruption-controller "
        "endpoint-controller endpointslice-controller endpointslicemirroring-controller ephemeral-volume-controller "
        "expand-controller generic-garbage-collector horizontal-pod-autoscaler job-controller "
        "kube-apiserver-serving-clustertrustbundle-publisher legacy-service-account-token-cleaner namespace-controller "
        "node-controller persistent-volume-binder pod-garbage-collector podcertificaterequestcleaner "
        "pv-protection-controller pvc-protection-controller replicaset-controller replication-controller "
        "resource-claim-controller resourcequota-controller root-ca-cert-publisher route-controller "
        "selinux-warning-controller service-account-controller service-cidrs-controller service-controller "
        "statefulset-controller storage-version-migrator-controller ttl-after-finished-controller ttl-controller "
        "validatingadmissionpolicy-status-controller volumeattributesclass-protection-controller"
    ),
}
ROLES_OF_KUBERNETES = {f"{start}{name}" for start, names in OF_KUBERNETES.items() for name in names.split()}
# Cluster administrators bind these as they need them.
UNBOUND = {
    *("admin", "edit", "view", "system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view"),
    *("system:auth-delegator", "system:heapster", "system:kube-aggregator", "system:node-problem-detector"),
    *("system:persistent-volume-provisioner", *(name for name in ROLES_OF_KUBERNETES if name.endswith("-approver"))),
}
NAMESPACED_OF_KUBERNETES = {
    ("Role", "kube-public", "system:controller:bootstrap-signer"),
    ("Role", "kube-system", "extension-apiserver-authentication-reader"),
    ("Role", "kube-system", "system::leader-locking-kube-controller-manager"),
    ("Role", "kube-system", "system::leader-locking-kube-scheduler"),
    ("Role", "kube-system", "system:controller:bootstrap-signer"),
    ("Role", "kube-system", "system:controller:cloud-provider"),
    ("Role", "kube-system", "system:controller:token-cleaner"),
    ("RoleBinding", "kube-public", "system:controller:bootstrap-signer"),
    ("RoleBinding", "kube-system", "system::extension-apiserver-authentication-reader"),
    ("RoleBinding", "kube-system", "system::leader-locking-kube-controller-manager"),
    ("RoleBinding", "kube-system", "system::leader-locking-kube-scheduler"),
    ("RoleBinding", "kube-system", "system:controller:bootstrap-signer"),
    ("RoleBinding", "kube-system", "system:controller:cloud-provider"),
    ("RoleBinding", "kube-system", "system:controller:token-cleaner"),
}


def test_the_roles_of_kubernetes_are_complete() -> None:
    have = {(item["kind"], *key_of(item)) for item in bootstrap_documents()}
    assert {("ClusterRole", "", name) for name in ROLES_OF_KUBERNETES} <= have
    assert {("ClusterRoleBinding", "", name) for name in ROLES_OF_KUBERNETES - UNBOUND} <= have
    assert have >= NAMESPACED_OF_KUBERNETES
