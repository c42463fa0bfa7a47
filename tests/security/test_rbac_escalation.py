"""Attacks on RBAC: gaining permissions through writes of roles and bindings that keep their rules."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dray.api.document import Document
from dray.api.errors import ForbiddenError
from dray.runtime.system import SystemClock
from tests.in_process_server import in_process_server
from tests.security.attacker import CPU_SECONDS_MAX
from tests.security.requests import ADMIN, MERGE, Requester

RBAC = "rbac.authorization.k8s.io"
MALLORY = Requester("mallory")


def rule(verbs: str, resources: str, group: str = "") -> Document:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


EVERYTHING = [rule("*", "*", "*"), {"nonResourceURLs": ["*"], "verbs": ["*"]}]


@asynccontextmanager
async def cluster() -> AsyncIterator[None]:
    """Run a server where mallory may write roles and bindings, and read Pods, but has no `escalate` and no `bind`."""
    written = "roles clusterroles rolebindings clusterrolebindings"
    mallory_rules = [rule("get create update patch delete", written, RBAC), rule("get list", "pods")]
    async with in_process_server(SystemClock(), random.Random(1), "default") as server:
        ADMIN.connect(server)
        MALLORY.connect(server)
        await ADMIN.create(f"{RBAC}/v1/clusterroles", cluster_role("cluster-admin", EVERYTHING))
        await ADMIN.create(f"{RBAC}/v1/clusterroles", cluster_role("mallory", mallory_rules))
        await ADMIN.create(f"{RBAC}/v1/clusterrolebindings", binding("mallory", "mallory"))
        await ADMIN.create(f"{RBAC}/v1/clusterrolebindings", binding("admins", "cluster-admin"))
        await MALLORY.until_allowed("create", f"{RBAC}/v1/clusterroles", cluster_role("probe", []))
        yield


def cluster_role(name: str, rules: list[Document], **more: object) -> Document:
    role: Document = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    return {**role, **more}


def binding(name: str, role: str) -> Document:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": name}],
    }


async def test_labelling_cluster_admin_for_aggregation_is_forbidden() -> None:
    labels = {"metadata": {"labels": {f"{RBAC}/aggregate-to-view": "true"}}}
    async with cluster():
        with pytest.raises(ForbiddenError) as caught:
            await MALLORY.request("patch", f"{RBAC}/v1/clusterroles/cluster-admin", labels, content_type=MERGE)
        assert caught.value.message == (
            'clusterroles.rbac.authorization.k8s.io "cluster-admin" is forbidden: user "mallory" '
            '(groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:\n'
            '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}\n'
            '{NonResourceURLs:["*"], Verbs:["*"]}'
        )
        stored = await ADMIN.request("get", f"{RBAC}/v1/clusterroles/cluster-admin")
        assert "labels" not in stored["metadata"]


async def test_labelling_an_aggregated_role_requires_full_authority() -> None:
    aggregation = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
    role = f"{RBAC}/v1/clusterroles/aggregated"
    async with cluster():
        await ADMIN.create(f"{RBAC}/v1/clusterroles", cluster_role("aggregated", [], aggregationRule=aggregation))
        for patch in ({"metadata": {"labels": {"c": "d"}}}, {"aggregationRule": None}):
            with pytest.raises(ForbiddenError, match="must have cluster-admin privileges to use the aggregationRule"):
                await MALLORY.request("patch", role, patch, content_type=MERGE)
        with pytest.raises(ForbiddenError, match="must have cluster-admin privileges to use the aggregationRule"):
            await MALLORY.create(f"{RBAC}/v1/clusterroles", cluster_role("own", [], aggregationRule=aggregation))


async def test_relabelling_a_binding_to_cluster_admin_is_forbidden() -> None:
    path = f"{RBAC}/v1/clusterrolebindings/admins"
    async with cluster():
        with pytest.raises(ForbiddenError, match="is attempting to grant RBAC permissions not currently held"):
            await MALLORY.request("patch", path, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)


async def test_a_role_that_stands_for_millions_of_permissions_is_not_compared_one_by_one() -> None:
    """Of 200 verbs for 200 resources in 200 groups: 10 KB are eight million permissions."""
    names = [f"n{i}" for i in range(200)]
    huge = [{"apiGroups": names, "resources": names, "verbs": names}]
    async with cluster():
        started = time.process_time()
        with pytest.raises(ForbiddenError, match="more than 20000 permissions"):
            await MALLORY.create(f"{RBAC}/v1/clusterroles", cluster_role("huge", huge))
        assert time.process_time() - started < CPU_SECONDS_MAX
        # What one rule of the user covers as a whole needs no comparison.
        held = [
            {
                "apiGroups": [""],
                "resources": ["pods"],
                "resourceNames": [f"p{i}" for i in range(30_000)],
                "verbs": ["get"],
            }
        ]
        await MALLORY.create(f"{RBAC}/v1/clusterroles", cluster_role("held", held))


async def test_roles_within_ones_permissions_and_finalizers_of_any_role_can_be_changed() -> None:
    own = cluster_role("own", [rule("get", "pods")])
    finalizers = {"metadata": {"finalizers": ["example.com/hold"]}}
    labels = {"metadata": {"labels": {"a": "b"}}}
    async with cluster():
        await MALLORY.create(f"{RBAC}/v1/clusterroles", own)
        await MALLORY.request("patch", f"{RBAC}/v1/clusterroles/own", labels, content_type=MERGE)
        patched = await MALLORY.request(
            "patch", f"{RBAC}/v1/clusterroles/cluster-admin", finalizers, content_type=MERGE
        )
        assert patched["metadata"]["finalizers"] == ["example.com/hold"]
        with pytest.raises(ForbiddenError):
            await MALLORY.request(
                "patch",
                f"{RBAC}/v1/clusterroles/cluster-admin",
                {"metadata": {"finalizers": None, **labels["metadata"]}},
                content_type=MERGE,
            )
