"""The device kinds with kubectl, in all served versions."""

from __future__ import annotations

import json

import pytest

from tests.e2e.kubectl import bodies
from tests.e2e.kubectl.tool import Document, Kubectl, needs_kubectl

VERSIONS = ("v1", "v1beta2", "v1beta1")


def first_available(name: str, *names: str) -> Document:
    document = bodies.claim(name)
    alternatives = [{"name": item, "deviceClassName": "gpu.example.com"} for item in names]
    document["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": alternatives}]
    return document


class TestClaims:
    def test_table(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.claim("c"))
        (row,) = kubectl.table("resourceclaims")
        assert (list(row), row["NAME"], row["STATE"]) == (["NAME", "STATE", "AGE"], "c", "pending")

    @needs_kubectl(24)
    @pytest.mark.behaviour("SP-32")
    def test_life_of_a_claim_in_the_table(self, kubectl: Kubectl) -> None:
        document = bodies.claim("c")
        document["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
        kubectl("create", "-f", "-", stdin=document)
        result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
        # Not a Pod, since a controller may know that there is no such Pod.
        user = {"apiGroup": "example.com", "resource": "users", "name": "u", "uid": "1"}
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
        patch = ("patch", "resourceclaim", "c", "--type=merge", "-p")
        kubectl(*patch, json.dumps({"status": status}), "--subresource=status")
        assert kubectl.table("resourceclaims")[0]["STATE"] == "allocated,reserved"
        kubectl("delete", "resourceclaim", "c", "--wait=false")
        assert kubectl.table("resourceclaims")[0]["STATE"] == "deleted,allocated,reserved"
        kubectl(*patch, '{"metadata":{"finalizers":null}}')
        kubectl.wait_until_gone("resourceclaim/c")

    @pytest.mark.behaviour("SP-01", "SP-144")
    @pytest.mark.parametrize("version", VERSIONS)
    def test_read_in_every_version(self, kubectl: Kubectl, version: str) -> None:
        kubectl("create", "-f", "-", stdin=bodies.claim("c"))
        answer = kubectl.run("get", f"resourceclaims.{version}.resource.k8s.io", "c", "-o", "json")
        claim = json.loads(answer.out)
        assert claim["apiVersion"] == f"resource.k8s.io/{version}"
        content = {"allocationMode": "ExactCount", "count": 1, "deviceClassName": "gpu.example.com"}
        request = {"name": "gpu"} | (content if version == "v1beta1" else {"exactly": content})
        assert claim["spec"]["devices"]["requests"] == [request]
        assert ("is deprecated" in answer.err) == (version != "v1")

    @pytest.mark.behaviour("SP-14")
    def test_written_flat_and_read_nested(self, kubectl: Kubectl) -> None:
        document = bodies.claim("c") | {"apiVersion": "resource.k8s.io/v1beta1"}
        document["spec"] = {"devices": {"requests": [{"name": "gpu", "deviceClassName": "x.example.com", "count": 2}]}}
        kubectl("apply", "-f", "-", stdin=document)
        (request,) = kubectl.get("resourceclaim", "c")["spec"]["devices"]["requests"]
        assert request["exactly"] == {"allocationMode": "ExactCount", "count": 2, "deviceClassName": "x.example.com"}
        kubectl("apply", "-f", "-", stdin=document)

    @pytest.mark.behaviour("PL-04")
    def test_alternatives(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=first_available("eight", *(f"a{number}" for number in range(8))))
        message = kubectl.error("create", "-f", "-", stdin=first_available("nine", *(f"a{n}" for n in range(9))))
        assert "spec.devices.requests[0].firstAvailable: Too many: 9: must have at most 8 items" in message

    @pytest.mark.behaviour("SP-16")
    def test_spec_is_immutable(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.claim("c"))
        message = kubectl.error("apply", "-f", "-", stdin=bodies.claim("c", "other.example.com"))
        assert 'The ResourceClaim "c" is invalid: spec: Invalid value:' in message
        assert "field is immutable" in message

    @pytest.mark.behaviour("SP-10")
    def test_selector_that_does_not_compile(self, kubectl: Kubectl) -> None:
        document = bodies.claim("c")
        document["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": "device.nope"}}]
        message = kubectl.error("create", "-f", "-", stdin=document)
        assert "spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value:" in message
        assert "undefined field 'nope'" in message

    @pytest.mark.behaviour("SP-22")
    def test_admin_access_needs_a_label_on_the_namespace(self, kubectl: Kubectl) -> None:
        document = bodies.claim("c")
        document["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
        message = kubectl.error("create", "-f", "-", stdin=document)
        assert "resource.kubernetes.io/admin-access" in message
        kubectl("label", "namespace", kubectl.namespace, "resource.kubernetes.io/admin-access=true")
        kubectl("create", "-f", "-", stdin=document)


class TestTemplates:
    def test_create_and_read(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.claim_template("t"))
        assert kubectl.table("resourceclaimtemplates")[0]["NAME"] == "t"
        for version in VERSIONS:
            found = kubectl.get(f"resourceclaimtemplates.{version}.resource.k8s.io", "t")
            assert found["apiVersion"] == f"resource.k8s.io/{version}"

    @pytest.mark.behaviour("SP-16")
    def test_spec_is_immutable(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.claim_template("t"))
        patch = {"spec": {"metadata": {"labels": {"a": "b"}}}}
        message = kubectl.error("patch", "resourceclaimtemplate", "t", "--type=merge", "-p", json.dumps(patch))
        assert "field is immutable" in message


class TestSlices:
    def test_table_and_versions(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.resource_slice("shown", node_name="n1"))
        row = kubectl.table("resourceslice", "shown")[0]
        assert [row[name] for name in ("NODE", "DRIVER", "POOL")] == ["n1", "gpu.example.com", "n1"]
        old = kubectl.get("resourceslices.v1beta1.resource.k8s.io", "shown")
        assert old["spec"]["devices"] == [{"name": "gpu-0", "basic": {"attributes": {"model": {"string": "A"}}}}]

    @pytest.mark.behaviour("SP-33", "N-141")
    def test_field_selectors(self, kubectl: Kubectl) -> None:
        slices = [bodies.resource_slice(f"on-{node}", node_name=node, driver="sel.example.com") for node in ("x", "y")]
        kubectl("create", "-f", "-", stdin=slices)
        selector = "--field-selector=spec.driver=sel.example.com,spec.nodeName=y"
        assert kubectl("get", "resourceslices", selector, "-o", "name") == "resourceslice.resource.k8s.io/on-y\n"
        pool = "--field-selector=spec.driver=sel.example.com,spec.pool.name=x"
        assert kubectl("get", "resourceslices", pool, "-o", "name") == "resourceslice.resource.k8s.io/on-x\n"
        message = kubectl.error("get", "resourceslices", "--field-selector=spec.pool.generation=1")
        assert "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.pool.generation" in message

    @pytest.mark.behaviour("SP-03")
    def test_driver_is_immutable(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.resource_slice("fixed", node_name="n"))
        patch = ("patch", "resourceslice", "fixed", "--type=merge", "-p", '{"spec":{"driver":"other.example.com"}}')
        assert 'spec.driver: Invalid value: "other.example.com": field is immutable' in kubectl.error(*patch)

    @pytest.mark.behaviour("SP-02")
    def test_one_way_to_choose_nodes(self, kubectl: Kubectl) -> None:
        document = bodies.resource_slice("many", node_name="n")
        document["spec"]["allNodes"] = True
        message = kubectl.error("create", "-f", "-", stdin=document)
        assert "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required" in message


class TestClassesAndTaintRules:
    @pytest.mark.behaviour("SP-16")
    def test_class_may_change(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.device_class("changing"))
        assert kubectl.field("deviceclass/changing", "metadata.generation") == "1"
        kubectl("apply", "-f", "-", stdin=bodies.device_class("changing", "true"))
        assert kubectl.field("deviceclass/changing", "metadata.generation") == "2"
        for version in VERSIONS:
            found = kubectl.get(f"deviceclasses.{version}.resource.k8s.io", "changing")
            assert found["spec"]["selectors"] == [{"cel": {"expression": "true"}}]

    def test_taint_rule(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.taint_rule("broken"))
        row = kubectl.table("devicetaintrule", "broken")[0]
        assert [row[name] for name in ("KEY", "VALUE", "EFFECT")] == ["example.com/broken", "yes", "NoExecute"]
        for version in ("v1", "v1beta2", "v1alpha3"):
            answer = kubectl.run("get", f"devicetaintrules.{version}.resource.k8s.io", "broken", "-o", "json")
            assert '"timeAdded": "20' in answer.out
            text = "resource.k8s.io/v1alpha3 DeviceTaintRule is deprecated in v1.36+, unavailable in v1.39+"
            assert (text in answer.err) == (version == "v1alpha3")

    def test_taint_rule_without_effect(self, kubectl: Kubectl) -> None:
        document = bodies.taint_rule("bad")
        del document["spec"]["taint"]["effect"]
        message = kubectl.error("create", "--validate=false", "-f", "-", stdin=document)
        assert "spec.taint.effect: Required value" in message


class TestClassicKinds:
    @pytest.mark.behaviour("CL-01", "CL-04", "CL-05", "CL-06")
    def test_claim_without_a_class(self, kubectl: Kubectl) -> None:
        kubectl("apply", "-f", "-", stdin=bodies.classic_claim("c", "not-there"))
        (row,) = kubectl.table("resourceclaims.cdi.k8s.io")
        assert [row[name] for name in ("NAME", "RESOURCECLASSNAME", "ALLOCATIONMODE", "STATE")] == [
            *("c", "not-there", "Delayed", "Pending")
        ]

    def test_both_groups_have_claims_of_one_name(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=[bodies.claim("c"), bodies.classic_claim("c", "x")])
        assert kubectl("get", "resourceclaims", "-o", "name") == "resourceclaim.resource.k8s.io/c\n"
        kubectl("delete", "resourceclaims.cdi.k8s.io", "c")
        kubectl("get", "resourceclaim", "c")

    def test_class(self, kubectl: Kubectl) -> None:
        document = bodies.classic_class("old") | {"parameters": {"any": {"thing": [1, "two"]}}}
        kubectl("apply", "-f", "-", stdin=document)
        assert kubectl.table("resourceclasses", "old")[0]["DRIVERNAME"] == "gpu.acme.com"
        assert kubectl.get("resourceclass", "old")["parameters"] == {"any": {"thing": [1, "two"]}}

    @pytest.mark.behaviour("CL-03")
    def test_spec_is_immutable(self, kubectl: Kubectl) -> None:
        kubectl("create", "-f", "-", stdin=bodies.classic_claim("c", "a"))
        patch = ("resourceclaims.cdi.k8s.io", "c", "--type=merge", "-p", '{"spec":{"resourceClassName":"b"}}')
        assert "field is immutable" in kubectl.error("patch", *patch)


@pytest.mark.behaviour("SP-29", "SP-30")
def test_pod_with_claims(kubectl: Kubectl) -> None:
    document = bodies.pod("p")
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    document["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    kubectl("create", "-f", "-", stdin=document)
    assert kubectl.field("pod/p", "spec.resourceClaims[0].resourceClaimName") == "c"
    document["metadata"]["name"] = "q"
    document["spec"]["containers"][0]["resources"] = {"claims": [{"name": "other"}]}
    message = kubectl.error("create", "-f", "-", stdin=document)
    assert 'spec.containers[0].resources.claims[0]: Not found: "other": must be one of the names' in message
