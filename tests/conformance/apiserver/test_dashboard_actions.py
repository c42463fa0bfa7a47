"""Actions of the dashboard over HTTP: each needs exactly the permission that it names, and is done with it."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from dray.api.document import Document
from dray.api.errors import NotFoundError
from dray.cmd import apiserver
from dray.cmd.settings import APIServerSettings
from dray.dashboard.actions import PERMISSIONS
from tests.local_server import Local

GPU = "gpu.example.com"
TOKENS = 'bob-token,bob,bob-uid\nadmin-token,admin,admin-uid,"system:masters"\n'
RBAC = "rbac.authorization.k8s.io"


@dataclass(slots=True)
class Site:
    """A server with one node, one Pod, one claim and one taint rule."""

    local: Local
    uids: dict[str, str]

    async def send(self, method: str, path: str, body: Any = None, token: str = "bob-token", **headers: str) -> Any:
        """Return status and body of a request over HTTPS."""
        address = urlparse(self.local.running.url)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}

        def request() -> tuple[int, Any]:
            # The certificate is not what is tested here.
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(address.hostname or "", address.port, context=context, timeout=20)
            connection.request(method, f"/ui/data/{path}", None if body is None else content, fields)
            response = connection.getresponse()
            answer = json.loads(response.read())
            connection.close()
            return response.status, answer

        return await asyncio.to_thread(request)

    async def act(self, action: str, **parameters: str) -> tuple[int, Document]:
        """Take an action as bob."""
        status, answer = await self.send("POST", "action", {"action": action, **parameters})
        return status, answer

    async def allow(self, action: str) -> None:
        """Let bob take an action, and nothing else."""
        needed = PERMISSIONS[action]
        resource = f"{needed.resource}/{needed.subresource}" if needed.subresource else needed.resource
        rule = {"apiGroups": [needed.group], "resources": [resource], "verbs": [needed.verb]}
        role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": "bob"}, "rules": [rule]}
        await self.local.request("create", f"{RBAC}/v1/clusterroles", role)
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "bob"},
            "subjects": [{"kind": "User", "name": "bob", "apiGroup": RBAC}],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "bob"},
        }
        await self.local.request("create", f"{RBAC}/v1/clusterrolebindings", binding)

    async def get(self, path: str) -> Document | None:
        """Return an object; None if there is none."""
        try:
            return await self.local.request("get", path)
        except NotFoundError:
            return None


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    tokens = tmp_path / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKENS)
    settings = APIServerSettings(
        data_dir=str(tmp_path),
        port=0,
        store="memory",
        token_auth_file=str(tokens),
        disable_admission_plugins=("ServiceAccount", "TaintNodesByCondition"),
    )
    async with apiserver.running(settings) as running:
        local = Local(running)
        pod = {"containers": [{"name": "main", "image": "i"}], "terminationGracePeriodSeconds": 0}
        claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
        rule = {"deviceSelector": {"driver": GPU}, "taint": {"key": "example.com/ecc", "effect": "NoSchedule"}}
        created = {
            "node": await local.request("create", "core/v1/nodes", of("v1", "Node", "n")),
            "pod": await local.request("create", "core/v1/pods@default", of("v1", "Pod", "p", pod)),
            "claim": await local.request(
                "create", f"{DRA}/resourceclaims@default", of(DRA, "ResourceClaim", "c", claim)
            ),
            "rule": await local.request("create", f"{DRA}/devicetaintrules", of(DRA, "DeviceTaintRule", "r", rule)),
        }
        yield Site(local, {name: item["metadata"]["uid"] for name, item in created.items()})


DRA = "resource.k8s.io/v1"


def of(version: str, kind: str, name: str, spec: Document | None = None) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec or {}}


POD, CLAIM, NODE, RULE = (
    "core/v1/pods/p@default",
    f"{DRA}/resourceclaims/c@default",
    "core/v1/nodes/n",
    f"{DRA}/devicetaintrules/r",
)
# Parameters of an action, what it answers, and what it does to an object: whether it exists afterwards.
CASES: dict[str, tuple[dict[str, str], str, str]] = {
    "delete-pod": ({"namespace": "default", "name": "p", "uid": "pod"}, "Pod default/p deleted", POD),
    "evict": ({"namespace": "default", "name": "p", "uid": "pod"}, "Pod default/p evicted", POD),
    "delete-claim": ({"namespace": "default", "name": "c", "uid": "claim"}, "ResourceClaim default/c deleted", CLAIM),
    "delete-taint": ({"name": "r"}, "DeviceTaintRule r deleted", RULE),
    "cordon": ({"name": "n"}, "Node n cordoned", ""),
    "uncordon": ({"name": "n"}, "Node n uncordoned", ""),
    "taint-device": (
        {"driver": GPU, "pool": "n", "device": "gpu-0", "key": "example.com/hot", "effect": "NoExecute"},
        "DeviceTaintRule dashboard-",
        "",
    ),
}


def test_every_action_is_tested() -> None:
    assert CASES.keys() == PERMISSIONS.keys()


@pytest.mark.parametrize("action", CASES)
async def test_an_action_needs_its_own_permission_and_no_other(site: Site, action: str) -> None:
    parameters, message, gone = CASES[action]
    if "uid" in parameters:
        parameters = {**parameters, "uid": site.uids[parameters["uid"]]}
    if action == "uncordon":
        patch = {"spec": {"unschedulable": True}}
        await site.local.request("patch", NODE, patch, content_type="application/merge-patch+json")
    before = await state(site)
    assert await site.send("GET", "permissions?namespace=default") == (200, [])
    status, refused = await site.act(action, **parameters)
    assert (status, refused["reason"]) == (403, "Forbidden")
    assert 'User "bob" cannot' in refused["message"]
    assert await state(site) == before, "nothing happened"

    await site.allow(action)
    same = {name for name in PERMISSIONS if PERMISSIONS[name] == PERMISSIONS[action]}
    assert set((await site.send("GET", "permissions?namespace=default"))[1]) == same
    status, done = await site.act(action, **parameters)
    assert status == 200, done
    assert done["message"].startswith(message)
    after = await state(site)
    if gone:
        assert {key for key in before if before[key] != after[key]} == {gone}
        assert after[gone] is None
    elif action == "taint-device":
        (rule,) = set(after["rules"]) - set(before["rules"])
        created = await site.get(f"{DRA}/devicetaintrules/{rule}")
        assert created is not None
        assert created["spec"]["deviceSelector"] == {"driver": GPU, "pool": "n", "device": "gpu-0"}
        taint = created["spec"]["taint"]
        assert (taint["key"], taint["effect"]) == ("example.com/hot", "NoExecute")
    else:
        assert after[NODE] is (action == "cordon")


async def state(site: Site) -> dict[str, Any]:
    """What actions can change: uids of objects, whether the node is cordoned, and the names of rules."""
    found: dict[str, Any] = {}
    for path in (POD, CLAIM, RULE):
        item = await site.get(path)
        found[path] = None if item is None else item["metadata"]["uid"]
    node = await site.get(NODE)
    found[NODE] = bool(node and (node.get("spec") or {}).get("unschedulable"))
    rules = await site.local.request("list", f"{DRA}/devicetaintrules")
    found["rules"] = [item["metadata"]["name"] for item in rules["items"] if item["metadata"]["name"] != "r"]
    return found


async def test_an_object_of_the_same_name_is_another_one(site: Site) -> None:
    for action in ("delete-pod", "evict", "delete-claim"):
        parameters = CASES[action][0] | {"uid": "uid-of-another"}
        status, refused = await site.send("POST", "action", {"action": action, **parameters}, "admin-token")
        assert (status, refused["reason"]) == (409, "Conflict"), action
    assert None not in (await state(site)).values()


@pytest.mark.parametrize(
    ("method", "body", "content_type", "status", "message"),
    [
        ("POST", {"action": "explode"}, "application/json", 400, "action must be one of delete-pod, evict,"),
        ("POST", {"action": "cordon"}, "application/json", 400, "name is required"),
        ("POST", {"action": "cordon", "name": ["n"]}, "application/json", 400, "name is required"),
        ("POST", b"{", "application/json", 400, "the body is not JSON"),
        ("POST", [1], "application/json", 400, "the body must be an object"),
        # What a form of another site could send.
        ("POST", {"action": "cordon", "name": "n"}, "text/plain", 415, ""),
        ("GET", None, "application/json", 405, ""),
        (
            "POST",
            {"action": "taint-device", "driver": GPU, "pool": "n", "device": "d", "key": "k", "effect": "Boom"},
            "application/json",
            400,
            "effect must be one of NoSchedule, NoExecute, None",
        ),
    ],
)
async def test_what_is_no_action_is_refused(
    site: Site, method: str, body: Any, content_type: str, status: int, message: str
) -> None:
    before = await state(site)
    found, refused = await site.send(method, "action", body, "admin-token", **{"Content-Type": content_type})
    assert found == status
    assert message in refused["message"]
    assert await state(site) == before


async def test_nobody_acts_without_credentials(site: Site) -> None:
    before = await state(site)
    for token, expected in (("", 403), ("wrong", 401)):
        status, _ = await site.send("POST", "action", {"action": "cordon", "name": "n"}, token)
        assert status == expected
    assert await state(site) == before
