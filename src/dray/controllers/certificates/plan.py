"""What happens to certificate signing requests: which are approved, signed, refused and deleted. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from dray.api.document import Document
from dray.api.names import dns1123_subdomain
from dray.api.services import Network
from dray.api.timestamps import format_time, parse_time
from dray.api.validation.certificates_v1 import CLIENT_ADDRESS
from dray.lib.ip_addresses import IPAddress, is_special, parse_address

API_CLIENT: Final = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT: Final = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"
NODE_PREFIX: Final = "system:node:"
NODES: Final = "system:nodes"
# The subresource of the permission to renew one's own certificate.
OWN_NODE: Final = "selfnodeclient"
_CLIENT_AUTH, _SERVER_AUTH = "client auth", "server auth"
_OPTIONAL_USAGES: Final = frozenset({"key encipherment"})
# Upstream's times after which requests are deleted: decided ones, and those that nobody decided on.
DECIDED_LIFETIME: Final = timedelta(hours=1)
PENDING_LIFETIME: Final = timedelta(hours=24)
# A node's addresses may become those of another machine, and certificates cannot be revoked.
SERVING_LIFETIME: Final = timedelta(days=7)


class Subject(NamedTuple):
    """What a request asks a certificate for."""

    common_name: str
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    # Whether it has other alternative names: addresses of mail or URIs.
    has_other_names: bool = False


class Review(NamedTuple):
    """A permission that approves a request: the subresource, and the message of the approval."""

    subresource: str
    message: str


class ServingAddresses(NamedTuple):
    """What decides about the addresses in the serving certificates of nodes."""

    # Those that an operator has allowed for every node.
    allowed: tuple[Network, ...]
    # Cluster IPs of Services.
    services: Collection[IPAddress | None]
    api_servers: Collection[IPAddress | None]


def conditions(request: Document) -> dict[str, Document]:
    """Return the conditions by type."""
    return {item.get("type") or "": item for item in (request.get("status") or {}).get("conditions") or ()}


def is_decided(request: Document) -> bool:
    """Return whether the request was approved or denied."""
    return not {"Approved", "Denied"}.isdisjoint(conditions(request))


def needs_signature(request: Document, signers: Collection[str]) -> bool:
    """Return whether the request is approved for one of the signers, and has no certificate yet."""
    status = request.get("status") or {}
    found = conditions(request)
    is_own = (request.get("spec") or {}).get("signerName") in signers
    return is_own and "Approved" in found and "Failed" not in found and not status.get("certificate")


def problem(signer: str, subject: Subject, usages: Collection[str]) -> str:
    """Return why a signer cannot fulfil a request; empty if it can."""
    if signer != API_CLIENT:
        return _node_problem(signer, subject) or _usage_problem(signer, usages)
    if "system:masters" in subject.organizations:
        return "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    # Without this usage the certificate would have none, and clients would accept it from a server as well.
    is_for_clients = _CLIENT_AUTH in usages
    allowed = {"digital signature", _CLIENT_AUTH, *_OPTIONAL_USAGES}
    return "" if is_for_clients and set(usages) <= allowed else "usages did not match"


def _node_problem(signer: str, subject: Subject) -> str:
    has_names = bool(subject.dns_names or subject.addresses)
    node_name = subject.common_name.removeprefix(NODE_PREFIX)
    checks = (
        (subject.organizations == (NODES,), "subject organization is not system:nodes"),
        (subject.common_name.startswith(NODE_PREFIX), "subject common name does not begin with system:node:"),
        (node_name, "subject common name is missing the name of the node"),
        # No Node could have it: nobody would see whose name it looks like.
        (not dns1123_subdomain(node_name), "subject common name does not have a valid name of a node"),
        (not subject.has_other_names, "email and URI SANs are not allowed"),
        (signer != KUBELET_CLIENT or not has_names, "DNS and IP SANs are not allowed"),
        (signer != KUBELET_SERVING or has_names, "DNS or IP subjectAltName is required"),
    )
    return next((message for holds, message in checks if not holds), "")


def _usage_problem(signer: str, usages: Collection[str]) -> str:
    required = {"digital signature", _SERVER_AUTH if signer == KUBELET_SERVING else _CLIENT_AUTH}
    return "" if required <= set(usages) <= required | _OPTIONAL_USAGES else "usages did not match"


def reviews(request: Document, subject: Subject) -> tuple[Review, ...]:
    """Return the permissions of which one lets a kubelet's client certificate be approved; empty for other requests."""
    spec = request.get("spec") or {}
    if spec.get("signerName") != KUBELET_CLIENT or problem(KUBELET_CLIENT, subject, spec.get("usages") or ()):
        return ()
    message = "Auto approving {} certificate after SubjectAccessReview."
    found = [Review("nodeclient", message.format("kubelet client"))]
    if spec.get("username") == subject.common_name:
        found.insert(0, Review(OWN_NODE, message.format("self kubelet client")))
    return tuple(found)


