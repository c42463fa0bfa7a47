"""Approves, signs and deletes certificate signing requests; signs the cluster's address for joining machines."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from ipaddress import ip_network
from typing import Any, Final, Protocol

from dray.api import bootstrap_tokens
from dray.api.bootstrap_tokens import StoredToken
from dray.api.document import Document, NamespacedName
from dray.api.errors import APIError
from dray.client.access_reviews import review_access
from dray.client.controller import Requeue, Result
from dray.client.errors import ignore_not_found
from dray.client.event_recorder import WARNING, ObjectReference
from dray.client.informer import Selection
from dray.client.interface import DeleteOptions, WriteOptions
from dray.client.objects import key_of, uid_of
from dray.client.resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    NODES,
    SECRETS,
    SERVICES,
)
from dray.controllers.certificates import plan
from dray.controllers.certificates.plan import Review, ServingAddresses, Subject
from dray.controllers.reconciler import ControllerContext, Reconciler, own_key
from dray.lib.ip_addresses import parse_address

# The reason of an event about a request for the identity of a node that exists.
NODE_EXISTS: Final = "NodeExists"
_OF_API_SERVERS: Final = Selection("default", label_selector="kubernetes.io/service-name=kubernetes")
_APPROVAL: Final = WriteOptions(subresource="approval")


class CertificateAuthority(Protocol):
    """Signs with the keys of the cluster; raises ValueError for a request that cannot be parsed."""

    @property
    def signers(self) -> Collection[str]:
        """The signers that have a key."""

    def subject(self, request: bytes) -> Subject:
        """Return what a request in PEM asks for, after its signature was checked."""

    def sign(self, signer: str, request: bytes, usages: Collection[str], seconds: float, now: datetime) -> bytes:
        """Return a certificate in PEM."""

    def expires(self, certificate: bytes) -> datetime:
        """Return when a certificate ends."""


class CertificateController(Reconciler[NamespacedName]):
    """Approves requests of nodes, signs approved ones, and deletes old ones."""

    name = "certificate"
    component = "certificate-controller"

    def __init__(
        self,
        context: ControllerContext,
        authority: CertificateAuthority,
        seconds_max: float,
        serving_networks: Iterable[str] = (),
    ) -> None:
        super().__init__(context)
        self._authority = authority
        self._seconds_max = seconds_max
        self._serving_networks = tuple(map(ip_network, serving_networks))
        self._requests = context.informers.informer(CERTIFICATE_SIGNING_REQUESTS)
        self._services = context.informers.informer(SERVICES)
        self._api_servers = context.informers.informer(ENDPOINT_SLICES, _OF_API_SERVERS)
        self.controller.watch(self._requests, own_key)
        for informer in (self._services, self._api_servers):
            self.controller.follow(informer, lambda _old, _new: None)
        self.controller.follow(context.informers.informer(NODES), self._node_changed)

    def _node_changed(self, _old: object, new: object | None) -> None:
        """Look again at the requests that a Node was in the way of."""
        if new is None:
            for request in self._requests.lister.list():
                if not plan.is_decided(request):
                    self.controller.queue.add(key_of(request))

    async def reconcile(self, key: NamespacedName) -> Result:
        """Take the next step of a request: delete, approve or sign it."""
        request = self._requests.lister.get_key(key)
        if request is None:
            return None
        now = self._clock.now()
        wait = plan.deletion_in(request, self._expiry(request), now).total_seconds()
        if wait <= 0:
            options = DeleteOptions(uid=uid_of(request))
            await ignore_not_found(self._client.delete(CERTIFICATE_SIGNING_REQUESTS, key.name, "", options))
            return None
        if not plan.is_decided(request):
            await self._approve(request)
        elif plan.needs_signature(request, self._authority.signers):
            await self._sign(request)
        return Requeue(wait)

    def _expiry(self, request: Document) -> datetime | None:
        certificate = (request.get("status") or {}).get("certificate")
        try:
            return self._authority.expires(base64.b64decode(certificate)) if certificate else None
        except ValueError:
            return None

    def _content(self, request: Document) -> bytes:
        return base64.b64decode((request.get("spec") or {}).get("request") or "")

    async def _approve(self, request: Document) -> None:
        try:
            subject = self._authority.subject(self._content(request))
        except ValueError:
            # Left for a person to look at.
            return
        message = await self._approval(request, subject)
        if message:
            approved = plan.with_approval(request, message, self._clock.now())
            await ignore_not_found(self._client.update(CERTIFICATE_SIGNING_REQUESTS, approved, _APPROVAL))

    async def _approval(self, request: Document, subject: Subject) -> str:
        """Return the message of an approval; empty if the request is not approved by the cluster itself."""
        for review in plan.reviews(request, subject):
            if await self._may(request, review.subresource):
                return "" if await self._is_taken(request, subject, review) else review.message
        is_signer = plan.KUBELET_SERVING in self._authority.signers
        if is_signer and plan.is_own_serving_request(request, subject, self._serving_addresses()):
            return "Auto approving kubelet serving certificate for the addresses of the node."
        return ""

    async def _is_taken(self, request: Document, subject: Subject, review: Review) -> bool:
        """Return whether the request is for the identity of another node that exists: with a token, anybody can ask."""
        if review.subresource == plan.OWN_NODE:
            return False
        name = subject.common_name.removeprefix(plan.NODE_PREFIX)
        # Read from the server: the node may have registered a moment ago.
        if await ignore_not_found(self._client.get(NODES.unstructured, name, "")) is None:
            return False
        csr = request["metadata"]["name"]
        text = f"Node {name} exists: delete it, or approve the request with `kubectl certificate approve {csr}`"
        about = ObjectReference(CERTIFICATE_SIGNING_REQUESTS.group_version_kind, "", csr, uid_of(request))
        self._recorder.event_for(about, WARNING, NODE_EXISTS, text)
        return True

    def _serving_addresses(self) -> ServingAddresses:
        specs = (service.get("spec") or {} for service in self._services.lister.list())
        endpoints = (item for slice_ in self._api_servers.lister.list() for item in slice_.get("endpoints") or ())
        return ServingAddresses(
            self._serving_networks,
            {parse_address(text) for spec in specs for text in spec.get("clusterIPs") or ()},
            {parse_address(text) for endpoint in endpoints for text in endpoint.get("addresses") or ()},
        )

    async def _may(self, request: Document, subresource: str) -> bool:
        attributes = {
            "group": "certificates.k8s.io",
            "resource": "certificatesigningrequests",
            "subresource": subresource,
            "verb": "create",
            "version": "*",
        }
        return await review_access(self._client, request["spec"], {"resourceAttributes": attributes})

    async def _sign(self, request: Document) -> None:
        spec, now = request["spec"], self._clock.now()
        content, usages = self._content(request), spec.get("usages") or ()
        try:
            subject = self._authority.subject(content)
        except ValueError as error:
            problem = str(error)
        else:
            problem = plan.problem(spec["signerName"], subject, usages)
        if problem:
            changed = plan.with_failure(request, problem, now)
        else:
            seconds = plan.lifetime_seconds(request, self._seconds_max)
            signed = self._authority.sign(spec["signerName"], content, usages, seconds, now)
            certificate = base64.b64encode(signed).decode()
            changed = {**request, "status": {**(request.get("status") or {}), "certificate": certificate}}
        await ignore_not_found(self._client.update_status(CERTIFICATE_SIGNING_REQUESTS, changed))


class BootstrapTokenController(Reconciler[str]):
    """Deletes expired bootstrap tokens, and signs the ConfigMap by which machines find the cluster with the others."""

    name = "bootstrap_token"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        kept = Selection(bootstrap_tokens.NAMESPACE, field_selector=f"type={bootstrap_tokens.SECRET_TYPE}")
        info = bootstrap_tokens.CLUSTER_INFO
        self._secrets = context.informers.informer(SECRETS.unstructured, kept)
        self._config_maps = context.informers.informer(
            CONFIG_MAPS.unstructured, Selection(info.namespace, field_selector=f"metadata.name={info.name}")
        )
        for informer in (self._secrets, self._config_maps):
            self.controller.watch(informer, lambda _obj: ("tokens",))

    async def reconcile(self, _key: str) -> Result:
        """Delete expired tokens and update the signatures; look again when the next token expires."""
        now = self._clock.now()
        tokens: dict[str, StoredToken] = {}
        expired: list[Document] = []
        for secret in self._secrets.lister.list(bootstrap_tokens.NAMESPACE):
            stored = bootstrap_tokens.read_secret(secret)
            if stored is not None and stored.is_expired(now):
                expired.append(secret)
            elif stored is not None:
                tokens[stored.token.id] = stored
        # First, so that a token that cannot be deleted does not keep machines from joining with the others.
        await self._sign(tokens, now)
        await self._delete_all(expired)
        ends = [stored.expires for stored in tokens.values() if stored.expires is not None]
        return Requeue((min(ends) - now).total_seconds()) if ends else None

    async def _delete_all(self, secrets: Iterable[Document]) -> None:
        """Delete all of them; one failure does not stop the others."""
        failure: APIError | None = None
        for secret in secrets:
            key, options = key_of(secret), DeleteOptions(uid=uid_of(secret))
            try:
                await ignore_not_found(self._client.delete(SECRETS.unstructured, key.name, key.namespace, options))
            except APIError as error:
                failure = error
        if failure is not None:
            raise failure

    async def _sign(self, tokens: Mapping[str, StoredToken], now: datetime) -> None:
        info = self._config_maps.lister.get_key(bootstrap_tokens.CLUSTER_INFO)
        if info is None:
            return
        data: dict[str, Any] = info.get("data") or {}
        content = data.get(bootstrap_tokens.KUBECONFIG) or ""
        kept = {key: value for key, value in data.items() if not key.startswith(bootstrap_tokens.SIGNATURE_PREFIX)}
        wanted = {**kept, **dict(bootstrap_tokens.signatures(content, tokens, now))} if content else kept
        if wanted != data:
            await ignore_not_found(self._client.update(CONFIG_MAPS.unstructured, {**info, "data": wanted}))
