"""Validation of a Pod's claims."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.field_errors import Path
from dray.api.validation import resource_pod
from tests.conformance.api.resource.resource_rows import LABEL, SUBDOMAIN, params, row, texts

SPEC, STATUS = Path("spec"), Path("status")
ONE_SOURCE = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
CLAIM = {"name": "c", "resourceClaimName": "claim"}


def pod(*claims: Document, name: str = "p", annotations: Document | None = None, **spec: Any) -> Document:
    metadata = {"name": name} | ({"annotations": annotations} if annotations else {})
    return {"metadata": metadata, "spec": {"resourceClaims": list(claims), **spec}}


def inline(metadata: Document | None = None, **spec: Any) -> Document:
    return {"name": "c", "template": {"metadata": metadata or {}, "spec": {"resourceClassName": "gpu", **spec}}}


CLAIMS = {
    "none": row("SP-29", {"metadata": {}, "spec": {}}),
    "a claim and a template": row("SP-29", pod(CLAIM, {"name": "d", "resourceClaimTemplateName": "t"})),
    "no name": row("SP-29", pod({"resourceClaimName": "x"}), "spec.resourceClaims[0].name: Required value"),
    "bad name": row(
        "SP-29",
        pod({"name": "A", "resourceClaimName": "x"}),
        f'spec.resourceClaims[0].name: Invalid value: "A": {LABEL}',
    ),
    "same name twice": row("SP-29", pod(CLAIM, CLAIM), 'spec.resourceClaims[1].name: Duplicate value: "c"'),
    "no source": row(
        "SP-29 CL-14",
        pod({"name": "c"}),
        'spec.resourceClaims[0]: Invalid value: {"Name":"c","ResourceClaimName":null,'
        f'"ResourceClaimTemplateName":null}}: {ONE_SOURCE}',
    ),
    "two sources": row(
        "SP-29 CL-14",
        pod({**CLAIM, "resourceClaimTemplateName": "t"}),
        'spec.resourceClaims[0]: Invalid value: {"Name":"c","ResourceClaimName":"claim",'
        '"ResourceClaimTemplateName":"t"}: at most one of `resourceClaimName` or `resourceClaimTemplateName` '
        "may be specified",
    ),
    "a claim and an inline template": row(
        "CL-14",
        pod({**CLAIM, **inline()}),
        'spec.resourceClaims[0]: Invalid value: {"Name":"c","ResourceClaimName":"claim",'
        '"ResourceClaimTemplateName":null}: at most one of `resourceClaimName`, `resourceClaimTemplateName` or '
        "`template` may be specified",
    ),
    "bad names of claim and template": row(
        "SP-29",
        pod({"name": "c", "resourceClaimName": "A_"}, {"name": "d", "resourceClaimTemplateName": ""}),
        f'spec.resourceClaims[0].resourceClaimName: Invalid value: "A_": {SUBDOMAIN}',
        f'spec.resourceClaims[1].resourceClaimTemplateName: Invalid value: "": {SUBDOMAIN}',
    ),
    "mirror pod": row(
        "SP-29",
        pod(CLAIM, annotations={"kubernetes.io/config.mirror": "x"}),
        "spec.resourceClaims: Forbidden: may not be set for static pods",
    ),
    "static pod": row(
        "SP-29",
        pod(CLAIM, annotations={"kubernetes.io/config.source": "file"}),
        "spec.resourceClaims: Forbidden: may not be set for static pods",
    ),
    "pod from the API": row("SP-29", pod(CLAIM, annotations={"kubernetes.io/config.source": "api"})),
    "mirror pod without claims": row(
        "SP-29", {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": {}}
    ),
    "inline template": row("CL-14 CL-15", pod(inline({"labels": {"a": "b"}, "annotations": {"c": "d"}}))),
    "inline template with a name": row(
        "CL-15",
        pod(inline({"name": "x", "namespace": "y"})),
        "spec.resourceClaims[0].template.metadata.name: Forbidden: cannot be set",
        "spec.resourceClaims[0].template.metadata.namespace: Forbidden: cannot be set",
    ),
    "inline template with a bad spec": row(
        "CL-15 CL-05",
        pod(inline(resourceClassName="", allocationMode="Later")),
        "spec.resourceClaims[0].template.spec.resourceClassName: Required value",
        'spec.resourceClaims[0].template.spec.allocationMode: Unsupported value: "Later": supported values: '
        '"Delayed", "Immediate"',
    ),
    "joined name of 253": row("CL-16", pod(inline(), name="p" * 251)),
    "joined name of 254": row(
        "CL-16",
        pod(inline(), name="p" * 252),
        f'spec.resourceClaims[0].name: Invalid value: "{"p" * 252}-c": final ResourceClaim name: '
        "must be no more than 253 characters",
    ),
    "joined name of a template object": row(
        "CL-16",
        pod({"name": "c", "resourceClaimTemplateName": "t"}, name="p" * 252),
        f'spec.resourceClaims[0].name: Invalid value: "{"p" * 252}-c": final ResourceClaim name: '
        "must be no more than 253 characters",
    ),
    "a named claim is not joined": row("CL-16", pod(CLAIM, name="p" * 252)),
}


@pytest.mark.parametrize(("given", "expected"), params(CLAIMS))
def test_pod_claims(given: Document, expected: list[str]) -> None:
    before = copy.deepcopy(given)
    errors = resource_pod.validate_pod_resource_claims(given["spec"], SPEC, metadata=given["metadata"])
    assert texts(errors) == expected
    assert given == before


def using(*claims: Document, init: tuple[Document, ...] = ()) -> Document:
    spec: Document = pod(CLAIM, {"name": "d", "resourceClaimName": "e"})["spec"]
    spec["containers"] = [{"name": "m", "resources": {"claims": list(claims)}}]
    spec["initContainers"] = [{"name": "i", "resources": {"claims": list(init)}}]
    return spec


C0 = "spec.containers[0].resources.claims"
CONTAINERS = {
    "whole claims": row("SP-30", using({"name": "c"}, {"name": "d"}, init=({"name": "c"},))),
    "requests of a claim": row("SP-30", using({"name": "c", "request": "a"}, {"name": "c", "request": "b"})),
    "unknown claim": row(
        "SP-30",
        using({"name": "x"}),
        f'{C0}[0]: Not found: "x": must be one of the names in pod.spec.resourceClaims: c, d',
    ),
    "unknown claim of a Pod without claims": row(
        "SP-30",
        {"containers": [{"resources": {"claims": [{"name": "x"}]}}]},
        f'{C0}[0]: Not found: "x": must be one of the names in pod.spec.resourceClaims which is empty',
    ),
    "unknown claim of a Pod whose claims have no names": row(
        "SP-30",
        {"containers": [{"resources": {"claims": [{"name": "x"}]}}], "resourceClaims": [{"name": ""}]},
        f'{C0}[0]: Not found: "x": must be one of the names in pod.spec.resourceClaims which is empty',
    ),
    "init container": row(
        "SP-30",
        using(init=({"name": "x"},)),
        'spec.initContainers[0].resources.claims[0]: Not found: "x": '
        "must be one of the names in pod.spec.resourceClaims: c, d",
    ),
    "no name": row("SP-30", using({"request": "a"}), f"{C0}[0]: Required value"),
    "same claim twice": row("SP-30", using({"name": "c"}, {"name": "c"}), f'{C0}[1]: Duplicate value: "c"'),
    "same request twice": row(
        "SP-30",
        using({"name": "c", "request": "a"}, {"name": "c", "request": "a"}),
        f'{C0}[1]: Duplicate value: "c/a"',
    ),
    "a request after the whole claim": row(
        "SP-30", using({"name": "c"}, {"name": "c", "request": "a"}), f'{C0}[1]: Duplicate value: "c"'
    ),
    "the whole claim after a request": row(
        "SP-30", using({"name": "c", "request": "a"}, {"name": "c"}), f'{C0}[1]: Duplicate value: "c"'
    ),
    "request that is no label": row(
        "SP-30",
        using({"name": "c", "request": "A"}),
        f'{C0}[0].request: Invalid value: "A": {LABEL}',
    ),
    "alternative of a request": row(
        "PL-11 SP-30",
        using({"name": "c", "request": "main/sub"}),
        f'{C0}[0].request: Invalid value: "main/sub": {LABEL}',
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(CONTAINERS))
def test_container_claims(given: Document, expected: list[str]) -> None:
    assert texts(resource_pod.validate_pod_claims_of_containers(given, SPEC)) == expected


STATUSES = {
    "generated": row("SP-31", [{"name": "c", "resourceClaimName": "p-c-x"}]),
    "not needed": row("SP-31", [{"name": "c"}]),
    "unknown": row(
        "SP-31",
        [{"name": "x"}],
        'status.resourceClaimStatuses[0].name: Invalid value: "x": '
        "must match the name of an entry in `spec.resourceClaims`",
    ),
    "twice": row("SP-31", [{"name": "c"}, {"name": "c"}], 'status.resourceClaimStatuses[1].name: Duplicate value: "c"'),
    "bad claim name": row(
        "SP-31",
        [{"name": "c", "resourceClaimName": "A_"}],
        f'status.resourceClaimStatuses[0].name: Invalid value: "A_": {SUBDOMAIN}',
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(STATUSES))
def test_claim_statuses(given: list[Document], expected: list[str]) -> None:
    status = {"resourceClaimStatuses": given}
    assert texts(resource_pod.validate_resource_claim_statuses(status, pod(CLAIM)["spec"], STATUS)) == expected


EXTENDED = {
    "containers": [{"name": "m", "resources": {"requests": {"example.com/gpu": "1"}}}],
    "initContainers": [{"name": "i", "resources": {"requests": {"example.com/gpu": "1"}}}],
}
E0 = "status.extendedResourceClaimStatus"


def mapping(container: str = "m", resource: str = "example.com/gpu", request: str = "r") -> Document:
    return {"containerName": container, "resourceName": resource, "requestName": request}


def mapped(*mappings: Document, name: str = "p-extended-resources-x") -> Document:
    return {"resourceClaimName": name, "requestMappings": list(mappings)}


EXTENDED_ROWS = {
    "unset": row("XR-08", None),
    "container and init container": row("XR-08", mapped(mapping(), mapping("i"), mapping(request="s"))),
    "nothing": row(
        "XR-08",
        {},
        f"{E0}.requestMappings: Required value: at least one request mapping is required",
        f"{E0}.resourceClaimName: Required value",
    ),
    "bad claim name": row(
        "XR-08", mapped(mapping(), name="A_"), f'{E0}.resourceClaimName: Invalid value: "A_": {SUBDOMAIN}'
    ),
    "unknown container": row(
        "XR-08",
        mapped(mapping("x")),
        f'{E0}.requestMappings[0].containerName: Invalid value: "x": '
        "must match the name of an entry in spec.initContainers.name or spec.containers.name",
    ),
    "resource that is not requested": row(
        "XR-08",
        mapped(mapping(resource="example.com/tpu")),
        f'{E0}.requestMappings[0].resourceName: Invalid value: "example.com/tpu": must match the extended resource '
        "name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests",
    ),
    "request that is no label": row(
        "XR-08", mapped(mapping(request="R")), f'{E0}.requestName: Invalid value: "R": {LABEL}'
    ),
    "same triple twice": row(
        "XR-08",
        mapped(mapping(), mapping()),
        f'{E0}.requestMappings[1].containerName: Duplicate value: "m"',
        f'{E0}.requestMappings[1].resourceName: Duplicate value: "example.com/gpu"',
        f'{E0}.requestMappings[1].requestName: Duplicate value: "r"',
    ),
}


@pytest.mark.parametrize(("given", "expected"), params(EXTENDED_ROWS))
def test_extended_resource_claim_status(given: Document | None, expected: list[str]) -> None:
    status = {} if given is None else {"extendedResourceClaimStatus": given}
    assert texts(resource_pod.validate_extended_resource_claim_status(status, EXTENDED, STATUS)) == expected


@pytest.mark.behaviour("N-46")
def test_amounts_are_of_claims_of_the_pod() -> None:
    spec = {"resourceClaims": [{"name": "a", "resourceClaimName": "named"}, {"name": "b"}]}
    status = {
        "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "special"},
        "nodeAllocatableResourceClaimStatuses": [
            {"resourceClaimName": name} for name in ("named", "made", "special", "a")
        ],
    }
    assert texts(resource_pod.validate_node_allocatable_claim_statuses(status, spec, STATUS)) == [
        'status.nodeAllocatableResourceClaimStatuses[3].resourceClaimName: Invalid value: "a": '
        "no mapping found in pod reference"
    ]
