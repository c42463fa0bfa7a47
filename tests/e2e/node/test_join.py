"""A machine joins a cluster with two commands, and without the right token it does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dray.api import bootstrap_tokens
from dray.api.document import GroupVersion
from dray.client.credentials import load_access
from dray.client.http import http_client
from dray.client.interface import Client, unstructured
from dray.client.resources import CERTIFICATE_SIGNING_REQUESTS, NODES, SECRETS
from dray.runtime.system import SystemClock
from tests.servers import Server

START_SECONDS_MAX = 30.0
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
