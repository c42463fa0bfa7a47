"""An API server that emulates older releases: what it drops, keeps and serves."""

from __future__ import annotations

import pytest

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError
from dray.api.features import FeatureGates
from dray.api.gate_table import Release
from dray.client.interface import Patch, PatchType, Resource, unstructured
from dray.client.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.e2e.emulation.rollout import Rollout, exactly, first_available, gates, rollout

LABEL = Patch(PatchType.MERGE, {"metadata": {"labels": {"a": "b"}}})
V1BETA1_CLAIMS = unstructured(GroupVersion("resource.k8s.io", "v1beta1"), "resourceclaims", "ResourceClaim")


@pytest.mark.behaviour("EV-04")
@pytest.mark.parametrize("minor", [33, 36, 37])
def test_the_version_says_what_is_emulated(minor: int) -> None:
    async def test(cluster: Rollout) -> None:
        await cluster.serve(FeatureGates(release=Release(1, minor)))
        found = await cluster.client.get_path("/version")
        versions = {name: found[name] for name in found if name.endswith(("ajor", "inor")) or name == "gitVersion"}
        assert versions == {
            "major": "1",
            "minor": "37",
            "emulationMajor": "1",
            "emulationMinor": str(minor),
            "minCompatibilityMajor": "1",
            "minCompatibilityMinor": str(minor - 1),
            "gitVersion": "v1.37.0",
        }

    rollout(test)


async def is_not_served(cluster: Rollout, resource: Resource[Document]) -> bool:
    with pytest.raises(APIError) as refused:
        await cluster.client.list(resource)
    return refused.value.code == 404


def slice_with(**device: object) -> Document:
    spec = {
        "driver": "d.example.com",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "n",
        "devices": [{"name": "d", **device}],
    }
    return {"metadata": {"name": "s"}, "spec": spec}


TAINT = {"key": "a.b/c", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
COUNTERS = {"counterSet": "c", "counters": {"memory": {"value": "1Gi"}}}
# A release that had the gate off, and what it dropped of a slice.
DROPPED = {
    "taints of 1.35": (Release(1, 35), {"taints": [TAINT]}),
    "sharing of 1.35": (Release(1, 35), {"allowMultipleAllocations": True}),
    "binding conditions of 1.34": (Release(1, 34), {"bindsToNode": True}),
    "counters of 1.35": (Release(1, 35), {"consumesCounters": [COUNTERS]}),
}


@pytest.mark.behaviour("EV-14", "EV-15", "EV-16")
@pytest.mark.parametrize(("release", "fields"), DROPPED.values(), ids=DROPPED)
def test_fields_are_dropped_from_new_objects_and_kept_in_those_that_have_them(
    release: Release, fields: Document
) -> None:
    off, on = FeatureGates(release=release), gates("AllAlpha=true,AllBeta=true")

    async def test(cluster: Rollout) -> None:
        slices = RESOURCE_SLICES.unstructured
        await cluster.serve(off)
        made = await cluster.client.create(slices, slice_with(**fields))
        assert made["spec"]["devices"][0] != {"name": "d", **fields}
        # An update cannot add them either.
        made["spec"]["devices"] = [{"name": "d", **fields}]
        updated = await cluster.client.update(slices, made)
        assert set(updated["spec"]["devices"][0]) <= {"name", "attributes"}
        await cluster.serve(on)
        updated["spec"]["devices"] = [{"name": "d", **fields}]
        await cluster.client.update(slices, updated)
        await cluster.serve(off)
        stored = await cluster.client.patch(slices, "s", "", LABEL)
        for name, value in fields.items():
            assert stored["spec"]["devices"][0][name] == value

    rollout(test)


@pytest.mark.behaviour("EV-14", "EV-15", "EV-16")
def test_requests_of_claims_and_names_of_classes() -> None:
    off = gates("DynamicResourceAllocation=true", Release(1, 33))

    async def test(cluster: Rollout) -> None:
        await cluster.serve(off)
        await cluster.prepare()
        tolerations = [{"key": "a.b/c", "operator": "Exists"}]
        claim = await cluster.claim("a", exactly(adminAccess=False, tolerations=tolerations), version="v1beta2")
        assert set(claim["spec"]["devices"]["requests"][0]["exactly"]) == {"deviceClassName", "allocationMode", "count"}
        # In the oldest version, the fields of a request are not nested.
        request = {"name": "gpu", "deviceClassName": "gpu", "tolerations": tolerations}
        body = {"metadata": {"name": "b", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
        made = await cluster.client.create(V1BETA1_CLAIMS, body)
        assert "tolerations" not in made["spec"]["devices"]["requests"][0]
        named = {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "a.b/c"}}
        assert (await cluster.client.create(DEVICE_CLASSES.unstructured, named))["spec"] == {}

    rollout(test)


@pytest.mark.behaviour("EV-16", "EV-32")
def test_the_oldest_version_can_be_switched_off() -> None:
    async def test(cluster: Rollout) -> None:
        await cluster.serve(gates())
        await cluster.prepare()
        request = {"name": "gpu", "deviceClassName": "gpu"}
        body = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}
        await cluster.client.create(V1BETA1_CLAIMS, body)
        await cluster.serve(gates(), ["resource.k8s.io/v1beta1=false"])
        group = await cluster.client.get_path("/apis/resource.k8s.io")
        assert [item["version"] for item in group["versions"]] == ["v1", "v1beta2", "v1alpha3"]
        assert await is_not_served(cluster, V1BETA1_CLAIMS)
        stored = await cluster.client.get(RESOURCE_CLAIMS.unstructured, "a", "default")
        assert stored["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu"
        await cluster.client.patch(RESOURCE_CLAIMS.unstructured, "a", "default", LABEL)
        await cluster.serve(gates())
        found = await cluster.client.get(V1BETA1_CLAIMS, "a", "default")
        assert found["spec"]["devices"]["requests"][0]["deviceClassName"] == "gpu"

    rollout(test)


@pytest.mark.behaviour("EV-12")
def test_components_of_a_server_without_devices_run() -> None:
    off = ["resource.k8s.io/v1=false", "resource.k8s.io/v1beta1=false", "resource.k8s.io/v1beta2=false"]

    async def test(cluster: Rollout) -> None:
        await cluster.serve(gates(), [*off, "resource.k8s.io/v1alpha3=false"])
        await cluster.prepare()
        await cluster.control(gates())
        await cluster.schedule(gates())
        await cluster.start_node("")
        assert await is_not_served(cluster, DEVICE_TAINT_RULES)
        await cluster.pod("plain")
        await cluster.running("plain")

    rollout(test)


@pytest.mark.behaviour("EV-16")
def test_an_old_client_reads_an_object_with_fields_that_its_release_does_not_have() -> None:
    async def test(cluster: Rollout) -> None:
        await cluster.serve(gates())
        await cluster.prepare()
        await cluster.claim("a", first_available(2, 1))
        await cluster.serve(gates("DRAPrioritizedList=false", Release(1, 36)))
        for resource in (V1BETA1_CLAIMS, RESOURCE_CLAIMS.unstructured):
            found = await cluster.client.get(resource, "a", "default")
            names = [item["name"] for item in found["spec"]["devices"]["requests"][0]["firstAvailable"]]
            assert names == ["a0", "a1"]
            found["metadata"]["labels"] = {"written": resource.version}
            kept = await cluster.client.update(resource, found)
            assert kept["spec"] == found["spec"]

    rollout(test)
