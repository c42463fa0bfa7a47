"""Changes that a user makes on the page: each is one request to the API with the user's own permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, BadRequestError
from dray.client.interface import Client, DeleteOptions, Patch, PatchType, Resource, unstructured
from dray.sim.cluster_reader import best_resources

_REVIEWS: Final[Resource[Document]] = unstructured(
    GroupVersion("authorization.k8s.io", "v1"),
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    namespaced=False,
)
_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")
_EVICTION: Final = "eviction"


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user must be allowed for an action."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespaced: bool = True


PERMISSIONS: Final[Mapping[str, Permission]] = {
    "delete-pod": Permission("delete", "", "pods"),
    "evict": Permission("create", "", "pods", _EVICTION),
    "delete-claim": Permission("delete", "resource.k8s.io", "resourceclaims"),
    "cordon": Permission("patch", "", "nodes", namespaced=False),
    "uncordon": Permission("patch", "", "nodes", namespaced=False),
    "taint-device": Permission("create", "resource.k8s.io", "devicetaintrules", namespaced=False),
    "delete-taint": Permission("delete", "resource.k8s.io", "devicetaintrules", namespaced=False),
}


async def permitted_actions(client: Client, namespace: str) -> list[str]:
    """Return the actions that the user may take; those on namespaced objects in the namespace."""
    allowed = await asyncio.gather(*(_is_permitted(client, item, namespace) for item in PERMISSIONS.values()))
    return [name for name, yes in zip(PERMISSIONS, allowed, strict=True) if yes]


async def _is_permitted(client: Client, permission: Permission, namespace: str) -> bool:
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": permission.resource,
        "subresource": permission.subresource,
        "namespace": namespace if permission.namespaced else "",
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    try:
        review = await client.create(_REVIEWS, body)
    except APIError:
        # A server that cannot tell will tell when the action is tried.
        return True
    return bool((review.get("status") or {}).get("allowed"))


class Actions:
    """Performs the actions of one request."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def perform(self, body: Document) -> Document:
        """Perform the action that the body names; raises `APIError`."""
        actions: Mapping[str, Callable[[Document], Awaitable[str]]] = {
            "delete-pod": self._delete_pod,
            "evict": self._evict,
            "delete-claim": self._delete_claim,
            "cordon": lambda body: self._set_unschedulable(body, value=True),
            "uncordon": lambda body: self._set_unschedulable(body, value=False),
            "taint-device": self._taint_device,
            "delete-taint": self._delete_taint,
        }
        action = actions.get(str(body.get("action")))
        if action is None:
            raise BadRequestError(f"action must be one of {', '.join(actions)}")
        return {"message": await action(body)}

    async def _resource(self, kind: str) -> Resource[Document]:
        found = best_resources(await self._client.resources()).get(kind)
        if found is None:
            raise BadRequestError(f"the server does not serve {kind}")
        return found

    async def _delete_pod(self, body: Document) -> str:
        return await self._delete("Pod", body)

    async def _delete_claim(self, body: Document) -> str:
        return await self._delete("ResourceClaim", body)

    async def _delete(self, kind: str, body: Document) -> str:
        namespace, name = text(body, "namespace"), text(body, "name")
        # A new object of the same name is another one, which the user has not seen.
        options = DeleteOptions(uid=text(body, "uid"))
        await self._client.delete(await self._resource(kind), name, namespace, options)
        return f"{kind} {namespace}/{name} deleted"

    async def _evict(self, body: Document) -> str:
        namespace, name = text(body, "namespace"), text(body, "name")
        metadata = {"name": name, "namespace": namespace}
        options = DeleteOptions(uid=text(body, "uid")).document()
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": metadata,
            "deleteOptions": options,
        }
        await self._client.create_subresource(await self._resource("Pod"), name, namespace, _EVICTION, eviction)
        return f"Pod {namespace}/{name} evicted"

    async def _set_unschedulable(self, body: Document, *, value: bool) -> str:
        name = text(body, "name")
        patch = Patch(PatchType.MERGE, {"spec": {"unschedulable": value or None}})
        await self._client.patch(await self._resource("Node"), name, "", patch)
        return f"Node {name} {'cordoned' if value else 'uncordoned'}"

    async def _taint_device(self, body: Document) -> str:
        selector = {name: text(body, name) for name in ("driver", "pool", "device")}
        effect = text(body, "effect")
        if effect not in _EFFECTS:
            raise BadRequestError(f"effect must be one of {', '.join(_EFFECTS)}")
        taint = {"key": text(body, "key"), "effect": effect}
        resource = await self._resource("DeviceTaintRule")
        rule = {
            "apiVersion": resource.group_version.api_version,
            "kind": "DeviceTaintRule",
            "metadata": {"generateName": "dashboard-"},
            "spec": {"deviceSelector": selector, "taint": taint},
        }
        created = await self._client.create(resource, rule)
        return f"DeviceTaintRule {created['metadata']['name']} created"

    async def _delete_taint(self, body: Document) -> str:
        name = text(body, "name")
        await self._client.delete(await self._resource("DeviceTaintRule"), name)
        return f"DeviceTaintRule {name} deleted"


def text(body: Mapping[str, Any], name: str) -> str:
    """Return a required field of a request."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{name} is required")
    return value
