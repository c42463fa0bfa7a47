"""A machine joins a cluster with two commands, and without the right token it does not."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dray.api import bootstrap_tokens
from dray.api.document import GroupVersion
from dray.apiserver.kubelet_client import FINGERPRINT_ANNOTATION
from dray.client.credentials import load_access
from dray.client.errors import ignore_not_found
from dray.client.http import http_client
from dray.client.interface import Client, unstructured
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS, NODES, SECRETS
from dray.runtime.system import SystemClock
from tests.e2e.apiserver.calls import calling
from tests.servers import Server, running_server

START_SECONDS_MAX = 120.0
TOKEN_REVIEWS = unstructured(
    GroupVersion("authentication.k8s.io", "v1"), "tokenreviews", "TokenReview", namespaced=False
)


def dray(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
    command = [sys.executable, "-m", "dray", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)


@pytest.fixture
def join_command(server: Server) -> list[str]:
    """The words of the command that `dray token create` prints."""
    created = dray(server, "token", "create", "--print-join-command", "--description=test")
    assert created.returncode == 0, created.stderr
    assert re.fullmatch(
        r"dray join https://\S+ --token \w{6}\.\w{16} --discovery-token-ca-cert-hash sha256:[0-9a-f]{64}\n",
        created.stdout,
    )
    return created.stdout.split()[1:]


def client_of(path: Path) -> Client:
    return http_client(load_access({}, path=str(path)), SystemClock())


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    """A process for the time of a block, which begins when it is ready."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not process.stdout.readline().startswith("ready"):
            assert process.poll() is None
            assert time.monotonic() < deadline
        yield
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(START_SECONDS_MAX):
        while not await condition():  # noqa: ASYNC110 - the condition is the cluster's state
            await asyncio.sleep(0.1)


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


@pytest.mark.behaviour("CS-06", "CS-07", "CS-08", "CS-09")
async def test_two_commands_make_a_node(server: Server, join_command: list[str], tmp_path: Path) -> None:
    flags = (
        "--hostname-override=joined",
        f"--root-dir={tmp_path}",
        "--port=0",
        "--healthz-port=0",
        "--runtime=process",
    )
    with running([sys.executable, "-m", "dray", *join_command, *flags]):
        assert (tmp_path / "kubeconfig").stat().st_mode & 0o777 == 0o600
        joined = client_of(tmp_path / "kubeconfig")
        node = await joined.get(NODES.unstructured, "joined", "")
        assert any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])
        await joined.close()
    # It has joined already: nothing is requested again.
    again = dray(server, *join_command, f"--root-dir={tmp_path}", "--no-start")
    assert "joined already" in again.stderr


@pytest.mark.behaviour("CS-08")
def test_a_cluster_with_another_authority_is_refused(server: Server, join_command: list[str], tmp_path: Path) -> None:
    forged = [*join_command[:-1], f"sha256:{'0' * 64}"]
    refused = dray(server, *forged, f"--root-dir={tmp_path}", "--no-start")
    assert refused.returncode == 1
    assert "which is not the given one" in refused.stderr
    assert is_empty(tmp_path)
    without = dray(server, *join_command[:-2], f"--root-dir={tmp_path}", "--no-start")
    assert without.returncode == 2
    assert "--discovery-token-ca-cert-hash is needed" in without.stderr


@pytest.mark.behaviour("CS-06", "CS-08")
async def test_forged_deleted_and_malformed_tokens_do_not_join(
    server: Server, join_command: list[str], tmp_path: Path
) -> None:
    position = join_command.index("--token") + 1
    token = join_command[position]
    admin = client_of(server.kubeconfig)
    before = len((await admin.list(CERTIFICATE_SIGNING_REQUESTS, "")).items)
    forged = [*join_command]
    forged[position] = f"{token[:7]}{'0' * 16}"
    refused = dray(server, *forged, f"--root-dir={tmp_path}", "--no-start")
    assert "its signature is wrong" in refused.stderr
    forged[position] = "malformed"
    assert dray(server, *forged, f"--root-dir={tmp_path}", "--no-start").returncode == 2
    # The API server itself refuses a wrong secret, and a token that was deleted.
    for secret, name in ((f"{token[:7]}{'0' * 16}", "wrong"), (token, "deleted")):
        if name == "deleted":
            assert "deleted" in dray(server, "token", "delete", token).stdout
        answer = await admin.create(TOKEN_REVIEWS, {"spec": {"token": secret}})
        assert not answer["status"].get("authenticated"), name
    assert len((await admin.list(CERTIFICATE_SIGNING_REQUESTS, "")).items) == before
    assert is_empty(tmp_path)
    await admin.close()


