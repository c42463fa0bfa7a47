"""Create, read, update, patch and delete by the API conventions, on an in-process server."""

from __future__ import annotations

import asyncio
import json

import pytest

from dray.api.document import Document
from dray.api.errors import (
    AlreadyExistsError,
    APIError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from tests.local_server import Local, until

CLAIMS = "resource.k8s.io/v1/resourceclaims"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
STRATEGIC = "application/strategic-merge-patch+json"


def claim(name: str, **metadata: object) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}},
    }


def config_map(name: str, **data: str) -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


ALLOCATION = {"devices": {"results": [{"request": "gpu", "driver": "d.example.com", "pool": "p", "device": "d0"}]}}


async def test_a_new_object_gets_its_identity(api: Local) -> None:
    created = await api.request("create", f"{CLAIMS}@default", claim("c"))
    metadata = created["metadata"]
    assert metadata["uid"]
    assert metadata["resourceVersion"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert await api.request("get", f"{CLAIMS}/c@default") == created
    with pytest.raises(AlreadyExistsError):
        await api.request("create", f"{CLAIMS}@default", claim("c"))


async def test_generated_names_are_unique(api: Local) -> None:
    documents = [{**claim("x"), "metadata": {"generateName": "g-"}} for _ in range(20)]
    created = await asyncio.gather(*(api.request("create", f"{CLAIMS}@default", item) for item in documents))
    names = {item["metadata"]["name"] for item in created}
    assert len(names) == 20
    assert all(len(name) == len("g-") + 5 for name in names)


async def test_a_given_name_is_kept_beside_a_prefix_for_names(api: Local) -> None:
    document = {**claim("x"), "metadata": {"name": "g-given", "generateName": "g-"}}
    created = await api.request("create", f"{CLAIMS}@default", document)
    assert (created["metadata"]["name"], created["metadata"]["generateName"]) == ("g-given", "g-")
    with pytest.raises(AlreadyExistsError):
        await api.request("create", f"{CLAIMS}@default", document)


async def test_every_mistake_is_reported_at_once_and_nothing_is_stored(api: Local) -> None:
    wrong = claim("Bad Name", labels={"a b": "c"})
    wrong["spec"]["devices"]["requests"][0]["name"] = "G"
    with pytest.raises(InvalidError) as caught:
        await api.request("create", f"{CLAIMS}@default", wrong)
    fields = [cause["field"] for cause in caught.value.status()["details"]["causes"]]
    assert fields == ["metadata.name", "metadata.labels", "spec.devices.requests[0].name"]
    listing = await api.request("list", f"{CLAIMS}@default")
    assert listing["items"] == []


@pytest.mark.behaviour("SP-36")
async def test_an_update_must_be_based_on_the_newest_version(api: Local) -> None:
    first = await api.request("create", "core/v1/configmaps@default", config_map("c", a="1"))
    changed = {**first, "data": {"a": "2"}}
    second = await api.request("update", "core/v1/configmaps/c@default", {**changed})
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    with pytest.raises(ConflictError):
        await api.request("update", "core/v1/configmaps/c@default", {**changed, "data": {"a": "3"}})
    assert (await api.request("get", "core/v1/configmaps/c@default"))["data"] == {"a": "2"}


async def test_an_update_that_changes_nothing_writes_nothing(api: Local) -> None:
    first = await api.request("create", "core/v1/configmaps@default", config_map("c", a="1"))
    again = await api.request("update", "core/v1/configmaps/c@default", config_map("c", a="1"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


@pytest.mark.behaviour("SP-36")
async def test_fifty_patches_at_once_all_count(api: Local) -> None:
    await api.request("create", "core/v1/configmaps@default", config_map("c"))
    patches = [{"data": {f"k{number}": "v"}} for number in range(50)]
    await asyncio.gather(
        *(api.request("patch", "core/v1/configmaps/c@default", item, content_type=MERGE) for item in patches)
    )
    final = await api.request("get", "core/v1/configmaps/c@default")
    assert len(final["data"]) == 50


@pytest.mark.behaviour("SP-36")
async def test_apply_creates_conflicts_and_is_forced(api: Local) -> None:
    applied = claim("a", labels={"k": "1"})
    place = f"{CLAIMS}/a@default"
    created = await api.request("patch", place, applied, query={"fieldManager": "m1"}, content_type=APPLY)
    assert created["metadata"]["managedFields"][0]["manager"] == "m1"
    other = claim("a", labels={"k": "2"})
    with pytest.raises(APIError) as caught:
        await api.request("patch", place, other, query={"fieldManager": "m2"}, content_type=APPLY)
    assert caught.value.code == 409
    forced = {"fieldManager": "m2", "force": "true"}
    taken = await api.request("patch", place, claim("a", labels={"k": "2"}), query=forced, content_type=APPLY)
    assert taken["metadata"]["labels"] == {"k": "2"}
    again = await api.request("patch", place, claim("a", labels={"k": "2"}), query=forced, content_type=APPLY)
    assert again["metadata"]["resourceVersion"] == taken["metadata"]["resourceVersion"]


async def test_a_dry_run_answers_and_stores_nothing(api: Local) -> None:
    dry = {"dryRun": "All"}
    answered = await api.request("create", f"{CLAIMS}@default", claim("c"), query=dry)
    assert answered["metadata"]["uid"]
    with pytest.raises(NotFoundError):
        await api.request("get", f"{CLAIMS}/c@default")
    await api.request("create", f"{CLAIMS}@default", claim("c"))
    labels = {"metadata": {"labels": {"a": "b"}}}
    await api.request("patch", f"{CLAIMS}/c@default", labels, query=dry, content_type=MERGE)
    assert "labels" not in (await api.request("get", f"{CLAIMS}/c@default"))["metadata"]
    await api.request("delete", f"{CLAIMS}/c@default", query=dry)
    assert (await api.request("get", f"{CLAIMS}/c@default"))["metadata"]["name"] == "c"


async def test_the_answer_to_a_dry_run_is_the_callers_to_change(api: Local) -> None:
    answered = await api.request("create", f"{CLAIMS}@default", claim("c"), query={"dryRun": "All"})
    owned = answered["metadata"]["managedFields"][0]["fieldsV1"]
    before = json.dumps(owned)
    owned["f:spec"]["f:devices"]["f:requests"]["f:mine"] = {}
    created = await api.request("create", f"{CLAIMS}@default", claim("c"))
    assert json.dumps(created["metadata"]["managedFields"][0]["fieldsV1"]) == before


@pytest.mark.behaviour("SP-32")
async def test_the_finalizer_holds_an_allocated_claim(api: Local) -> None:
    held = claim("c", finalizers=["resource.kubernetes.io/delete-protection"])
    created = await api.request("create", f"{CLAIMS}@default", held)
    await api.request("update", f"{CLAIMS}/c/status@default", {**created, "status": {"allocation": ALLOCATION}})
    deleted = await api.request("delete", f"{CLAIMS}/c@default")
    assert deleted["metadata"]["deletionTimestamp"]
    assert (await api.request("get", f"{CLAIMS}/c@default"))["status"]["allocation"] == ALLOCATION
    await api.request("patch", f"{CLAIMS}/c@default", {"metadata": {"finalizers": None}}, content_type=MERGE)
    with pytest.raises(NotFoundError):
        await api.request("get", f"{CLAIMS}/c@default")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preconditions": {"uid": "other"}}, "the UID in the precondition (other)"),
        ({"preconditions": {"resourceVersion": "1"}}, "the ResourceVersion in the precondition (1)"),
    ],
)
async def test_preconditions_of_a_delete_must_hold(api: Local, options: Document, message: str) -> None:
    await api.request("create", f"{CLAIMS}@default", claim("c"))
    with pytest.raises(ConflictError, match="precondition") as caught:
        await api.request("delete", f"{CLAIMS}/c@default", options)
    assert message in caught.value.message


async def test_a_collection_is_deleted_by_selector(api: Local) -> None:
    for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
        await api.request("create", f"{CLAIMS}@default", claim(name, labels={"l": label}))
    await api.request("deletecollection", f"{CLAIMS}@default", query={"labelSelector": "l=x"})
    left = await api.request("list", f"{CLAIMS}@default")
    assert [item["metadata"]["name"] for item in left["items"]] == ["c"]


async def test_a_bound_pod_has_a_grace_period_and_an_unbound_one_is_deleted_at_once(api: Local) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await api.request("create", "core/v1/serviceaccounts@default", account)
    for name in ("bound", "free"):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        await api.request("create", "core/v1/pods@default", pod)
    binding = {"metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "n"}}
    outdated = {**binding, "metadata": {"name": "bound", "resourceVersion": "1"}}
    with pytest.raises(ConflictError, match="Precondition failed: ResourceVersion in precondition: 1, "):
        await api.request("create", "core/v1/pods/bound/binding@default", outdated)
    await api.request("create", "core/v1/pods/bound/binding@default", binding)
    with pytest.raises(ConflictError, match="already assigned"):
        await api.request("create", "core/v1/pods/bound/binding@default", binding)
    ending = await api.request("delete", "core/v1/pods/bound@default")
    assert ending["metadata"]["deletionGracePeriodSeconds"] == 30
    await api.request("delete", "core/v1/pods/free@default")
    with pytest.raises(NotFoundError):
        await api.request("get", "core/v1/pods/free@default")
    await api.request("delete", "core/v1/pods/bound@default", {"gracePeriodSeconds": 0})
    with pytest.raises(NotFoundError):
        await api.request("get", "core/v1/pods/bound@default")


async def test_create_in_a_terminating_namespace_is_rejected(api: Local) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
    await api.request("create", "core/v1/namespaces", space)
    await api.request("create", f"{CLAIMS}@n", claim("c"))
    ending = await api.request("delete", "core/v1/namespaces/n")
    assert ending["status"]["phase"] == "Terminating"
    known = api.running.server.cache.namespaces
    await until(lambda: "n" in known and "deletionTimestamp" in known["n"]["metadata"])
    with pytest.raises(ForbiddenError, match="being terminated"):
        await api.request("create", f"{CLAIMS}@n", claim("d"))
    final = {**ending, "spec": {}}
    await api.request("update", "core/v1/namespaces/n/finalize", final)
    with pytest.raises(NotFoundError):
        await api.request("get", "core/v1/namespaces/n")


@pytest.mark.behaviour("SP-144", "PL-14")
async def test_a_claim_written_in_one_version_is_read_in_another(api: Local) -> None:
    await api.request("create", f"{CLAIMS}@default", claim("c"))
    old = await api.request("get", "resource.k8s.io/v1beta1/resourceclaims/c@default")
    assert old["spec"]["devices"]["requests"][0]["deviceClassName"] == "gpu.example.com"
    listing = await api.request("list", "resource.k8s.io/v1beta2/resourceclaims@default")
    assert listing["apiVersion"] == "resource.k8s.io/v1beta2"
    assert listing["items"][0]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


@pytest.mark.behaviour("CL-01", "CL-04")
async def test_classic_kinds_are_built_in_and_need_no_class(api: Local) -> None:
    old = {
        "apiVersion": "cdi.k8s.io/v1alpha1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {"resourceClassName": "not-there"},
    }
    created = await api.request("create", "cdi.k8s.io/v1alpha1/resourceclaims@default", old)
    assert created["spec"]["allocationMode"] == "Delayed"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}, "cannot be handled as a ResourceClaim"),
        ({**claim("x"), "apiVersion": "resource.k8s.io/v1beta1"}, "does not match the expected API version"),
        (claim("x", namespace="other"), "does not match the namespace sent on the request"),
    ],
)
async def test_a_body_that_is_not_for_this_place_is_a_bad_request(api: Local, body: Document, message: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        await api.request("create", f"{CLAIMS}@default", body)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("validation", "refused", "warned"), [("Strict", True, False), ("Warn", False, True), ("Ignore", False, False)]
)
async def test_unknown_fields_count_as_the_client_asks(
    api: Local, validation: str, refused: bool, warned: bool
) -> None:
    del warned  # Warnings are headers, which the HTTP tests check.
    body = {**config_map("c"), "dataa": {}}
    request = api.request("create", "core/v1/configmaps@default", body, query={"fieldValidation": validation})
    if refused:
        with pytest.raises(BadRequestError, match='unknown field "dataa"'):
            await request
        return
    assert "dataa" not in await request


