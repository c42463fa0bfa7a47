"""Authorization of claims: admin access by the namespace's label, and parts of the status by permission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dray.api.devices import results_in
from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, forbidden
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION
from dray.api.validation.resource_claim_status import STATUS, device_id
from dray.apiserver.registry.resource.group import GROUP
from dray.apiserver.registry.strategy import WriteContext

ADMIN_ACCESS_LABEL: Final = "resource.kubernetes.io/admin-access"
_LABEL_REQUIRED: Final = (
    f"admin access to devices requires the `{ADMIN_ACCESS_LABEL}: true` label on the containing namespace"
)

_REQUESTS: Final = Path("spec.devices.requests")
_RESULTS: Final = Path("status.allocation.devices.results")

_NODE_NAME_EXTRA: Final = "authentication.kubernetes.io/node-name"
_SERVICE_ACCOUNT_PREFIX: Final = "system:serviceaccount:"


def validate_admin_requests(claim_spec: Document, context: WriteContext) -> FieldErrors:
    """Return an error for admin access in a namespace without the label."""
    for index, request in enumerate((claim_spec.get("devices") or {}).get("requests") or ()):
        if (request.get("exactly") or {}).get("adminAccess"):
            return _require_label(context, _REQUESTS.index(index))
    return []


def validate_admin_results(claim: Document, old: Document, context: WriteContext) -> FieldErrors:
    """Return an error for new results with admin access in a namespace without the label."""
    for index, result in enumerate(results_in(claim)):
        if result.get("adminAccess"):
            stored = any(known.get("adminAccess") for known in results_in(old))
            return [] if stored else _require_label(context, _RESULTS.index(index))
    return []


def _require_label(context: WriteContext, path: Path) -> FieldErrors:
    labels: Mapping[str, str] = ((context.namespace or {}).get("metadata") or {}).get("labels") or {}
    return [] if labels.get(ADMIN_ACCESS_LABEL) == "true" else [forbidden(path.child("adminAccess"), _LABEL_REQUIRED)]


def validate_status_permissions(claim: Document, old: Document, context: WriteContext) -> FieldErrors:
    """Return errors for binding and device status without permission, if granular authorization is enabled."""
    if "DRAResourceClaimGranularStatusAuthorization" in context.gates.disabled:
        return []
    errors = _validate_binding(claim, old, context)
    if _device_statuses(claim) or _device_statuses(old):
        errors += _validate_device_statuses(claim, old, context)
    return errors


def validate_extended_resource_annotation(claim: Document, old: Document | None, context: WriteContext) -> FieldErrors:
    """Return an error if the writer marks a claim as that of extended resources, and may not allocate claims."""
    given = _annotation(claim)
    if not given or given == _annotation(old or {}) or _allowed(context, ("update",), subresource="binding"):
        return []
    text = (
        'only schedulers create claims of extended resources: requires resource="resourceclaims/binding", '
        f'verb="update" permission in API group "{GROUP}"'
    )
    return [forbidden(Path("metadata.annotations").key(EXTENDED_RESOURCE_ANNOTATION), text)]


def _annotation(claim: Document) -> str:
    annotations: Mapping[str, str] = (claim.get("metadata") or {}).get("annotations") or {}
    return annotations.get(EXTENDED_RESOURCE_ANNOTATION, "")


def _validate_binding(claim: Document, old: Document, context: WriteContext) -> FieldErrors:
    new_status, old_status = claim.get("status") or {}, old.get("status") or {}
    if new_status.get("allocation") == old_status.get("allocation") and (
        new_status.get("reservedFor") == old_status.get("reservedFor")
    ):
        return []
    verb = context.verb
    if _allowed(context, (verb,), subresource="binding"):
        return []
    text = (
        f'changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="{verb}" '
        f'permission: resourceclaims.{GROUP} is forbidden: User "{context.user.name}" cannot {verb} resource '
        f'"resourceclaims/binding" in API group "{GROUP}" at the cluster scope'
    )
    return [forbidden(STATUS, text)]


def _validate_device_statuses(claim: Document, old: Document, context: WriteContext) -> FieldErrors:
    prefixes = ["associated-node:", "arbitrary-node:"] if _runs_on_node_of(claim, context) else ["arbitrary-node:"]
    namespace = claim["metadata"].get("namespace", "")
    errors: FieldErrors = []
    for driver in _changed_drivers(claim, old):
        verbs = [prefix + context.verb for prefix in prefixes]
        if _allowed(context, verbs, subresource="driver", namespace=namespace, name=driver):
            continue
        needed = " ".join(verbs)
        text = (
            f'changing status.devices requires resource="resourceclaims/driver", verb="[{needed}]" permission: '
            f'resourceclaims.{GROUP} "{driver}" is forbidden: User "{context.user.name}" cannot {verbs[0]} '
            f'resource "resourceclaims/driver" in API group "{GROUP}" in the namespace "{namespace}"'
        )
        errors.append(forbidden(STATUS.child("devices"), text))
    return errors


def _allowed(context: WriteContext, verbs: Sequence[str], **attributes: Any) -> bool:
    return any(context.allowed(verb=verb, group=GROUP, resource="resourceclaims", **attributes) for verb in verbs)


def _changed_drivers(claim: Document, old: Document) -> list[str]:
    """Return the drivers whose device status was added, changed or removed.

    The status of devices that are deallocated by the same write does not count: the server drops it for every writer.
    """
    after, before = ({device_id(item): item for item in _device_statuses(document)} for document in (claim, old))
    deallocated = {device_id(item) for item in results_in(old)} - {device_id(item) for item in results_in(claim)}
    dropped = deallocated - after.keys()
    changed = (key for key in (after.keys() | before.keys()) - dropped if after.get(key) != before.get(key))
    return sorted({key[0] for key in changed})


def _device_statuses(claim: Document) -> Sequence[Document]:
    statuses: Sequence[Document] = (claim.get("status") or {}).get("devices") or ()
    return statuses


def _runs_on_node_of(claim: Document, context: WriteContext) -> bool:
    """Report whether the caller is a service account on the node that the claim is allocated for."""
    nodes = context.user.extra.get(_NODE_NAME_EXTRA, ())
    if not context.user.name.startswith(_SERVICE_ACCOUNT_PREFIX) or len(nodes) != 1:
        return False
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return nodes[0] == _only_node((allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ())


def _only_node(terms: Sequence[Document]) -> str:
    """Return the node's name when the terms select exactly one by name, else the empty string."""
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return ""
    match terms[0].get("matchFields") or ():
        case [{"key": "metadata.name", "operator": "In", "values": [str(name)]}]:
            return name
    return ""
