"""Attacks on authorization: creating objects with the permission to update or patch them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dray.api.document import Document
from dray.api.errors import ForbiddenError, NotFoundError
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server
from tests.security.requests import ADMIN, APPLY, Requester

MALLORY = Requester("mallory")
LEASES = "coordination.k8s.io/v1/leases"
CLAIMS = "resource.k8s.io/v1/resourceclaims"


def lease(name: str) -> Document:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": "mallory"},
    }


def claim(name: str) -> Document:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    }


def role(name: str, verbs: str, names: tuple[str, ...] = ()) -> Document:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name},
        "rules": [
            {
                "apiGroups": ["coordination.k8s.io", "resource.k8s.io"],
                "resources": ["leases", "resourceclaims"],
                "verbs": verbs.split(),
                **({"resourceNames": list(names)} if names else {}),
            }
        ],
    }


@asynccontextmanager
async def cluster() -> AsyncIterator[None]:
    """Run a server where mallory may update and patch all leases and claims, and create those named `allowed`."""
    group = "rbac.authorization.k8s.io"
    async with in_process_server(SystemClock(), random.Random(1), "default") as server:
        ADMIN.connect(server)
        MALLORY.connect(server)
        for name, verbs, names in (("writer", "update patch", ()), ("creator", "create", ("allowed",))):
            await ADMIN.create(f"{group}/v1/roles@default", role(name, verbs, names))
            binding = {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
                "subjects": [{"apiGroup": group, "kind": "User", "name": "mallory"}],
            }
            await ADMIN.create(f"{group}/v1/rolebindings@default", binding)
        await MALLORY.until_allowed("update", f"{LEASES}/allowed@default", lease("allowed"))
        yield


async def test_put_to_a_missing_object_requires_create() -> None:
    async with cluster():
        with pytest.raises(ForbiddenError) as caught:
            await MALLORY.request("update", f"{LEASES}/kube-scheduler@default", lease("kube-scheduler"))
        assert caught.value.message == (
            'leases.coordination.k8s.io "kube-scheduler" is forbidden: User "mallory" cannot create resource "leases" '
            'in API group "coordination.k8s.io" in the namespace "default"'
        )
        with pytest.raises(NotFoundError):
            await ADMIN.request("get", f"{LEASES}/kube-scheduler@default")


async def test_server_side_apply_to_a_missing_object_requires_create() -> None:
    query = {"fieldManager": "test"}
    async with cluster():
        for resource, body in ((CLAIMS, claim("stolen")), (LEASES, lease("stolen"))):
            with pytest.raises(ForbiddenError, match='User "mallory" cannot create resource'):
                await MALLORY.request("patch", f"{resource}/stolen@default", body, query=query, content_type=APPLY)
            with pytest.raises(NotFoundError):
                await ADMIN.request("get", f"{resource}/stolen@default")


async def test_update_and_apply_to_an_existing_object_need_no_create() -> None:
    query = {"fieldManager": "test", "force": "true"}
    async with cluster():
        created = await ADMIN.create(f"{LEASES}@default", lease("existing"))
        await MALLORY.request("update", f"{LEASES}/existing@default", created)
        await MALLORY.request("patch", f"{LEASES}/existing@default", lease("existing"), query=query, content_type=APPLY)


async def test_create_of_one_name_lets_put_and_apply_create_that_name() -> None:
    async with cluster():
        query = {"fieldManager": "test"}
        created = await MALLORY.request(
            "patch", f"{CLAIMS}/allowed@default", claim("allowed"), query=query, content_type=APPLY
        )
        assert created["metadata"]["name"] == "allowed"
