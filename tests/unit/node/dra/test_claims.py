"""Which claims a Pod and its containers use, and why one may not."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.codec import from_document
from dray.api.document import UID, Document, NamespacedName
from dray.api.types.core_v1 import Pod
from dray.api.types.resource_v1 import ResourceClaim
from dray.node.dra.claims import (
    AllocatedDevice,
    ClaimError,
    ClaimInfo,
    Device,
    PodClaim,
    check_usable,
    container_requests,
    pod_claims,
    skipped_operations,
)


def pod(*entries: Document, status: Document | None = None, containers: Any = ()) -> Pod:
    return from_document(
        Pod,
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "pod-uid"},
            "spec": {"resourceClaims": list(entries), "containers": list(containers)},
            "status": status or {},
        },
    )


def claim(**changes: Any) -> ResourceClaim:
    document: Document = {
        "metadata": {
            "name": "c",
            "namespace": "default",
            "uid": "claim-uid",
            "ownerReferences": [{"kind": "Pod", "uid": "pod-uid", "controller": True}],
        },
        "status": {
            "allocation": {"devices": {"results": [{"driver": "d2"}, {"driver": "d1"}, {"driver": "d1"}]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}],
        },
    }
    for part, values in changes.items():
        document[part].update(values)
    return from_document(ResourceClaim, document)


NAMED = {"name": "a", "resourceClaimName": "claim-a"}
GENERATED = {"name": "b", "resourceClaimTemplateName": "template"}
MADE = {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-x"}]}
NOT_NEEDED = {"resourceClaimStatuses": [{"name": "b"}]}
EXTENDED = {
    "extendedResourceClaimStatus": {
        "resourceClaimName": "p-extended",
        "requestMappings": [
            {"containerName": "one", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"},
            {"containerName": "two", "resourceName": "example.com/gpu", "requestName": "container-1-request-0"},
        ],
    }
}


def test_names_come_from_the_entry_or_the_status() -> None:
    assert pod_claims(pod(NAMED, GENERATED, status=MADE)) == (
        PodClaim("a", "claim-a", owned=False),
        PodClaim("b", "p-b-x", owned=True),
    )
    assert pod_claims(pod(GENERATED, status=NOT_NEEDED)) == ()
    extended = pod(NAMED, status=EXTENDED)
    assert [item.name for item in pod_claims(extended)] == ["claim-a", "p-extended"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (GENERATED, 'pod "default/p": ResourceClaim not created yet'),
        ({"name": "b"}, 'pod "default/p", spec.resourceClaim "b": none of the supported fields are set'),
    ],
)
def test_a_claim_without_a_name_is_an_error(entry: Document, message: str) -> None:
    with pytest.raises(ClaimError) as refused:
        pod_claims(pod(entry))
    assert str(refused.value) == message


OWNED = PodClaim("b", "c", owned=True)


@pytest.mark.behaviour("SP-147")
def test_devices_that_claims_share_are_not_the_claims_alone() -> None:
    results = [{"driver": "d", "pool": "p", "device": "alone"}, {"driver": "d", "device": "admin", "adminAccess": True}]
    allocation = {"devices": {"results": [*results, {"driver": "d", "device": "shared", "shareID": "s"}]}}
    info = check_usable(pod(), OWNED, claim(status={"allocation": allocation}))
    assert info.allocated == {AllocatedDevice("d", "p", "alone")}


@pytest.mark.behaviour("SP-110")
def test_a_usable_claim_names_its_drivers() -> None:
    info = check_usable(pod(), OWNED, claim())
    alone = frozenset({AllocatedDevice("d1", "", ""), AllocatedDevice("d2", "", "")})
    assert info == ClaimInfo(UID("claim-uid"), NamespacedName("default", "c"), {"d1": (), "d2": ()}, allocated=alone)


NOT_OWNER = "ResourceClaim default/c was not created for pod default/p (pod is not owner)"
NOT_ALLOWED = "pod p (pod-uid) is not allowed to use ResourceClaim c (claim-uid)"


@pytest.mark.behaviour("SP-110")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"metadata": {"ownerReferences": []}}, NOT_OWNER, id="no owner"),
        pytest.param({"metadata": {"ownerReferences": [{"uid": "pod-uid"}]}}, NOT_OWNER, id="no controller"),
        pytest.param({"status": {"reservedFor": []}}, NOT_ALLOWED, id="not reserved"),
        pytest.param(
            {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "other"}]}},
            NOT_ALLOWED,
            id="other pod",
        ),
        pytest.param(
            {"status": {"reservedFor": [{"resource": "jobs", "apiGroup": "batch", "uid": "pod-uid"}]}},
            NOT_ALLOWED,
            id="no pod",
        ),
        pytest.param({"status": {"allocation": None}}, "ResourceClaim c: not allocated", id="not allocated"),
    ],
)
def test_what_the_pod_may_not_use(changes: Document, message: str) -> None:
    with pytest.raises(ClaimError) as refused:
        check_usable(pod(), OWNED, claim(**changes))
    assert str(refused.value) == message


INFO = ClaimInfo(
    UID("u"),
    NamespacedName("default", "c"),
    {
        "d1": (
            Device("p", "x", None, ("one",), ("v/c=x",)),
            Device("p", "y", None, ("one", "two"), ("v/c=y1", "v/c=y2")),
        ),
        "d2": (Device("p", "z", None, (), ("v/c=z",)),),
    },
)


@pytest.mark.behaviour("SP-121", "PL-31")
@pytest.mark.parametrize(
    ("request_name", "names"),
    [
        pytest.param("", ("v/c=x", "v/c=y1", "v/c=y2", "v/c=z"), id="all devices"),
        pytest.param("one", ("v/c=x", "v/c=y1", "v/c=y2", "v/c=z"), id="one of them, and those for every request"),
        pytest.param("two/big", ("v/c=y1", "v/c=y2", "v/c=z"), id="a subrequest counts as its request"),
        pytest.param("other", ("v/c=z",), id="only those for every request"),
    ],
)
def test_cdi_names_by_request(request_name: str, names: tuple[str, ...]) -> None:
    assert INFO.cdi_device_ids(request_name) == names


@pytest.mark.behaviour("SP-121")
def test_containers_ask_by_claim_and_request() -> None:
    one = {
        "name": "one",
        "resources": {
            "claims": [{"name": "b", "request": "r"}, {"name": "a"}, {"name": "unknown"}],
            "requests": {"example.com/gpu": "1", "cpu": "1"},
        },
    }
    two = {"name": "two", "resources": {"requests": {"example.com/gpu": "0"}}}
    user = pod(NAMED, GENERATED, status=MADE | EXTENDED, containers=[one, two])
    first, second = user.spec.containers
    extended = ("p-extended", "container-0-request-0")
    assert container_requests(user, first) == (("claim-a", ""), ("p-b-x", "r"), extended)
    assert container_requests(user, second) == ()


@pytest.mark.behaviour("N-108")
@pytest.mark.parametrize(
    ("lists", "skipped"),
    [
        ([["NodePrepareResources", "NodeUnprepareResources"]], {"NodePrepareResources", "NodeUnprepareResources"}),
        ([["*"]], {"NodePrepareResources", "NodeUnprepareResources"}),
        ([["*"], ["NodeUnprepareResources"]], {"NodeUnprepareResources"}),
        ([["NodeUnprepareResources", "Later"]], {"NodeUnprepareResources"}),
        ([["*"], []], set()),
        ([["*"], None], set()),
        ([["Later"]], set()),
    ],
)
def test_an_operation_is_skipped_when_every_device_of_the_driver_skips_it(
    lists: list[list[str] | None], skipped: set[str]
) -> None:
    results = [{"driver": "d", "skipNodeOperations": item} for item in lists]
    others: list[Document] = [{"driver": "e"}, {"driver": "f", "skipNodeOperations": ["*"]}]
    found = skipped_operations([*results, *others])
    assert found.get("d", frozenset()) == skipped
    assert found.keys() - {"d"} == {"f"}
