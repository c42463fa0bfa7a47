"""DeviceTaintRules in their three versions: one stored form, and rules of the requested version."""

from __future__ import annotations

import pytest

from dray.api.document import Document
from dray.api.errors import APIError
from dray.apiserver.registry import builtin
from tests.local_server import Local

VERSIONS = ("v1", "v1beta2", "v1alpha3")


def path(version: str, name: str = "") -> str:
    return f"resource.k8s.io/{version}/devicetaintrules" + (f"/{name}" if name else "")


def rule(version: str, name: str, **taint: str) -> Document:
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {
            "deviceSelector": {"driver": "gpu.example.com"},
            "taint": {"key": "k", "effect": "NoSchedule", **taint},
        },
    }


@pytest.mark.behaviour("N-02", "N-05")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_rule_made_in_one_version_is_read_in_all(api: Local, version: str) -> None:
    made = await api.request("create", path(version), rule(version, "r"))
    assert made["metadata"]["generation"] == 1
    assert made["spec"]["taint"]["timeAdded"].endswith("Z")
    assert made["status"] == {}
    for other in VERSIONS:
        read = await api.request("get", path(other, "r"))
        assert read.pop("apiVersion") == f"resource.k8s.io/{other}"
        same = {name: value for name, value in made.items() if name != "apiVersion"}
        assert read == same
    entry = await api.running.store.get("/registry/resource.k8s.io/devicetaintrules/r")
    assert entry is not None
    assert b'"apiVersion":"resource.k8s.io/v1beta2"' in entry.value


@pytest.mark.behaviour("N-05")
@pytest.mark.parametrize("version", VERSIONS)
async def test_rules_are_validated_in_every_version(api: Local, version: str) -> None:
    with pytest.raises(APIError) as refused:
        await api.request("create", path(version), rule(version, "r", effect="Other", key="bad key"))
    assert refused.value.code == 422
    assert 'spec.taint.effect: Unsupported value: "Other"' in refused.value.message
    assert "spec.taint.key: Invalid value" in refused.value.message


@pytest.mark.behaviour("N-04")
@pytest.mark.parametrize("version", VERSIONS)
async def test_only_v1_needs_a_resource_version_for_an_update(api: Local, version: str) -> None:
    await api.request("create", path("v1"), rule("v1", "r"))
    changed = rule(version, "r", value="changed")
    if version == "v1":
        with pytest.raises(APIError) as refused:
            await api.request("update", path(version, "r"), changed)
        assert refused.value.code == 422
        text = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        assert text in refused.value.message
        with pytest.raises(APIError, match="must be specified for an update"):
            await api.request("update", f"{path(version, 'r')}/status", changed)
        changed["metadata"] = (await api.request("get", path(version, "r")))["metadata"]
    updated = await api.request("update", path(version, "r"), changed)
    assert updated["spec"]["taint"]["value"] == "changed"
    # A patch needs none.
    merged = await api.request(
        "patch",
        path(version, "r"),
        {"spec": {"taint": {"value": "patched"}}},
        content_type="application/merge-patch+json",
    )
    assert merged["metadata"]["generation"] == 3


@pytest.mark.behaviour("N-04")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_delete_in_v1_answers_with_a_status(api: Local, version: str) -> None:
    made = await api.request("create", path("v1"), rule("v1", "r"))
    answer = await api.request("delete", path(version, "r"))
    if version == "v1":
        assert (answer["kind"], answer["status"]) == ("Status", "Success")
        assert answer["details"]["uid"] == made["metadata"]["uid"]
    else:
        assert (answer["kind"], answer["metadata"]["uid"]) == ("DeviceTaintRule", made["metadata"]["uid"])
        assert answer["apiVersion"] == f"resource.k8s.io/{version}"


@pytest.mark.behaviour("N-09")
def test_only_v1alpha3_is_deprecated() -> None:
    texts = {
        endpoint.version: endpoint.deprecation
        for endpoint in builtin.endpoints()
        if endpoint.definition.kind == "DeviceTaintRule"
    }
    assert texts == {
        "v1": "",
        "v1beta2": "",
        "v1alpha3": "resource.k8s.io/v1alpha3 DeviceTaintRule is deprecated in v1.36+, unavailable in v1.39+",
    }