def is_own_serving_request(request: Document, subject: Subject, addresses: ServingAddresses) -> bool:
    """Return whether a node asks for a serving certificate of its own name and addresses.

    What the Node reports about itself does not count: it can report the addresses of others.
    """
    spec = request.get("spec") or {}
    if spec.get("signerName") != KUBELET_SERVING or problem(KUBELET_SERVING, subject, spec.get("usages") or ()):
        return False
    if spec.get("username") != subject.common_name:
        return False
    node_name = subject.common_name.removeprefix(NODE_PREFIX)
    if set(subject.dns_names) - {node_name} or (subject.dns_names and _is_reserved_name(node_name)):
        return False
    client = ((spec.get("extra") or {}).get(CLIENT_ADDRESS) or [""])[0]
    return all(_may_serve(address, client, addresses) for address in subject.addresses)


def _may_serve(text: str, client: str, addresses: ServingAddresses) -> bool:
    """Return whether an operator has allowed an address, or the node has connected from it."""
    address = parse_address(text)
    if address is None or address in addresses.services:
        return False
    if any(address in network for network in addresses.allowed):
        return True
    return address == parse_address(client) and not is_special(address) and address not in addresses.api_servers


def _is_reserved_name(name: str) -> bool:
    """Return whether clients could mean a Service or their own machine by the name of a node."""
    labels = name.split(".")
    return labels[0] == "kubernetes" or labels[-1] == "localhost" or "svc" in labels[2:]


def with_approval(request: Document, message: str, now: datetime) -> Document:
    """Return the request with the condition Approved."""
    return _with_condition(request, "Approved", "AutoApproved", message, now)


def with_failure(request: Document, message: str, now: datetime) -> Document:
    """Return the request with the condition Failed."""
    return _with_condition(request, "Failed", "SignerValidationFailure", message, now)


def _with_condition(request: Document, kind: str, reason: str, message: str, now: datetime) -> Document:
    condition = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastUpdateTime": format_time(now),
    }
    status = request.get("status") or {}
    return {**request, "status": {**status, "conditions": [*(status.get("conditions") or ()), condition]}}


def lifetime_seconds(request: Document, maximum: float) -> float:
    """Return how long the certificate is to be valid."""
    spec = request.get("spec") or {}
    if spec.get("signerName") == KUBELET_SERVING:
        maximum = min(maximum, SERVING_LIFETIME.total_seconds())
    wanted = spec.get("expirationSeconds")
    return maximum if wanted is None else min(float(wanted), maximum)


def deletion_in(request: Document, expires: datetime | None, now: datetime) -> timedelta:
    """Return after which time the request is deleted; not positive if it is due. `expires` is its certificate's end."""
    if expires is not None and expires <= now:
        return timedelta(0)
    created = parse_time(request["metadata"]["creationTimestamp"])
    if not is_decided(request):
        return created + PENDING_LIFETIME - now
    times = [item.get("lastUpdateTime") for item in conditions(request).values()]
    latest = max((parse_time(time) for time in times if time), default=created)
    return latest + DECIDED_LIFETIME - now
