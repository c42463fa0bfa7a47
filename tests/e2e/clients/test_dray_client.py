"""Dray's own HTTP client on a real server: every way to be somebody, every verb, and informers across restarts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dray.api.document import Document, GroupVersion
from dray.api.errors import (
    AlreadyExistsError,
    APIError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from dray.client import credentials
from dray.client.http import http_client
from dray.client.interface import (
    Bookmark,
    DeleteOptions,
    ListOptions,
    Patch,
    PatchType,
    WatchEvent,
    WatchOptions,
    WriteOptions,
    unstructured,
)
from dray.client.kubeconfig import Access, KubeconfigError
from dray.client.rest import RestClient
from dray.client.shared_informers import SharedInformerFactory
from dray.runtime.system import SystemClock
from tests.e2e.apiserver.calls import read_kubeconfig
from tests.e2e.clients import bodies
from tests.servers import Server, start_server

CORE, RESOURCE = GroupVersion("", "v1"), GroupVersion("resource.k8s.io", "v1")
CONFIG_MAPS = unstructured(CORE, "configmaps", "ConfigMap")
NAMESPACES = unstructured(CORE, "namespaces", "Namespace", namespaced=False)
ACCOUNTS = unstructured(CORE, "serviceaccounts", "ServiceAccount")
SECRETS = unstructured(CORE, "secrets", "Secret")
CLAIMS = unstructured(RESOURCE, "resourceclaims", "ResourceClaim")
DEPLOYMENTS = unstructured(GroupVersion("apps", "v1"), "deployments", "Deployment")
REVIEWS = unstructured(
    GroupVersion("authentication.k8s.io", "v1"), "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
WAIT_SECONDS = 120.0


@asynccontextmanager
async def connected(access: Access) -> AsyncIterator[RestClient]:
    client = http_client(access, SystemClock())
    try:
        yield client
    finally:
        await client.close()


def admin_access(server: Server) -> Access:
    return credentials.load_access({}, path=str(server.kubeconfig))


@pytest.fixture
async def client(server: Server) -> AsyncIterator[RestClient]:
    async with connected(admin_access(server)) as found:
        yield found


async def who_is(access: Access) -> str:
    async with connected(access) as client:
        review = await client.create(REVIEWS, {"metadata": {}})
        return str(review["status"]["userInfo"]["username"])


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait on the thing itself, looking often, not long."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - the informer has no event for "is up to date"
            await asyncio.sleep(0.01)


# --- who


def kubeconfig_as(server: Server, folder: Path, user: dict[str, Any]) -> Path:
    document = yaml.safe_load(server.kubeconfig.read_text())
    document["users"][0]["user"] = user
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def plugin(folder: Path, status: dict[str, Any], *, exit_code: int = 0) -> dict[str, Any]:
    """A credential plugin: prints the status, and leaves a mark of each run beside itself."""
    script = folder / "plugin"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert info['kind'] == 'ExecCredential' and os.environ['GREETING'] == 'hello' and sys.argv[1] == 'get'\n"
        f"open({str(folder / 'runs')!r}, 'a').write('run\\n')\n"
        f"print({json.dumps(answer)!r})\n"
        f"sys.exit({exit_code})\n"
    )
    script.chmod(stat.S_IRWXU)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(script),
            "args": ["get"],
            "env": [{"name": "GREETING", "value": "hello"}],
            "interactiveMode": "Never",
        }
    }


async def test_certificate_token_and_token_file(server: Server, tmp_path: Path) -> None:
    assert await who_is(admin_access(server)) == "kubernetes-admin"
    path = kubeconfig_as(server, tmp_path, {"token": "alice-token"})
    assert await who_is(credentials.load_access({"KUBECONFIG": str(path)})) == "alice"
    (tmp_path / "token").write_text("alice-token\n")
    path = kubeconfig_as(server, tmp_path, {"tokenFile": "token"})
    assert await who_is(credentials.load_access({}, path=str(path))) == "alice"


async def test_plugin_gives_a_token_once(server: Server, tmp_path: Path) -> None:
    path = kubeconfig_as(server, tmp_path, plugin(tmp_path, {"token": "alice-token"}))
    async with connected(credentials.load_access({}, path=str(path))) as client:
        answers = await asyncio.gather(*(client.create(REVIEWS, {"metadata": {}}) for _ in range(5)))
    assert {answer["status"]["userInfo"]["username"] for answer in answers} == {"alice"}
    assert (tmp_path / "runs").read_text() == "run\n"


async def test_plugin_gives_a_certificate(server: Server, tmp_path: Path) -> None:
    _, _, certificate, key = read_kubeconfig(server.kubeconfig)
    status = {"clientCertificateData": certificate.decode(), "clientKeyData": key.decode()}
    path = kubeconfig_as(server, tmp_path, plugin(tmp_path, status))
    assert await who_is(credentials.load_access({}, path=str(path))) == "kubernetes-admin"


async def test_plugin_is_asked_again_when_refused(server: Server, tmp_path: Path) -> None:
    path = kubeconfig_as(server, tmp_path, plugin(tmp_path, {"token": "stale"}))
    async with connected(credentials.load_access({}, path=str(path))) as client:
        with pytest.raises(UnauthorizedError):
            await client.list(CONFIG_MAPS, "default")
        assert (tmp_path / "runs").read_text() == "run\n" * 2
        plugin(tmp_path, {"token": "admin-token"})
        await client.list(CONFIG_MAPS, "default")


async def test_plugin_that_fails(server: Server, tmp_path: Path) -> None:
    path = kubeconfig_as(server, tmp_path, plugin(tmp_path, {"token": "x"}, exit_code=3))
    with pytest.raises(UnauthorizedError, match="failed with exit code 3"):
        await who_is(credentials.load_access({}, path=str(path)))


async def test_in_cluster_files(server: Server, client: RestClient, tmp_path: Path) -> None:
    await client.create(ACCOUNTS, {"metadata": {"name": "robot"}}, "default")
    answer = await client.create_subresource(
        ACCOUNTS, "robot", "default", "token", {"spec": {"expirationSeconds": 600, "audiences": []}}
    )
    url, authority, _, _ = read_kubeconfig(server.kubeconfig)
    (tmp_path / "token").write_text(answer["status"]["token"])
    (tmp_path / "ca.crt").write_bytes(authority)
    (tmp_path / "namespace").write_text("default")
    host, port = url.removeprefix("https://").split(":")
    access = credentials.in_cluster({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}, str(tmp_path))
    assert access.namespace == "default"
    assert await who_is(access) == "system:serviceaccount:default:robot"
    async with connected(access) as robot:
        with pytest.raises(ForbiddenError, match='cannot list resource "secrets"'):
            await robot.list(SECRETS, "default")


async def test_impersonation(server: Server, tmp_path: Path) -> None:
    _, _, certificate, key = read_kubeconfig(server.kubeconfig)
    user = {
        "client-certificate-data": base64.b64encode(certificate).decode(),
        "client-key-data": base64.b64encode(key).decode(),
        "as": "bob",
        "as-groups": ["devs"],
    }
    access = credentials.load_access({}, path=str(kubeconfig_as(server, tmp_path, user)))
    assert await who_is(access) == "bob"


async def test_wrong_authority_is_refused(server: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = start_server(tmp_path_factory.mktemp("other"))
    try:
        _, authority, _, _ = read_kubeconfig(other.kubeconfig)
    finally:
        other.stop()
        assert other.process.stdout is not None
        other.process.stdout.close()
    access = Access(server=server.url, authority_data=authority, token="admin-token")
    with pytest.raises(APIError, match="certificate verify failed"):
        await who_is(access)


def test_context_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("apiVersion: v1\nkind: Config\ncurrent-context: gone\n")
    with pytest.raises(KubeconfigError, match='context "gone" does not exist'):
        credentials.load_access({"KUBECONFIG": str(tmp_path / "config")})


# --- what


async def test_verbs(client: RestClient, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, bodies.config_map("settings", a="1"), namespace)
    assert (await client.get(CONFIG_MAPS, "settings", namespace))["metadata"]["uid"] == made["metadata"]["uid"]
    with pytest.raises(AlreadyExistsError, match='configmaps "settings" already exists'):
        await client.create(CONFIG_MAPS, bodies.config_map("settings"), namespace)
    updated = await client.update(CONFIG_MAPS, {**made, "data": {"a": "2"}})
    with pytest.raises(ConflictError, match="the object has been modified"):
        await client.update(CONFIG_MAPS, {**made, "data": {"a": "3"}})
    assert updated["data"] == {"a": "2"}
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, "settings", namespace, DeleteOptions(uid="other"))
    await client.delete(CONFIG_MAPS, "settings", namespace)
    with pytest.raises(NotFoundError, match='configmaps "settings" not found'):
        await client.get(CONFIG_MAPS, "settings", namespace)
    with pytest.raises(InvalidError, match=r"metadata\.name"):
        await client.create(CONFIG_MAPS, bodies.config_map("Not Valid"), namespace)


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(Patch(PatchType.MERGE, {"data": {"a": None, "b": "2"}}), id="merge"),
        pytest.param(Patch(PatchType.STRATEGIC, {"data": {"a": None, "b": "2"}}), id="strategic"),
        pytest.param(
            Patch(
                PatchType.JSON,
                [{"op": "remove", "path": "/data/a"}, {"op": "add", "path": "/data/b", "value": "2"}],
            ),
            id="json",
        ),
    ],
)
async def test_patch_types(client: RestClient, namespace: str, patch: Patch) -> None:
    await client.create(CONFIG_MAPS, bodies.config_map("settings", a="1"), namespace)
    assert (await client.patch(CONFIG_MAPS, "settings", namespace, patch))["data"] == {"b": "2"}


async def test_apply_and_status(client: RestClient, namespace: str) -> None:
    patch = Patch(PatchType.APPLY, bodies.resource_claim("claim"))
    made = await client.patch(CLAIMS, "claim", namespace, patch, WriteOptions(field_manager="one"))
    made["status"] = bodies.allocation()
    written = await client.update_status(CLAIMS, made)
    assert written["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-0"
    settings = Patch(PatchType.APPLY, bodies.config_map("settings", a="1"))
    await client.patch(CONFIG_MAPS, "settings", namespace, settings, WriteOptions(field_manager="one"))
    other = Patch(PatchType.APPLY, bodies.config_map("settings", a="2"))
    with pytest.raises(ConflictError, match='conflict with "one"'):
        await client.patch(CONFIG_MAPS, "settings", namespace, other, WriteOptions(field_manager="two"))
    forced = await client.patch(
        CONFIG_MAPS, "settings", namespace, other, WriteOptions(field_manager="two", force=True)
    )
    assert forced["data"] == {"a": "2"}


async def test_pages_and_discovery(client: RestClient, namespace: str) -> None:
    for number in range(7):
        await client.create(CLAIMS, bodies.resource_claim(f"claim-{number}"), namespace)
    first = await client.list(CLAIMS, namespace, ListOptions(limit=5))
    second = await client.list(CLAIMS, namespace, ListOptions(limit=5, continue_token=first.continue_token))
    assert (first.remaining_item_count, len(second.items), second.continue_token) == (2, 2, "")
    served = {(item.group, item.version, item.plural) for item in await client.resources()}
    assert ("resource.k8s.io", "v1", "resourceclaims") in served


async def test_watch_resumes(client: RestClient, namespace: str) -> None:
    version = (await client.list(CLAIMS, namespace)).resource_version
    for number in range(4):
        await client.create(CLAIMS, bodies.resource_claim(f"claim-{number}"), namespace)
    seen: list[str] = []
    while len(seen) < 4:
        async with aclosing(client.watch(CLAIMS, namespace, WatchOptions(resource_version=version))) as events:
            async for event in events:
                if isinstance(event, WatchEvent):
                    seen.append(event.object["metadata"]["name"])
                    version = event.resource_version
                    break
    assert seen == [f"claim-{number}" for number in range(4)]


async def test_streamed_list(client: RestClient, namespace: str) -> None:
    for number in range(3):
        await client.create(CLAIMS, bodies.resource_claim(f"claim-{number}"), namespace)
    options = WatchOptions(send_initial_events=True, resource_version_match="NotOlderThan")
    seen = 0
    async with aclosing(client.watch(CLAIMS, namespace, options)) as events:
        async for event in events:
            if isinstance(event, Bookmark):
                assert event.initial_events_end
                break
            seen += 1
    assert seen == 3


# --- across restarts


@contextlib.contextmanager
def closing_output(server: Server) -> Any:
    """Close the pipe of a server that is about to be replaced."""
    yield
    if server.process.stdout is not None:
        server.process.stdout.close()


class Recorder:
    """What an informer's handler received: the last state of each object, and every change of its data."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.changes: list[tuple[str, str | None, str | None]] = []

    def __call__(self, old: Document | None, new: Document | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        before = old["data"]["n"] if old else None
        after = new["data"]["n"] if new else None
        # The chain is unbroken: what is old now was new before.
        assert self.state.get(name) == before
        if after is None:
            del self.state[name]
        else:
            self.state[name] = after
        self.changes.append((name, before, after))


async def write_some(client: RestClient, round_number: int, expected: dict[str, str]) -> None:
    """Create, change and delete a few; `expected` becomes what the server has acknowledged."""
    for number in range(20):
        name = f"r{round_number}-{number}"
        made = await client.create(CONFIG_MAPS, bodies.config_map(name, n="0"), "default")
        if number % 3 == 0:
            made["data"]["n"] = "1"
            made = await client.update(CONFIG_MAPS, made)
        expected[name] = made["data"]["n"]
    victim = f"r{round_number}-5"
    await client.delete(CONFIG_MAPS, victim, "default")
    del expected[victim]


@pytest.mark.parametrize("power_cut", [True, False], ids=["kill -9", "SIGTERM"])
async def test_informer_misses_nothing_across_restarts(tmp_path: Path, power_cut: bool) -> None:
    server = await asyncio.to_thread(start_server, tmp_path)
    port = int(server.url.rpartition(":")[2])
    expected: dict[str, str] = {}
    recorder = Recorder()
    try:
        async with connected(admin_access(server)) as client, connected(admin_access(server)) as writer:
            informers = SharedInformerFactory(client, SystemClock(), random.Random(1))
            informer = informers.informer(CONFIG_MAPS)
            informer.add_handler(lambda old, new: recorder(old, new) if (new or old or {})["data"].get("n") else None)
            running = asyncio.create_task(informers.run())
            await asyncio.wait_for(informers.wait_for_sync(), WAIT_SECONDS)
            for round_number in range(3):
                await write_some(writer, round_number, expected)
                with closing_output(server):
                    await asyncio.to_thread(server.kill if power_cut else server.stop)
                with pytest.raises(ServiceUnavailableError):
                    await writer.create(CONFIG_MAPS, bodies.config_map("lost", n="0"), "default")
                server = await asyncio.to_thread(start_server, tmp_path, port=port)
                listing = await writer.list(CONFIG_MAPS, "default")
                assert {
                    item["metadata"]["name"]: item["data"]["n"] for item in listing.items if "n" in item["data"]
                } == expected
                await eventually(lambda: recorder.state == expected)
            await write_some(writer, 9, expected)
            await eventually(lambda: recorder.state == expected)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    finally:
        with closing_output(server):
            server.stop()
    additions = [name for name, before, _ in recorder.changes if before is None]
    # Nothing is delivered twice either.
    assert len(additions) == len(set(additions)) == 80
