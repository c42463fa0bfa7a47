"""A stock kube-controller-manager works on this API server: all its informers list their kinds, and namespaces go.

Needs `KUBE_CONTROLLER_MANAGER`, the path of a kube-controller-manager 1.37.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dray.api.document import Document
from tests.e2e.apiserver.calls import Caller, calling
from tests.objects_of_kinds import endpoint_of, one_of_each_kind
from tests.servers import Server, running_server

BINARY: Final = os.environ.get("KUBE_CONTROLLER_MANAGER", "")
GATES: Final = "--feature-gates=GenericWorkload=true"
GONE_SECONDS_MAX: Final = 120.0
LOOK_SECONDS: Final = 0.2

pytestmark = pytest.mark.skipif(not BINARY, reason="KUBE_CONTROLLER_MANAGER names no binary")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = (GATES, "--disable-admission-plugins=ServiceAccount")
    with running_server(tmp_path_factory.mktemp("server"), *flags, command="apiserver") as found:
        yield found


@pytest.fixture(scope="module")
def log(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The output of a kube-controller-manager that is running."""
    folder = tmp_path_factory.mktemp("manager")
    file = folder / "log"
    flags = [f"--{name}={server.kubeconfig}" for name in ("kubeconfig", "authentication-kubeconfig")]
    flags += ["--secure-port=0", "--leader-elect=false", f"--cert-dir={folder}", GATES]
    with file.open("w") as output:
        process = subprocess.Popen([BINARY, *flags], stdout=output, stderr=output)
        try:
            yield file
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def caller(server: Server) -> Iterator[Caller]:
    with calling(server) as found:
        yield found


def create_one_of_each(caller: Caller, namespace: str) -> int:
    created = 0
    for document in one_of_each_kind().values():
        definition, version = endpoint_of(document).definition, endpoint_of(document).version
        if not definition.namespaced:
            continue
        root = f"/apis/{definition.group}/{version}" if definition.group else f"/api/{version}"
        body: Document = document | {"metadata": document["metadata"] | {"namespace": namespace}}
        path = f"{root}/namespaces/{namespace}/{definition.resource}"
        created += caller.call("POST", path, body).status == 201
    return created


@pytest.mark.behaviour("AK-02")
def test_a_namespace_with_an_object_of_every_kind_is_deleted(caller: Caller, log: Path) -> None:
    name = "doomed"
    assert caller.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}}).status == 201
    assert create_one_of_each(caller, name) > 20
    assert caller.call("DELETE", f"/api/v1/namespaces/{name}").status == 200
    deadline = time.monotonic() + GONE_SECONDS_MAX
    while (answer := caller.get(f"/api/v1/namespaces/{name}")).status == 200:
        assert time.monotonic() < deadline, answer.json()["status"]
        time.sleep(LOOK_SECONDS)
    assert answer.status == 404
    refused = [line for line in log.read_text().splitlines() if "failed to list" in line]
    assert not refused, "\n".join(refused[:5])
