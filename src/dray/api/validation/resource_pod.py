"""Claims of a Pod: references, use by containers, and statuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dray.api import names
from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, duplicate, forbidden, invalid, not_found, required
from dray.api.validation import resource_fields as fields
from dray.api.validation.cdi_v1alpha1 import validate_claim_template
from dray.api.validation.resource_node_allocatable import validate_node_allocatable_statuses
from dray.api.validation.resource_rendering import POD_CLAIM, internal_form

MIRROR_POD_ANNOTATION: Final = "kubernetes.io/config.mirror"
STATIC_POD_SOURCE_ANNOTATION: Final = "kubernetes.io/config.source"

CONTAINER_LISTS: Final = ("initContainers", "containers")
_SOURCES: Final = ("resourceClaimName", "resourceClaimTemplateName", "template")


def validate_pod_resource_claims(pod_spec: Document, path: Path, *, metadata: Document | None = None) -> FieldErrors:
    """Validate `spec.resourceClaims`; given the Pod's metadata, also the names of its generated claims.

    `path` is that of the Pod's spec.
    """
    claims = pod_spec.get("resourceClaims")
    if not claims or (metadata is not None and _is_one_generated(claims, metadata)):
        return []
    path = path.child("resourceClaims")
    errors: FieldErrors = []
    if metadata is not None and _is_static(metadata):
        errors.append(forbidden(path, "may not be set for static pods"))
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        at = path.index(index)
        errors += _claim_name(claim, at, seen, (metadata or {}).get("name"))
        errors += _claim_source(claim, at)
    return errors


def _is_one_generated(claims: Sequence[Document], metadata: Document) -> bool:
    """Report whether a Pod, not a static one, has one claim from a template, as most have, and all names are valid."""
    claim = claims[0]
    if len(claims) > 1 or claim.keys() != {"name", "resourceClaimTemplateName"} or metadata.get("annotations"):
        return False
    name, template = claim["name"] or "", claim["resourceClaimTemplateName"] or ""
    generated = f"{metadata.get('name') or name}-{name}"
    return not (names.dns1123_label(name) or names.dns1123_subdomain(generated) or names.dns1123_subdomain(template))


def _is_static(metadata: Document) -> bool:
    annotations = metadata.get("annotations") or {}
    return MIRROR_POD_ANNOTATION in annotations or annotations.get(STATIC_POD_SOURCE_ANNOTATION, "api") != "api"


def _claim_name(claim: Document, path: Path, seen: set[str], pod_name: str | None) -> FieldErrors:
    name = claim.get("name")
    if not name:
        return [required(path.child("name"))]
    if name in seen:
        return [duplicate(path.child("name"), name)]
    seen.add(name)
    errors = fields.label(name, path, "name")
    generated = claim.get("resourceClaimTemplateName") is not None or claim.get("template") is not None
    if errors or not generated or not pod_name:
        return errors
    final = f"{pod_name}-{name}"
    return [
        invalid(path.child("name"), final, f"final ResourceClaim name: {message}")
        for message in names.dns1123_subdomain(final)
    ]


def _claim_source(claim: Document, path: Path) -> FieldErrors:
    given = [source for source in _SOURCES if claim.get(source) is not None]
    errors: FieldErrors = []
    if len(given) > 1:
        text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        if "template" in given:
            text = "at most one of `resourceClaimName`, `resourceClaimTemplateName` or `template` may be specified"
        errors.append(invalid(path, internal_form(POD_CLAIM, claim), text))
    if not given:
        text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        errors.append(invalid(path, internal_form(POD_CLAIM, claim), text))
    for source in _SOURCES[:2]:
        if claim.get(source) is not None:
            errors += fields.subdomain(claim[source], path, source)
    if claim.get("template") is not None:
        errors += validate_claim_template(claim["template"], path.child("template"))
    return errors


def validate_container_claims(
    claims: list[Document] | None, pod_claim_names: frozenset[str], path: Path
) -> FieldErrors:
    """Validate `resources.claims` of one container; `path` is that of the list."""
    errors: FieldErrors = []
    detail = "must be one of the names in pod.spec.resourceClaims"
    names = sorted(filter(None, pod_claim_names))
    detail += f": {', '.join(names)}" if names else " which is empty"
    # The requests of each claim that were referred to so far; the empty one stands for the whole claim.
    seen: dict[str, set[str]] = {}
    for index, claim in enumerate(claims or ()):
        name, at = claim.get("name") or "", path.index(index)
        if not name:
            errors.append(required(at))
            continue
        errors += _overlap(name, claim.get("request") or "", seen, at)
        if name not in pod_claim_names:
            errors.append(replace(not_found(at, name), detail=detail))
    return errors


def _overlap(name: str, request: str, seen: dict[str, set[str]], path: Path) -> FieldErrors:
    requests = seen.setdefault(name, set())
    if "" in requests:
        return [duplicate(path, name)]
    errors = fields.label(request, path, "request") if request else []
    if request in requests:
        errors.append(duplicate(path, f"{name}/{request}"))
    elif not request:
        errors += [duplicate(path, name)] * len(requests)
    requests.add(request)
    return errors


def claim_names(pod_spec: Document) -> frozenset[str]:
    """Return the names that containers may refer to."""
    return frozenset([claim.get("name") or "" for claim in pod_spec.get("resourceClaims") or ()])


def validate_pod_claims_of_containers(pod_spec: Document, path: Path) -> FieldErrors:
    """Validate `resources.claims` of all containers and init containers; `path` is that of the Pod's spec."""
    known = claim_names(pod_spec)
    errors: FieldErrors = []
    for containers in CONTAINER_LISTS:
        for index, container in enumerate(pod_spec.get(containers) or ()):
            claims = (container.get("resources") or {}).get("claims")
            if claims:
                at = path.child(containers).index(index).child("resources", "claims")
                errors += validate_container_claims(claims, known, at)
    return errors