@pytest.mark.behaviour("CS-06", "CS-08")
async def test_an_expired_token_does_not_join(server: Server, tmp_path: Path) -> None:
    created = dray(server, "token", "create", "--ttl=1s", "--print-join-command")
    words = created.stdout.split()[1:]
    token = words[words.index("--token") + 1]
    admin = client_of(server.kubeconfig)

    async def is_deleted() -> bool:
        name = f"bootstrap-token-{token[:6]}"
        return await ignore_not_found(admin.get(SECRETS.unstructured, name, bootstrap_tokens.NAMESPACE)) is None

    await wait_until(is_deleted)
    before = len((await admin.list(CERTIFICATE_SIGNING_REQUESTS, "")).items)
    refused = dray(server, *words, f"--root-dir={tmp_path}", "--no-start", "--discovery-timeout=0s")
    assert refused.returncode == 1
    reason = f'could not find a JWS signature in the cluster-info ConfigMap for token ID "{token[:6]}"'
    assert f"dray join: {reason}: the cluster has no such token, or it has expired" in refused.stderr
    answer = await admin.create(TOKEN_REVIEWS, {"spec": {"token": token}})
    assert not answer["status"].get("authenticated")
    assert len((await admin.list(CERTIFICATE_SIGNING_REQUESTS, "")).items) == before
    assert is_empty(tmp_path)
    await admin.close()


@pytest.mark.behaviour("CS-08")
async def test_tokens_are_listed_without_their_secrets(server: Server, join_command: list[str]) -> None:
    token = join_command[join_command.index("--token") + 1]
    listed = dray(server, "token", "list").stdout
    assert listed.splitlines()[0].split() == ["ID", "EXPIRES", "USAGES", "DESCRIPTION"]
    row = next(line for line in listed.splitlines() if line.startswith(token[:6]))
    assert "authentication,signing" in row
    assert token[7:] not in listed
    admin = client_of(server.kubeconfig)
    secret = await admin.get(SECRETS.unstructured, f"bootstrap-token-{token[:6]}", bootstrap_tokens.NAMESPACE)
    assert secret["type"] == bootstrap_tokens.SECRET_TYPE
    await admin.close()


@pytest.mark.behaviour("CS-10", "CS-12")
async def test_certificates_are_renewed_while_the_agent_runs(tmp_path: Path) -> None:
    root = tmp_path / "node"
    with running_server(
        tmp_path / "data", "--cluster-signing-duration=60s", "--kubelet-serving-networks=127.0.0.1", "--store=memory"
    ) as server:
        created = dray(server, "token", "create", "--print-join-command")
        names = ("--hostname-override=joined", f"--root-dir={root}", "--runtime=process")
        flags = (*names, "--port=0", "--healthz-port=0", "--address=127.0.0.1", "--node-ip=127.0.0.1")
        admin = client_of(server.kubeconfig)
        with running([sys.executable, "-m", "dray", *created.stdout.split()[1:], *flags]):
            kubeconfig = root / "kubeconfig"
            first = load_access({}, path=str(kubeconfig)).certificate_data

            async def is_trusted_by_authority() -> bool:
                node = await admin.get(NODES.unstructured, "joined", "")
                return FINGERPRINT_ANNOTATION not in node["metadata"].get("annotations", {})

            # The cluster signs the serving certificate, so that its fingerprint is not needed.
            await wait_until(is_trusted_by_authority)
            node = await admin.get(NODES.unstructured, "joined", "")
            port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
            with calling(server) as caller:
                assert caller.get("/api/v1/nodes/joined/proxy/healthz").body == b"ok"
            for file, is_trusted in (("kubelet-serving-ca.crt", True), ("ca.crt", False)):
                context = ssl.create_default_context(cafile=str(server.data_dir / "pki" / file))
                with socket.create_connection(("127.0.0.1", port)) as plain:
                    if is_trusted:
                        context.wrap_socket(plain, server_hostname="127.0.0.1").close()
                    else:
                        with pytest.raises(ssl.SSLCertVerificationError):
                            context.wrap_socket(plain, server_hostname="127.0.0.1")

            async def is_renewed() -> bool:
                return load_access({}, path=str(kubeconfig)).certificate_data != first

            # Its client certificate lives shorter than the tolerated clock skew, and is due at once.
            await wait_until(is_renewed)
            assert kubeconfig.stat().st_mode & 0o777 == 0o600
            joined = client_of(kubeconfig)
            await joined.get(NODES.unstructured, "joined", "")
            await joined.close()
        users = {item["spec"]["username"] for item in (await admin.list(CERTIFICATE_SIGNING_REQUESTS, "")).items}
        assert "system:node:joined" in users
        await admin.close()