@pytest.mark.behaviour("XR-07", "XR-08")
async def test_a_pods_special_claim_is_shown_in_kubernetes_json(api: Local) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await api.request("create", "core/v1/serviceaccounts@default", account)
    limits = {"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "1"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": limits}]},
    }
    await api.request("create", "core/v1/pods@default", pod)
    mapping = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"}
    status = {"resourceClaimName": "p-extended-resources-x", "requestMappings": [mapping]}
    patch = {"status": {"extendedResourceClaimStatus": status}}
    patched = await api.request("patch", "core/v1/pods/p/status@default", patch, content_type=MERGE)
    assert patched["status"]["extendedResourceClaimStatus"] == status
    other = {**mapping, "containerName": "nobody"}
    wrong = {"status": {"extendedResourceClaimStatus": {**status, "requestMappings": [other]}}}
    with pytest.raises(InvalidError, match="containerName"):
        await api.request("patch", "core/v1/pods/p/status@default", wrong, content_type=MERGE)


async def test_two_classes_may_have_the_same_extended_resource_name(api: Local) -> None:
    """Who wins is decided by those who read the classes; the server refuses neither."""
    for name in ("a", "b"):
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"extendedResourceName": "example.com/gpu"},
        }
        await api.request("create", "resource.k8s.io/v1/deviceclasses", body)
    listing = await api.request("list", "resource.k8s.io/v1/deviceclasses")
    assert {item["spec"]["extendedResourceName"] for item in listing["items"]} == {"example.com/gpu"}


