"""APIServices of other servers, beside those of the group versions that are served here."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import InvalidError, NotFoundError
from tests.local_server import Local

PATH = "apiregistration.k8s.io/v1/apiservices"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def service(group: str = "example.com", version: str = "v1", **spec: Any) -> Document:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{group}"},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": 15,
            "service": {"namespace": "default", "name": "other"},
            **spec,
        },
    }


def condition(document: Document) -> tuple[str, str]:
    (found,) = document["status"]["conditions"]
    return found["status"], found["reason"]


async def test_an_api_service_of_another_server_is_stored_and_not_available(api: Local) -> None:
    made = await api.request("create", PATH, service())
    assert made["spec"]["service"]["port"] == 443
    assert condition(made) == ("False", "NotPassedOn")
    assert "default/other is not called" in made["status"]["conditions"][0]["message"]
    listing = await api.request("list", PATH)
    names = [item["metadata"]["name"] for item in listing["items"]]
    assert names == sorted(names)
    assert {"v1.", "v1.apps", "v1.example.com"} <= set(names)
    assert not api.running.server.catalog.has_group_version("example.com", "v1")
    await api.request("delete", f"{PATH}/v1.example.com")
    with pytest.raises(NotFoundError):
        await api.request("get", f"{PATH}/v1.example.com")


async def test_one_is_applied_by_helm(api: Local) -> None:
    query = {"fieldManager": "helm", "force": "true"}
    body = service(insecureSkipTLSVerify=True)
    applied = await api.request("patch", f"{PATH}/v1.example.com", body, query=query, content_type=APPLY)
    again = await api.request("patch", f"{PATH}/v1.example.com", body, query=query, content_type=APPLY)
    assert applied["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
    patch = {"spec": {"versionPriority": 16}}
    changed = await api.request("patch", f"{PATH}/v1.example.com", patch, content_type=MERGE)
    assert (changed["spec"]["versionPriority"], condition(changed)) == (16, ("False", "NotPassedOn"))


async def test_metrics_are_served_here_whatever_is_stored(api: Local) -> None:
    made = await api.request("create", PATH, service("metrics.k8s.io", "v1beta1"))
    assert condition(made) == ("True", "Local")
    assert (await api.request("get", f"{PATH}/v1beta1.metrics.k8s.io"))["spec"]["service"]["name"] == "other"
    assert (await api.request("list", "metrics.k8s.io/v1beta1/nodes"))["items"] == []
    await api.request("delete", f"{PATH}/v1beta1.metrics.k8s.io")
    # A chart that brings it must find none that it does not own.
    with pytest.raises(NotFoundError):
        await api.request("get", f"{PATH}/v1beta1.metrics.k8s.io")
    listed = await api.request("list", PATH)
    assert "v1beta1.metrics.k8s.io" not in {item["metadata"]["name"] for item in listed["items"]}


async def test_selectors_cover_both_kinds(api: Local) -> None:
    await api.request("create", PATH, service())
    automanaged = {"labelSelector": "kube-aggregator.kubernetes.io/automanaged"}
    found = await api.request("list", PATH, query=automanaged)
    assert "v1.example.com" not in [item["metadata"]["name"] for item in found["items"]]
    for name in ("v1.example.com", "v1.apps"):
        found = await api.request("list", PATH, query={"fieldSelector": f"metadata.name={name}"})
        assert [item["metadata"]["name"] for item in found["items"]] == [name]


# From ValidateAPIService of kube-aggregator.
INVALID: dict[str, tuple[Document, str]] = {
    "name": (
        service() | {"metadata": {"name": "v2.example.com"}},
        'metadata.name: Invalid value: "v2.example.com": must be `spec.version+"."+spec.group`: "v1.example.com"',
    ),
    "no group": (
        service(group="", version="v2"),
        "spec.group: Required value: only v1 may have an empty group and it better be legacy kube",
    ),
    "group priority": (
        service(groupPriorityMinimum=20001),
        "spec.groupPriorityMinimum: Invalid value: 20001: must be positive and less than 20000",
    ),
    "version priority": (
        service(versionPriority=0),
        "spec.versionPriority: Invalid value: 0: must be positive and less than 1000",
    ),
    "service": (service(service={"namespace": "default"}), "spec.service.name: Required value"),
    "local bundle": (
        service(service=None, caBundle="YQ=="),
        'spec.caBundle: Invalid value: "4 bytes": local APIServices may not have a caBundle',
    ),
    "insecure": (
        service(insecureSkipTLSVerify=True, caBundle="YQ=="),
        "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present",
    ),
}


@pytest.mark.parametrize("name", INVALID)
async def test_rules(api: Local, name: str) -> None:
    body, text = INVALID[name]
    with pytest.raises(InvalidError) as caught:
        await api.request("create", PATH, body)
    assert text in str(caught.value)