def validate_resource_claim_statuses(status: Document, pod_spec: Document, path: Path) -> FieldErrors:
    """Validate `status.resourceClaimStatuses`; `path` is that of the Pod's status."""
    known = claim_names(pod_spec)
    errors: FieldErrors = []
    seen: set[str] = set()
    for index, item in enumerate(status.get("resourceClaimStatuses") or ()):
        # The path of the name, below that of the status.
        at = f"resourceClaimStatuses[{index}].name"
        name = item.get("name") or ""
        if name not in known:
            text = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(invalid(path.child(at), name, text))
        if name in seen:
            errors.append(duplicate(path.child(at), name))
        seen.add(name)
        if item.get("resourceClaimName") is not None:
            errors += fields.subdomain(item["resourceClaimName"], path, at)
    return errors


def validate_node_allocatable_claim_statuses(status: Document, pod_spec: Document, path: Path) -> FieldErrors:
    """Validate `status.nodeAllocatableResourceClaimStatuses`; `path` is that of the Pod's status."""
    statuses = status.get("nodeAllocatableResourceClaimStatuses")
    if not statuses:
        return []
    references = [
        *(pod_spec.get("resourceClaims") or ()),
        *(status.get("resourceClaimStatuses") or ()),
        status.get("extendedResourceClaimStatus") or {},
    ]
    names = frozenset(item["resourceClaimName"] for item in references if item.get("resourceClaimName"))
    return validate_node_allocatable_statuses(statuses, names, path.child("nodeAllocatableResourceClaimStatuses"))


def validate_extended_resource_claim_status(status: Document, pod_spec: Document, path: Path) -> FieldErrors:
    """Validate `status.extendedResourceClaimStatus`; `path` is that of the Pod's status."""
    claim_status = status.get("extendedResourceClaimStatus")
    if claim_status is None:
        return []
    path = path.child("extendedResourceClaimStatus")
    mappings, mappings_path = claim_status.get("requestMappings") or (), path.child("requestMappings")
    errors = [] if mappings else [required(mappings_path, "at least one request mapping is required")]
    containers = {container.get("name") or "": container for container in containers_of(pod_spec)}
    seen: set[tuple[str, ...]] = set()
    for index, mapping in enumerate(mappings):
        errors += _mapping(mapping, containers, path, mappings_path.index(index))
        key = tuple(mapping.get(name) or "" for name in _MAPPING_FIELDS)
        if key in seen:
            at = mappings_path.index(index)
            errors += [duplicate(at.child(name), value) for name, value in zip(_MAPPING_FIELDS, key, strict=True)]
        seen.add(key)
    name = claim_status.get("resourceClaimName")
    if not name:
        return [*errors, required(path.child("resourceClaimName"))]
    return errors + fields.subdomain(name, path, "resourceClaimName")


_MAPPING_FIELDS: Final = ("containerName", "resourceName", "requestName")


def _mapping(mapping: Document, containers: Mapping[str, Document], path: Path, at: Path) -> FieldErrors:
    container_name, resource_name, request_name = (mapping.get(name) or "" for name in _MAPPING_FIELDS)
    errors: FieldErrors = []
    container = containers.get(container_name)
    if container is None:
        text = "must match the name of an entry in spec.initContainers.name or spec.containers.name"
        errors.append(invalid(at.child("containerName"), container_name, text))
    elif resource_name not in ((container.get("resources") or {}).get("requests") or {}):
        text = (
            "must match the extended resource name of an entry in spec.initContainers.resources.requests "
            "or spec.containers.resources.requests"
        )
        errors.append(invalid(at.child("resourceName"), resource_name, text))
    # The server reports the request of any mapping at the path of the whole status.
    return errors + fields.label(request_name, path, "requestName")


def containers_of(pod_spec: Document) -> Iterator[Document]:
    """Yield init containers, then containers."""
    for containers in CONTAINER_LISTS:
        yield from pod_spec.get(containers) or ()
