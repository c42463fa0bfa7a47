"""The request of an AdmissionReview, for webhooks and as the value of `request` in expressions."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dray.api.document import Document, GroupVersion, GroupVersionKind, copy_document
from dray.apiserver.admission.plugin import AdmissionAttributes, Operation
from dray.apiserver.endpoint import Endpoint
from dray.apiserver.options import DeleteOptions, WriteOptions
from dray.apiserver.request import UserInfo
from dray.apiserver.scale import SPEC_REPLICAS

# A generated name is what fits of the prefix, and five letters.
_GENERATED_SUFFIX: Final = 5
_GENERATED_PREFIX_MAX: Final = 58
_OPTIONS_KINDS: Final = {
    Operation.CREATE: "CreateOptions",
    Operation.UPDATE: "UpdateOptions",
    Operation.DELETE: "DeleteOptions",
}


async def object_for(document: Document | None, attributes: AdmissionAttributes, endpoint: Endpoint) -> Document | None:
    """Return the new or old hub object of a write as the endpoint serves it; it is shared and must not be changed."""
    if endpoint.conversion is not None and document is not None and endpoint.version != attributes.version:
        requested = GroupVersion(endpoint.resource.group, attributes.version).api_version
        typed = document | {"kind": endpoint.definition.kind, "apiVersion": requested}
        (document,) = await endpoint.conversion.convert((typed,), endpoint.api_version)
    return served_object(document, attributes, endpoint)


def served_object(document: Document | None, attributes: AdmissionAttributes, endpoint: Endpoint) -> Document | None:
    """Like `object_for`, where no webhook is needed to convert the object."""
    if document is None or attributes.subresource == "scale":
        return _scale(document, endpoint)
    if _other_kind(attributes, endpoint) is not None:
        return document
    return endpoint.served_of_shared(document)


def _scale(document: Document | None, endpoint: Endpoint) -> Document | None:
    if document is None:
        return None
    return (endpoint.scaler or SPEC_REPLICAS).scale_of(endpoint.served(copy_document(document)))


def _other_kind(attributes: AdmissionAttributes, endpoint: Endpoint) -> GroupVersionKind | None:
    """Return the kind of what is sent to a subresource; None if it is the kind of the resource."""
    row = endpoint.subresources.get(attributes.subresource)
    return None if row is None else row.kind


def kind_of(attributes: AdmissionAttributes, endpoint: Endpoint) -> GroupVersionKind:
    """Return the kind of the request's object at an endpoint."""
    other = _other_kind(attributes, endpoint)
    if other is None or attributes.subresource == "scale":
        return other or endpoint.gvk
    given = attributes.object or {}
    if given.get("kind") and given.get("apiVersion"):
        return GroupVersion.parse(given["apiVersion"]).kind(given["kind"])
    return other


def review_request(attributes: AdmissionAttributes, endpoint: Endpoint, requested: Endpoint) -> Document:
    """Return the AdmissionRequest without uid and objects, for a write that matched by `endpoint`.

    As in Go, empty texts are left out.
    """
    if _other_kind(attributes, endpoint) is not None:
        request = _head(endpoint, requested, attributes.subresource)
        request |= {"kind": _kind(kind_of(attributes, endpoint)), "requestKind": _kind(kind_of(attributes, requested))}
    else:
        request = dict(_cached_head(endpoint, requested, attributes.subresource))
    name = attributes.name or ((attributes.object or {}).get("metadata") or {}).get("name") or ""
    if name and not is_generated_name(attributes):
        request["name"] = name
    if attributes.namespace:
        request["namespace"] = attributes.namespace
    elif attributes.resource.resource == "namespaces" and not attributes.resource.group and name:
        request["namespace"] = name
    request["operation"] = attributes.operation.value
    request["userInfo"] = _user(attributes.user)
    request["dryRun"] = attributes.dry_run
    request["options"] = _options(attributes)
    return request


def _head(endpoint: Endpoint, requested: Endpoint, subresource: str) -> Document:
    """Return what is the same in all requests to an endpoint."""
    request: Document = {"kind": _kind(endpoint.gvk), "resource": _resource(endpoint)}
    if subresource:
        request["subResource"] = subresource
    request |= {"requestKind": _kind(requested.gvk), "requestResource": _resource(requested)}
    if subresource:
        request["requestSubResource"] = subresource
    return request


_cached_head: Final = lru_cache(maxsize=1024)(_head)


def shown_name(attributes: AdmissionAttributes) -> str:
    """Return the name that errors show."""
    metadata = (attributes.object or {}).get("metadata") or {}
    return attributes.name or metadata.get("name") or metadata.get("generateName") or "Unknown"


def is_generated_name(attributes: AdmissionAttributes) -> bool:
    """Return whether the name of a new object was generated, of which reviews know nothing yet."""
    metadata = (attributes.object or {}).get("metadata") or {}
    prefix = (metadata.get("generateName") or "")[:_GENERATED_PREFIX_MAX]
    if attributes.operation is not Operation.CREATE or attributes.name or not prefix:
        return False
    name = metadata.get("name") or ""
    return name.startswith(prefix) and len(name) == len(prefix) + _GENERATED_SUFFIX


def _kind(kind: GroupVersionKind) -> Document:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _resource(endpoint: Endpoint) -> Document:
    return {"group": endpoint.resource.group, "version": endpoint.version, "resource": endpoint.resource.resource}


def _user(user: UserInfo) -> Document:
    info: Document = {"username": user.name} if user.name else {}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


def _options(attributes: AdmissionAttributes) -> Document | None:
    if attributes.operation is Operation.CONNECT:
        return None
    options = attributes.options
    kind = "PatchOptions" if attributes.verb == "patch" else _OPTIONS_KINDS[attributes.operation]
    shown: Document = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if options.dry_run:
        shown["dryRun"] = ["All"]
    if isinstance(options, WriteOptions):
        if options.field_manager:
            shown["fieldManager"] = options.field_manager
        shown["fieldValidation"] = options.field_validation
        if options.force:
            shown["force"] = True
    elif isinstance(options, DeleteOptions):
        if options.grace_period_seconds is not None:
            shown["gracePeriodSeconds"] = options.grace_period_seconds
        if options.propagation_policy:
            shown["propagationPolicy"] = options.propagation_policy
    return shown
