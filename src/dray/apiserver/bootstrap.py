"""Creates the objects that every cluster starts with.

They are system namespaces, default roles, priority classes, and what other API servers authenticate clients by.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from dray.api.document import Document, NamespacedName, key_of
from dray.api.errors import AlreadyExistsError, APIError, ConflictError, NotFoundError
from dray.apiserver.authorization.bootstrap import BootstrapWrite, Verb, plan_bootstrap
from dray.apiserver.healthz import PostStartHooks
from dray.apiserver.local_transport import LocalTransport, own_request

_LOG: Final = logging.getLogger("dray.apiserver.bootstrap")
_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITIES: Final = (
    (
        "system-node-critical",
        2000001000,
        "For pods that a node cannot do without; they are never moved.",
    ),
    (
        "system-cluster-critical",
        2000000000,
        "For pods that the cluster cannot do without; they may be moved.",
    ),
)
_NAMESPACES_HOOK: Final = "start-system-namespaces-controller"
_ROLES_HOOK: Final = "rbac/bootstrap-roles"
_PRIORITIES_HOOK: Final = "scheduling/bootstrap-system-priority-classes"
_AUTHENTICATION_HOOK: Final = "start-cluster-authentication-info-controller"
# The steps by their names in kube-apiserver.
HOOKS: Final = (_NAMESPACES_HOOK, _AUTHENTICATION_HOOK, _ROLES_HOOK, _PRIORITIES_HOOK)
# A ConfigMap with the authorities of client certificates, which API servers and schedulers of other projects read.
_AUTHENTICATION: Final = ("kube-system", "extension-apiserver-authentication")
_AUTHORITIES: Final = "client-ca-file"
_RBAC: Final = ("rbac.authorization.k8s.io", "v1")
_RBAC_KINDS: Final = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


class Bootstrap:
    """Creates what is missing; safe to run at every start, and by several servers at once."""

    def __init__(self, server: LocalTransport, hooks: PostStartHooks, authority: str) -> None:
        self._server = server
        self._hooks = hooks
        # The certificate of the authority of client certificates, in PEM.
        self._authority = authority

    async def run(self) -> None:
        """Create the initial objects."""
        await asyncio.gather(*(self._create("", "v1", "namespaces", _namespace(name)) for name in _NAMESPACES))
        self._hooks.finish(_NAMESPACES_HOOK)
        await asyncio.gather(
            self._roles(),
            self._publish_authority(),
            *(self._create("scheduling.k8s.io", "v1", "priorityclasses", _priority(*item)) for item in _PRIORITIES),
        )
        self._hooks.finish(_AUTHENTICATION_HOOK, _ROLES_HOOK, _PRIORITIES_HOOK)

    async def _publish_authority(self) -> None:
        """Add the authority to those that servers with the same store have published."""
        while True:
            try:
                await self._add_authority()
            except ConflictError:
                # Another server is doing the same.
                continue
            except APIError as error:
                # Such as an immutable ConfigMap; nothing of this server depends on it.
                _LOG.warning("could not update ConfigMap %s/%s: %s", *_AUTHENTICATION, error.message)
            return

    async def _add_authority(self) -> None:
        namespace, name = _AUTHENTICATION
        created = {"metadata": {"name": name, "namespace": namespace}, "data": {_AUTHORITIES: self._authority}}
        await self._create("", "v1", "configmaps", created)
        request = partial(own_request, group="", version="v1", resource="configmaps", namespace=namespace, name=name)
        found = await self._server.handle(request("get"))
        data = found.get("data") or {}
        published = data.get(_AUTHORITIES) or ""
        if self._authority not in published:
            data = {**data, _AUTHORITIES: f"{published}{self._authority}"}
            await self._server.handle(request("update", body={**found, "data": data}))

    async def _roles(self) -> None:
        existing: list[Document] = []
        for kind, resource in _RBAC_KINDS.items():
            listing = await self._server.handle(own_request("list", *_RBAC, resource))
            existing.extend(item | {"kind": kind} for item in listing["items"])
        # Writes to one object keep their order; writes to different objects share group commits.
        planned: dict[tuple[str, NamespacedName], list[BootstrapWrite]] = {}
        for write in plan_bootstrap(existing):
            planned.setdefault((write.document["kind"], key_of(write.document)), []).append(write)
        await asyncio.gather(*(self._write_all(writes) for writes in planned.values()))

    async def _write_all(self, writes: list[BootstrapWrite]) -> None:
        for write in writes:
            await self._write(write)

    async def _write(self, write: BootstrapWrite) -> None:
        document = write.document
        resource = _RBAC_KINDS[document["kind"]]
        metadata = document["metadata"]
        place = {"namespace": metadata.get("namespace", ""), "name": metadata["name"]}
        try:
            if write.verb is Verb.CREATE:
                await self._create(*_RBAC, resource, document)
            elif write.verb is Verb.UPDATE:
                await self._server.handle(own_request("update", *_RBAC, resource, body=document, **place))
            else:
                await self._server.handle(own_request("delete", *_RBAC, resource, **place))
        except (ConflictError, NotFoundError):
            # Another server is doing the same.
            return

    async def _create(self, group: str, version: str, resource: str, document: Document) -> None:
        namespace = document["metadata"].get("namespace", "")
        try:
            await self._server.handle(
                own_request("create", group, version, resource, namespace=namespace, body=document)
            )
        except AlreadyExistsError:
            return


def _namespace(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _priority(name: str, value: int, description: str) -> Document:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "description": description,
    }
