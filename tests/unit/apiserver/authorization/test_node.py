"""The node authorizer and NodeRestriction."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError, ForbiddenError, NotFoundError
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.authorization.bootstrap import bootstrap_documents
from dray.apiserver.authorization.node import NodeAuthorizer, node_name_of, selects_node
from dray.apiserver.authorization.node_index import NodeIndex
from dray.apiserver.authorization.node_restriction import check_node_write
from dray.apiserver.authorization.rbac import RBACIndex
from dray.apiserver.request import Attributes, UserInfo

N1 = UserInfo("system:node:n1", groups=("system:nodes", "system:authenticated"))
DRA = "resource.k8s.io"
MIRROR = "kubernetes.io/config.mirror"


def pod(name: str, node: str = "n1", **spec: Any) -> Document:
    return {
        "metadata": {"namespace": "x", "name": name, "uid": f"{name}-uid"},
        "spec": {"nodeName": node, "serviceAccountName": f"{name}-sa", **spec},
    }


def full_pod(name: str, node: str) -> Document:
    """Return a pod that refers to one object of every kind, named after the pod and the referring field."""
    container = {
        "env": [
            {"valueFrom": {"secretKeyRef": {"name": f"{name}-env"}}},
            {"valueFrom": {"configMapKeyRef": {"name": f"{name}-env"}}},
            {"value": "plain"},
        ],
        "envFrom": [{"secretRef": {"name": f"{name}-from"}}, {"configMapRef": {"name": f"{name}-from"}}],
    }
    document = pod(
        name,
        node,
        containers=[container],
        initContainers=[{"env": [{"valueFrom": {"secretKeyRef": {"name": f"{name}-init"}}}]}],
        imagePullSecrets=[{"name": f"{name}-pull"}],
        volumes=[
            {"secret": {"secretName": f"{name}-volume"}},
            {"configMap": {"name": f"{name}-volume"}},
            {"projected": {"sources": [{"secret": {"name": f"{name}-projected"}}]}},
            {"projected": {"sources": [{"configMap": {"name": f"{name}-projected"}}]}},
            {"projected": {"sources": [{"serviceAccountToken": {}}, {"serviceAccountToken": {"audience": "vault"}}]}},
            {"csi": {"nodePublishSecretRef": {"name": f"{name}-csi"}}},
            {"emptyDir": {}},
        ],
        resourceClaims=[
            {"name": "a", "resourceClaimName": f"{name}-claim"},
            {"name": "b", "resourceClaimTemplateName": "t"},
        ],
    )
    return document | {
        "status": {
            "resourceClaimStatuses": [{"name": "b", "resourceClaimName": f"{name}-generated"}, {"name": "c"}],
            "extendedResourceClaimStatus": {"resourceClaimName": f"{name}-extended"},
        }
    }


def resource_slice(node: str | None = "n1", name: str = "s") -> Document:
    return {"metadata": {"name": name}, "spec": {"driver": "d"} | ({"nodeName": node} if node else {})}


@pytest.fixture
def index() -> NodeIndex:
    built = NodeIndex()
    built.apply_pod(full_pod("mine", "n1"))
    built.apply_pod(full_pod("theirs", "n2"))
    built.apply_pod(full_pod("pending", ""))
    for node in ("n1", "n2"):
        built.apply_slice(resource_slice(node, f"{node}-slice"))
        built.apply_node({"metadata": {"name": node, "uid": f"{node}-uid"}})
    built.apply_slice(resource_slice(None, "network-slice"))
    return built


@pytest.fixture
def authorizer(index: NodeIndex) -> Authorizer:
    rbac = RBACIndex()
    for document in bootstrap_documents():
        rbac.apply(document)
    return Authorizer(rbac, NodeAuthorizer(index))


def asks(verb: str, resource: str, group: str = "", **more: Any) -> Attributes:
    resource, _, subresource = resource.partition("/")
    return Attributes(N1, verb, group=group, resource=resource, subresource=subresource, **more)


def slices(verb: str, name: str = "", selector: str = "") -> Attributes:
    return asks(verb, "resourceslices", DRA, name=name, field_selector=selector)


NO_RELATION = "no relationship found between node 'n1' and this object"
NEEDS_SELECTOR = "can only list/watch/deletecollection resourceslices with nodeName field selector"


@pytest.mark.behaviour("SP-34")
@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        pytest.param(slices("create"), None, id="create"),
        *[
            pytest.param(slices(verb, "n1-slice"), None, id=f"{verb} its own")
            for verb in ("get", "update", "patch", "delete")
        ],
        *[
            pytest.param(slices(verb, "n2-slice"), NO_RELATION, id=f"{verb} another's")
            for verb in ("get", "update", "patch", "delete")
        ],
        pytest.param(slices("delete", "network-slice"), NO_RELATION, id="a slice of no node"),
        pytest.param(slices("get", "unknown"), NO_RELATION, id="no such slice"),
        *[
            pytest.param(slices(verb, selector="spec.nodeName=n1"), None, id=f"{verb} its own")
            for verb in ("list", "watch", "deletecollection")
        ],
        *[
            pytest.param(slices(verb, selector=selector), NEEDS_SELECTOR, id=f"{verb} {selector!r}")
            for verb in ("list", "watch", "deletecollection")
            for selector in ("", "spec.nodeName=n2", "spec.driver=d", "spec.nodeName!=n1")
        ],
        pytest.param(slices("list", selector="spec.driver=d,spec.nodeName=n1"), None, id="with another term"),
    ],
)  # fmt: skip
def test_a_node_reaches_its_own_slices_only(authorizer: Authorizer, attributes: Attributes, reason: str | None) -> None:
    decision = authorizer.authorize(attributes)
    assert decision.allowed is (reason is None)
    assert decision.reason == (reason or "")


@pytest.mark.behaviour("SP-34")
@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        pytest.param(resource_slice("n1"), None, None, id="create its own"),
        pytest.param(
            resource_slice("n2"),
            None,
            'resourceslices.resource.k8s.io "s" is forbidden: '
            "can only create ResourceSlice with the same NodeName as the requesting node",
            id="create another's",
        ),
        pytest.param(
            resource_slice(None),
            None,
            'resourceslices.resource.k8s.io "s" is forbidden: '
            "can only create ResourceSlice with the same NodeName as the requesting node",
            id="create one for all nodes",
        ),
        pytest.param(resource_slice("n1"), resource_slice("n1"), None, id="update its own"),
        pytest.param(
            resource_slice("n1"),
            resource_slice("n2"),
            'resourceslices.resource.k8s.io "s" is forbidden: '
            "can only update ResourceSlice with the same NodeName as the requesting node",
            id="take over another's",
        ),
        pytest.param(None, resource_slice("n1"), None, id="delete its own"),
        pytest.param(
            None,
            resource_slice("n2"),
            'resourceslices.resource.k8s.io "s" is forbidden: '
            "can only delete ResourceSlice with the same NodeName as the requesting node",
            id="delete another's",
        ),
    ],
)
def test_a_node_writes_its_own_slices_only(
    index: NodeIndex, new: Document | None, old: Document | None, message: str | None
) -> None:
    expect(message, slices("create"), new, old, index)


def expect(
    message: str | None, attributes: Attributes, new: Document | None, old: Document | None, index: NodeIndex
) -> None:
    before = copy.deepcopy((new, old))
    if message is None:
        check_node_write(attributes, new, old, index)
    else:
        with pytest.raises(APIError) as caught:
            check_node_write(attributes, new, old, index)
        assert caught.value.message == message
        assert isinstance(caught.value, (ForbiddenError, NotFoundError))
    assert (new, old) == before


def in_x(verb: str, resource: str, name: str = "", group: str = "", **more: Any) -> Attributes:
    return asks(verb, resource, group, namespace="x", name=name, **more)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        *[pytest.param(in_x("get", "secrets", f"mine-{place}"), None, id=f"secret {place}")
          for place in ("env", "from", "init", "pull", "volume", "projected", "csi")],
        *[pytest.param(in_x("get", "configmaps", f"mine-{place}"), None, id=f"config map {place}")
          for place in ("env", "from", "volume", "projected")],
        *[pytest.param(in_x("get", "resourceclaims", f"mine-{place}", DRA), None, id=f"claim {place}")
          for place in ("claim", "generated", "extended")],
        pytest.param(in_x("watch", "secrets", "mine-env"), None, id="watch one secret"),
        pytest.param(in_x("get", "secrets", "theirs-env"), NO_RELATION, id="secret of another node"),
        pytest.param(in_x("get", "secrets", "pending-env"), NO_RELATION, id="secret of a pod without node"),
        pytest.param(in_x("get", "configmaps", "mine-pull"), NO_RELATION, id="a secret's name is no config map's"),
        pytest.param(in_x("list", "secrets"), "No Object name found", id="all secrets"),
        pytest.param(asks("list", "secrets"), "can only read namespaced object of this type", id="secrets anywhere"),
        pytest.param(in_x("delete", "secrets", "mine-env"), "can only read resources of this type", id="delete secret"),
        pytest.param(in_x("get", "resourceclaims", "theirs-claim", DRA), NO_RELATION, id="claim of another node"),
        pytest.param(in_x("list", "resourceclaims", "", DRA),
                     "can only get individual resources of this type", id="claims"),
        pytest.param(in_x("get", "resourceclaims/status", "mine-claim", DRA),
                     "cannot get subresource", id="claim status"),
        pytest.param(in_x("create", "serviceaccounts/token", "mine-sa"), None, id="token of a pod's account"),
        pytest.param(in_x("create", "serviceaccounts/token", "theirs-sa"), NO_RELATION, id="token of another's"),
        pytest.param(in_x("delete", "serviceaccounts", "mine-sa"),
                     "can only create tokens for individual service accounts", id="delete account"),
        pytest.param(in_x("get", "pods", "mine"), None, id="its pod"),
        pytest.param(in_x("get", "pods", "theirs"), NO_RELATION, id="another's pod"),
        pytest.param(asks("list", "pods", field_selector="spec.nodeName=n1"), None, id="list its pods"),
        pytest.param(asks("watch", "pods", field_selector="spec.nodeName=n2"),
                     "can only list/watch pods with spec.nodeName field selector", id="watch another's pods"),
        pytest.param(asks("list", "pods"), "can only list/watch pods with spec.nodeName field selector", id="all pods"),
        pytest.param(in_x("patch", "pods/status", "mine"), None, id="pod status"),
        pytest.param(in_x("create", "pods/eviction", "mine"), None, id="evict"),
        pytest.param(in_x("create", "pods/binding", "mine"), "", id="bind"),
        pytest.param(in_x("update", "pods", "mine"), "", id="update a pod"),
        pytest.param(asks("get", "nodes", name="n1"), None, id="its node"),
        pytest.param(asks("get", "nodes", name="n2"),
                     "node 'n1' cannot read 'n2', only its own Node object", id="another node"),
        pytest.param(asks("list", "nodes"),
                     "node 'n1' cannot read all nodes, only its own Node object", id="all nodes"),
        pytest.param(asks("patch", "nodes/status", name="n1"), None, id="node status"),
        pytest.param(asks("delete", "nodes", name="n1"), "", id="delete its node"),
        pytest.param(asks("update", "leases", "coordination.k8s.io", namespace="kube-node-lease", name="n1"),
                     None, id="lease"),
        pytest.param(asks("update", "leases", "coordination.k8s.io", namespace="kube-node-lease", name="n2"),
                     "can only access node lease with the same name as the requesting node", id="another's lease"),
        pytest.param(asks("get", "leases", "coordination.k8s.io", namespace="kube-system", name="n1"),
                     'can only access leases in the "kube-node-lease" system namespace', id="lease elsewhere"),
        pytest.param(asks("list", "leases", "coordination.k8s.io", namespace="kube-node-lease"),
                     "can only get, create, update, patch, or delete a node lease", id="all leases"),
        pytest.param(asks("update", "csinodes", "storage.k8s.io", name="n1"), None, id="CSINode"),
        pytest.param(asks("update", "csinodes", "storage.k8s.io", name="n2"),
                     "can only access CSINode with the same name as the requesting node", id="another's CSINode"),
        pytest.param(asks("list", "csinodes", "storage.k8s.io"),
                     "can only get, create, update, patch, or delete a CSINode", id="all CSINodes"),
        pytest.param(asks("list", "csidrivers", "storage.k8s.io"), None, id="CSIDrivers"),
        pytest.param(in_x("create", "events"), None, id="event"),
        pytest.param(in_x("delete", "events", "e"), "", id="delete an event"),
        pytest.param(asks("create", "deviceclasses", DRA), "", id="device class"),
    ],
)  # fmt: skip
def test_what_a_node_may_ask_for(authorizer: Authorizer, attributes: Attributes, reason: str | None) -> None:
    decision = authorizer.authorize(attributes)
    assert (decision.allowed, decision.reason) == (reason is None, reason or "")


def test_the_refusal_a_node_sees(authorizer: Authorizer) -> None:
    with pytest.raises(ForbiddenError) as caught:
        authorizer.check(slices("list"))
    assert caught.value.message == (
        'resourceslices.resource.k8s.io is forbidden: User "system:node:n1" cannot list resource "resourceslices" in '
        f'API group "resource.k8s.io" at the cluster scope: {NEEDS_SELECTOR}'
    )


@pytest.mark.parametrize(
    ("name", "groups", "expected"),
    [
        ("system:node:n1", ("system:nodes",), "n1"),
        ("system:node:", ("system:nodes",), ""),
        ("system:node:n1", ("devs",), None),
        ("alice", ("system:nodes",), None),
    ],
)
def test_who_is_a_node(name: str, groups: tuple[str, ...], expected: str | None) -> None:
    assert node_name_of(UserInfo(name, groups=groups)) == expected


def test_a_node_without_a_name_gets_nothing(authorizer: Authorizer, index: NodeIndex) -> None:
    nameless = UserInfo("system:node:", groups=("system:nodes",))
    attributes = Attributes(nameless, "create", group=DRA, resource="resourceslices")
    assert authorizer.authorize(attributes).reason == 'unknown node for user "system:node:"'
    expect(
        'resourceslices.resource.k8s.io "s" is forbidden: could not determine node from user "system:node:"',
        attributes, resource_slice("n1"), None, index,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=n1", True),
        ("spec.nodeName==n1", True),
        ("metadata.name=a,spec.nodeName=n1", True),
        ("spec.nodeName!=n1", False),
        ("spec.nodeName=n1x", False),
        # The comma is part of the value: this selects nearly everything.
        (r"metadata.name!=a\,spec.nodeName=n1", False),
        (r"metadata.name!=a\\,spec.nodeName=n1", True),
        ("", False),
    ],
)
def test_field_selectors_are_read_with_care(selector: str, expected: bool) -> None:
    assert selects_node(selector, "n1") is expected
    assert not selects_node("spec.nodeName=", "")


def test_references_end_with_their_last_pod() -> None:
    index = NodeIndex()
    key = NamespacedName("x", "shared")
    volumes = [{"secret": {"secretName": "shared"}}]
    index.apply_pod(pod("a", volumes=volumes))
    index.apply_pod(pod("b", volumes=volumes))
    index.apply_pod(pod("b", volumes=volumes))
    index.remove_pod(NamespacedName("x", "a"))
    assert index.uses("n1", "secrets", key)
    index.apply_pod(pod("b"))
    assert not index.uses("n1", "secrets", key)
    index.apply_pod(pod("b", volumes=volumes))
    index.remove_pod(NamespacedName("x", "b"))
    index.remove_pod(NamespacedName("x", "b"))
    assert not index.uses("n1", "secrets", key)
    assert not index._counts


@pytest.mark.behaviour("ST-44")
@pytest.mark.parametrize(
    ("verb", "node", "phase", "selector", "expected"),
    [
        ("list", "n1", "Bound", "dray.dev/provisioned-on=n1", True),
        ("watch", "n1", "Bound", "dray.dev/provisioned-on=n1", True),
        ("list", "n1", "Bound", "dray.dev/provisioned-on=n2", False),
        ("list", "n1", "Bound", "", False),
        ("list", "n1", "Bound", "dray.dev/provisioned-on!=n1", False),
        ("delete", "n1", "Released", "", True),
        ("delete", "n1", "Bound", "", False),
        ("delete", "n2", "Released", "", False),
        ("deletecollection", "n1", "Released", "dray.dev/provisioned-on=n1", False),
        ("update", "n1", "Released", "", False),
    ],
)
def test_a_node_removes_released_volumes_of_its_own(
    verb: str, node: str, phase: str, selector: str, expected: bool
) -> None:
    index = NodeIndex()
    metadata = {
        "name": "v",
        "labels": {"dray.dev/provisioned-on": node},
        "annotations": {"pv.kubernetes.io/provisioned-by": "dray.dev/local"},
    }
    spec = {"persistentVolumeReclaimPolicy": "Delete"}
    index.apply_volume({"metadata": metadata, "spec": spec, "status": {"phase": phase}})
    name = "" if selector else "v"
    attributes = Attributes(N1, verb, resource="persistentvolumes", name=name, label_selector=selector)
    assert NodeAuthorizer(index).authorize(attributes).allowed is expected
    index.remove_volume("v")
    if verb == "delete":
        assert not NodeAuthorizer(index).authorize(attributes).allowed


def test_a_mirror_pod_opens_no_door() -> None:
    index = NodeIndex()
    document = pod("a", volumes=[{"secret": {"secretName": "root"}}])
    document["metadata"]["annotations"] = {MIRROR: "hash"}
    index.apply_pod(document)
    assert index.uses("n1", "pods", NamespacedName("x", "a"))
    assert not index.uses("n1", "secrets", NamespacedName("x", "root"))


def mirror(node: str = "n1", owner: Document | None = None, owners: int = 1, **spec: Any) -> Document:
    reference = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1-uid", "controller": True} | (owner or {})
    return {
        "metadata": {
            "namespace": "x",
            "name": "m",
            "annotations": {MIRROR: "h"},
            "ownerReferences": [reference] * owners,
        },
        "spec": {"nodeName": node, **spec},
    }


PODS = 'pods "m" is forbidden: '


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (mirror(), None),
        (
            pod("m"),
            f'{PODS}pod does not have "{MIRROR}" annotation, node "n1" can only create mirror pods',
        ),
        (mirror("n2"), f'{PODS}node "n1" can only create pods with spec.nodeName set to itself'),
        (mirror(owners=0), f'{PODS}node "n1" can only create pods with an owner reference set to itself'),
        (mirror(owners=2), f'{PODS}node "n1" can only create pods with a single owner reference set to itself'),
        (mirror(owner={"name": "n2"}), f'{PODS}node "n1" can only create pods with an owner reference set to itself'),
        (
            mirror(owner={"controller": False}),
            f'{PODS}node "n1" can only create pods with a controller owner reference set to itself',
        ),
        (
            mirror(owner={"blockOwnerDeletion": True}),
            f'{PODS}node "n1" must not set blockOwnerDeletion on an owner reference',
        ),
        (mirror(owner={"uid": "old"}), f"{PODS}node n1 UID mismatch: expected old got n1-uid"),
        (mirror(serviceAccountName="a"), f'{PODS}node "n1" can not create pods that reference a service account'),
        (
            mirror(volumes=[{"secret": {"secretName": "a"}}]),
            f'{PODS}node "n1" can not create pods that reference secrets',
        ),
        (
            mirror(volumes=[{"configMap": {"name": "a"}}]),
            f'{PODS}node "n1" can not create pods that reference configmaps',
        ),
        (
            mirror(volumes=[{"persistentVolumeClaim": {"claimName": "a"}}]),
            f'{PODS}node "n1" can not create pods that reference persistentvolumeclaims',
        ),
        (
            mirror(resourceClaims=[{"name": "a", "resourceClaimName": "b"}]),
            f'{PODS}node "n1" can not create pods that reference resourceclaims',
        ),
    ],
)
def test_a_node_creates_mirror_pods_of_its_own_only(index: NodeIndex, new: Document, message: str | None) -> None:
    expect(message, in_x("create", "pods"), new, None, index)


def with_status(document: Document, labels: Document | None = None, **status: Any) -> Document:
    metadata = document["metadata"] | {"labels": labels or {}}
    return document | {"metadata": metadata, "status": status}


@pytest.mark.parametrize(
    ("attributes", "new", "old", "message"),
    [
        (in_x("delete", "pods", "p"), None, pod("p"), None),
        (
            in_x("delete", "pods", "p"), None, pod("p", "n2"),
            'pods "p" is forbidden: node "n1" can only delete pods with spec.nodeName set to itself',
        ),
        (
            in_x("update", "pods", "p"), pod("p"), pod("p"),
            'pods "p" is forbidden: unexpected operation "UPDATE", node "n1" can only create and delete mirror pods',
        ),
        (
            in_x("update", "pods/binding", "p"), pod("p"), pod("p"),
            "pods \"p\" is forbidden: unexpected pod subresource \"binding\", only 'status' and 'eviction' are allowed",
        ),
        (in_x("patch", "pods/status", "p"), with_status(pod("p"), phase="Running"), pod("p"), None),
        (
            in_x("patch", "pods/status", "p"), pod("p", "n2"), pod("p", "n2"),
            'pods "p" is forbidden: node "n1" can only update pod status for pods with spec.nodeName set to itself',
        ),
        (
            in_x("patch", "pods/status", "p"), with_status(pod("p"), {"a": "b"}), pod("p"),
            'pods "p" is forbidden: node "n1" cannot update labels through pod status',
        ),
        (
            in_x("patch", "pods/status", "p"),
            with_status(pod("p"), resourceClaimStatuses=[{"name": "a", "resourceClaimName": "stolen"}]),
            pod("p"),
            'pods "p" is forbidden: node "n1" cannot update resource claim statues',
        ),
        pytest.param(
            in_x("patch", "pods/status", "p"),
            with_status(pod("p"), nodeAllocatableResourceClaimStatuses=[{"resourceClaimName": "a"}]),
            pod("p"),
            'pods "p" is forbidden: node "n1" cannot update node allocatable resource claim statuses',
            marks=pytest.mark.behaviour("N-46"),
        ),
        (in_x("create", "pods/eviction", "mine"), {"metadata": {"name": "mine"}}, None, None),
        (
            in_x("create", "pods/eviction", "theirs"), {"metadata": {"name": "theirs"}}, None,
            'pods "theirs" is forbidden: node n1 can only evict pods with spec.nodeName set to itself',
        ),
        (in_x("create", "pods/eviction", "zz"), {"metadata": {}}, None, 'pods "zz" not found'),
    ],
)  # fmt: skip
def test_pod_writes(
    index: NodeIndex, attributes: Attributes, new: Document | None, old: Document | None, message: str | None
) -> None:
    expect(message, attributes, new, old, index)


def node(name: str = "n1", labels: Document | None = None, owners: Any = (), **spec: Any) -> Document:
    return {"metadata": {"name": name, "labels": labels or {}, "ownerReferences": list(owners)}, "spec": spec}


NODES = 'nodes "n1" is forbidden: '


@pytest.mark.parametrize(
    ("new", "old", "message"),
    [
        (node(), None, None),
        (node("n2"), None, 'nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2"'),
        (node(labels={"kubernetes.io/hostname": "n1", "example.com/a": "b", "node.kubernetes.io/x": "y"}), None, None),
        (
            node(labels={"node-restriction.kubernetes.io/a": "b", "foo.k8s.io/x": "y"}), None,
            f'{NODES}node "n1" is not allowed to set the following labels: '
            "foo.k8s.io/x, node-restriction.kubernetes.io/a",
        ),
        (
            node(labels={"a.node-restriction.kubernetes.io/b": "c"}), node(),
            f"{NODES}is not allowed to modify labels: a.node-restriction.kubernetes.io/b",
        ),
        (
            node(), node(labels={"node-restriction.kubernetes.io/a": "b"}),
            f"{NODES}is not allowed to modify labels: node-restriction.kubernetes.io/a",
        ),
        (node(taints=[{"key": "a"}]), None, None),
        (node(), node(taints=[{"key": "a"}]), f'{NODES}node "n1" is not allowed to modify taints'),
        (node(configSource={}), None, f'{NODES}node "n1" is not allowed to create pods with a non-nil configSource'),
        (
            node(configSource={}), node(),
            f'{NODES}node "n1" is not allowed to update configSource to a new non-nil configSource',
        ),
        (node(owners=[{"name": "x"}]), node(), f'{NODES}node "n1" is not allowed to modify ownerReferences'),
        (node(unschedulable=True), node(), None),
        (
            node(podCIDR="10.0.0.0/24"), node(),
            f'{NODES}node "n1" is not allowed to choose the addresses of its Pods: spec.podCIDR is set by its '
            "allocator",
        ),
    ],
)  # fmt: skip
def test_node_writes(index: NodeIndex, new: Document, old: Document | None, message: str | None) -> None:
    name = new["metadata"]["name"] if old is not None else ""
    expect(message, asks("update" if old else "create", "nodes", name=name), new, old, index)


def token_request(*audiences: str, **reference: str) -> Document:
    requested = {"audiences": list(audiences)} if audiences else {}
    return {"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", **reference}, **requested}}


TOKENS = 'serviceaccounts "mine-sa" is forbidden: '


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (token_request(name="mine", uid="mine-uid"), None),
        ({"spec": {}}, f"{TOKENS}node requested token not bound to a pod"),
        (token_request(name="s", kind="Secret"), f"{TOKENS}node requested token not bound to a pod"),
        (token_request(name="mine"), f"{TOKENS}node requested token with a pod binding without a uid"),
        (
            token_request(name="mine", uid="old"),
            f"{TOKENS}the UID in the bound object reference (old) does not match the UID in record. "
            "The object might have been deleted and then recreated",
        ),
        (
            token_request(name="theirs", uid="theirs-uid"),
            f"{TOKENS}node requested token bound to a pod scheduled on a different node",
        ),
        (token_request(name="zz", uid="u"), 'pods "zz" not found'),
        (token_request("vault", name="mine", uid="mine-uid"), None),
        (
            token_request("vault", "", name="mine", uid="mine-uid"),
            f"{TOKENS}node may only request 0 or 1 audiences",
        ),
        (
            token_request("bank", name="mine", uid="mine-uid"),
            f'{TOKENS}audience "bank" not found in pod spec volume, system:node:n1 is not authorized to request tokens '
            "for this audience",
        ),
    ],
)
def test_token_requests_by_nodes(index: NodeIndex, new: Document, message: str | None) -> None:
    expect(message, in_x("create", "serviceaccounts/token", "mine-sa"), new, None, index)


@pytest.mark.parametrize(
    ("namespace", "name", "message"),
    [
        ("kube-node-lease", "n1", None),
        (
            "kube-node-lease",
            "n2",
            'leases.coordination.k8s.io "n2" is forbidden: '
            "can only access node lease with the same name as the requesting node",
        ),
        (
            "x",
            "n1",
            'leases.coordination.k8s.io "n1" is forbidden: '
            'can only access leases in the "kube-node-lease" system namespace',
        ),
    ],
)
def test_lease_writes(index: NodeIndex, namespace: str, name: str, message: str | None) -> None:
    attributes = asks("create", "leases", "coordination.k8s.io", namespace=namespace)
    expect(message, attributes, {"metadata": {"name": name}}, None, index)


def test_other_users_and_other_kinds_are_not_our_business(index: NodeIndex) -> None:
    alice = Attributes(UserInfo("alice"), "create", group=DRA, resource="resourceslices")
    check_node_write(alice, resource_slice("n2"), None, index)
    check_node_write(in_x("create", "events"), {"metadata": {"name": "e"}}, None, index)