def _short_pod(*claims: str) -> Document:
    container = {"name": "c", "image": "i", "resources": {"claims": list(claims)}}
    entries = [
        {"name": name, "template": {"resourceClassName": "gpu", "parameters": {"memory": "2Gi"}}} for name in claims
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [container], "resourceClaims": entries},
    }


@pytest.mark.behaviour("CL-57", "CL-14")
async def test_apply_accepts_the_short_forms_of_claims(api: Local) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await api.request("create", "core/v1/serviceaccounts@default", account)
    pods = "core/v1/pods/p@default"
    manager = {"fieldManager": "m"}
    applied = await api.request("patch", pods, _short_pod("gpu"), query=manager, content_type=APPLY)
    assert applied["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    template = applied["spec"]["resourceClaims"][0]["template"]
    assert template["spec"] == {"resourceClassName": "gpu", "parameters": {"memory": "2Gi"}}
    again = await api.request("patch", pods, _short_pod("gpu"), query=manager, content_type=APPLY)
    assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]


@pytest.mark.behaviour("CL-57", "CL-14")
async def test_a_strategic_patch_accepts_the_short_forms_of_claims(api: Local) -> None:
    spec = {**_short_pod("gpu")["spec"], "schedulerName": "none"}
    labels = {"app": "a"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    await api.request("create", "apps/v1/deployments@default", deployment)
    patch = {"spec": {"template": {"spec": _short_pod("gpu", "nic")["spec"]}}}
    changed = await api.request("patch", "apps/v1/deployments/d@default", patch, content_type=STRATEGIC)
    pod = changed["spec"]["template"]["spec"]
    assert {item["name"] for item in pod["containers"][0]["resources"]["claims"]} == {"gpu", "nic"}
    assert {item["template"]["spec"]["resourceClassName"] for item in pod["resourceClaims"]} == {"gpu"}
