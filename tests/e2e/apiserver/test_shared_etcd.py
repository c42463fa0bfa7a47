"""Two API servers on one etcd: clients of either of them see the same cluster."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.e2e.apiserver.calls import Caller, calling, events
from tests.servers import Server, running_server

MAPS = "/api/v1/namespaces/default/configmaps"
START_SECONDS_MAX = 20


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = shutil.which("etcd", path=str(Path(sys.executable).parent)) or shutil.which("etcd")
    assert binary, "etcd is not installed"
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        port, peer = (each.getsockname()[1] for each in sockets)
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    command = [binary, "--data-dir", str(tmp_path_factory.mktemp("etcd")), "--name", "one", "--log-level", "error"]
    command += ["--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer_url]
    command += ["--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"one={peer_url}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        assert time.monotonic() < deadline, "etcd does not listen"
    yield url
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def pair(etcd: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Both share the keys, as replicas of one control plane do, and nothing else on disk."""
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    flags = ("--store=etcd", f"--etcd-servers={etcd}")
    with running_server(first, *flags, command="apiserver") as one:
        shutil.copytree(first / "pki", second / "pki")
        with running_server(second, *flags, command="apiserver") as other:
            yield one, other


@pytest.fixture
def one(pair: tuple[Server, Server]) -> Iterator[Caller]:
    with calling(pair[0]) as found:
        yield found


@pytest.fixture
def other(pair: tuple[Server, Server]) -> Iterator[Caller]:
    with calling(pair[1]) as found:
        yield found


def test_each_sees_what_the_other_wrote(one: Caller, other: Caller) -> None:
    made = one.call("POST", MAPS, {"metadata": {"name": "shared"}, "data": {"a": "1"}})
    assert made.status == 201
    # At once: a read is never older than a write that was acknowledged elsewhere.
    found = other.get(f"{MAPS}/shared")
    assert found.json() == made.json()
    changed = found.json() | {"data": {"a": "2"}}
    assert other.call("PUT", f"{MAPS}/shared", changed).status == 200
    assert one.get(f"{MAPS}/shared").json()["data"] == {"a": "2"}
    stale = one.call("PUT", f"{MAPS}/shared", made.json() | {"data": {"a": "3"}})
    assert (stale.status, stale.json()["reason"]) == (409, "Conflict")
    assert one.call("POST", MAPS, {"metadata": {"name": "shared"}}).json()["reason"] == "AlreadyExists"
    assert one.call("DELETE", f"{MAPS}/shared").status == 200
    assert other.get(f"{MAPS}/shared").status == 404


def test_watches_and_versions_are_good_on_both(one: Caller, other: Caller) -> None:
    version = one.get(MAPS).json()["metadata"]["resourceVersion"]
    with other.stream(f"{MAPS}?watch=true&resourceVersion={version}&timeoutSeconds=20") as answer:
        for number in range(5):
            writer = one if number % 2 else other
            assert writer.call("POST", MAPS, {"metadata": {"name": f"watched-{number}"}}).status == 201
        found = events(answer)
        seen = [next(found) for _ in range(5)]
    assert [(kind, item["metadata"]["name"]) for kind, item in seen] == [
        ("ADDED", f"watched-{number}") for number in range(5)
    ]
    # A watch begun on one goes on at the other.
    middle = seen[2][1]["metadata"]["resourceVersion"]
    with one.stream(f"{MAPS}?watch=true&resourceVersion={middle}&timeoutSeconds=20") as answer:
        rest = events(answer)
        assert [next(rest)[1]["metadata"]["name"] for _ in range(2)] == ["watched-3", "watched-4"]


def test_pages_go_on_at_the_other(one: Caller, other: Caller) -> None:
    path = "/api/v1/namespaces/kube-system/configmaps"
    for number in range(6):
        assert one.call("POST", path, {"metadata": {"name": f"paged-{number}"}}).status == 201
    first = one.get(f"{path}?limit=4").json()
    other.call("DELETE", f"{path}/paged-5")
    second = other.get(f"{path}?limit=4&continue={first['metadata']['continue']}").json()
    names = [item["metadata"]["name"] for item in first["items"] + second["items"]]
    assert [name for name in names if name.startswith("paged-")] == [f"paged-{number}" for number in range(6)]


def test_rights_and_tokens_are_good_on_both(pair: tuple[Server, Server], one: Caller, other: Caller) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    assert one.call("POST", accounts, {"metadata": {"name": "robot"}}).status == 201
    token = one.call("POST", f"{accounts}/robot/token", {"spec": {}}).json()["status"]["token"]
    binding = {
        "metadata": {"name": "robots"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "default"}],
    }
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    assert one.call("POST", path, binding).status == 201
    deadline = time.monotonic() + START_SECONDS_MAX
    with calling(pair[1], token) as robot:
        # Rights travel by watch, as in Kubernetes: soon, not at once.
        while robot.get(MAPS).status != 200:
            assert time.monotonic() < deadline


def test_racing_creates_on_both_get_exactly_what_the_quota_allows(pair: tuple[Server, Server], one: Caller) -> None:
    place = "/api/v1/namespaces/limited"
    one.call("POST", "/api/v1/namespaces", {"metadata": {"name": "limited"}})
    hard = {"count/configmaps": "10", "secrets": "0"}
    made = one.call("POST", f"{place}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}}).json()
    # No controllers run here: the first count is made by hand.
    made["status"] = {"hard": hard, "used": dict.fromkeys(hard, "0")}
    assert one.call("PUT", f"{place}/resourcequotas/q/status", made).status == 200
    deadline = time.monotonic() + START_SECONDS_MAX
    for server in pair:
        with calling(server) as caller:
            # Servers hear of a quota by watch; one that has refuses any secret.
            while caller.call("POST", f"{place}/secrets?dryRun=All", {"metadata": {"name": "s"}}).status != 403:
                assert time.monotonic() < deadline
    statuses: list[int] = []

    def race(server: Server, start: int) -> None:
        with calling(server) as caller:
            bodies = ({"metadata": {"name": f"m{number}"}} for number in range(start, start + 10))
            statuses.extend([caller.call("POST", f"{place}/configmaps", body).status for body in bodies])

    threads = [Thread(target=race, args=(pair[turn % 2], turn * 10)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (statuses.count(201), statuses.count(403)) == (10, 50)
    assert len(one.get(f"{place}/configmaps").json()["items"]) == 10
    assert one.get(f"{place}/resourcequotas/q").json()["status"]["used"] == {"count/configmaps": "10", "secrets": "0"}
