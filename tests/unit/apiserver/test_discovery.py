"""Discovery documents, old and aggregated."""

from __future__ import annotations

import random

import pytest

from dray.api.document import GroupVersion
from dray.apiserver import discovery
from dray.apiserver.registry import builtin

ENDPOINTS = list(builtin.endpoints())


def test_versions_are_in_kubernetes_order() -> None:
    wanted = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    shuffled = wanted.copy()
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled, key=discovery.version_priority) == wanted


@pytest.mark.behaviour("SP-01")
def test_the_resource_group_prefers_v1() -> None:
    assert discovery.group_versions(ENDPOINTS)["resource.k8s.io"] == ["v1", "v1beta2", "v1beta1", "v1alpha3"]
    listing = discovery.api_resource_list(GroupVersion("resource.k8s.io", "v1"), ENDPOINTS)
    scopes = {item["name"]: item["namespaced"] for item in listing["resources"]}
    assert scopes == {
        "deviceclasses": False,
        "devicetaintrules": False,
        "devicetaintrules/status": False,
        "resourceclaims": True,
        "resourceclaims/status": True,
        "resourceclaimtemplates": True,
        "resourceslices": False,
    }
    beta = discovery.api_resource_list(GroupVersion("resource.k8s.io", "v1beta2"), ENDPOINTS)
    assert "devicetaintrules" in {item["name"] for item in beta["resources"]}


def test_both_forms_tell_the_same() -> None:
    aggregated = discovery.aggregated(ENDPOINTS, core=False)
    old = discovery.api_group_list(ENDPOINTS)
    assert [item["metadata"]["name"] for item in aggregated["items"]] == [item["name"] for item in old["groups"]]
    for group in aggregated["items"]:
        for version in group["versions"]:
            place = GroupVersion(group["metadata"]["name"], version["version"])
            names = [item["name"] for item in discovery.api_resource_list(place, ENDPOINTS)["resources"]]
            assert [item["resource"] for item in version["resources"]] == [name for name in names if "/" not in name]


def test_subresources_say_what_they_speak() -> None:
    core = discovery.aggregated(ENDPOINTS, core=True)["items"][0]["versions"][0]
    pods = next(item for item in core["resources"] if item["resource"] == "pods")
    kinds = {item["subresource"]: item["responseKind"]["kind"] for item in pods["subresources"]}
    assert kinds["eviction"] == "Eviction"
    assert kinds["binding"] == "Binding"
    assert kinds["status"] == "Pod"


@pytest.mark.behaviour("EX-01")
def test_streams_are_listed_with_the_verbs_of_their_methods() -> None:
    listing = discovery.api_resource_list(GroupVersion("", "v1"), ENDPOINTS)["resources"]
    found = {item["name"]: (item["kind"], item["verbs"]) for item in listing}
    both = ["create", "get"]
    assert found["pods/exec"] == ("PodExecOptions", both)
    assert found["pods/attach"] == ("PodAttachOptions", both)
    assert found["pods/portforward"] == ("PodPortForwardOptions", both)
    assert found["pods/ephemeralcontainers"] == ("Pod", ["get", "patch", "update"])
    assert found["pods/proxy"] == ("PodProxyOptions", ["create", "delete", "get", "patch", "update"])
