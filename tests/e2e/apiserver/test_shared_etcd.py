"""Two API servers on one etcd: clients of either of them see the same cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from threading import Thread

import pytest

from tests.e2e.apiserver.calls import Caller, calling, events
from tests.servers import Server
from tests.shared_etcd import START_SECONDS_MAX, running_etcd, running_pair

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("etcd", "first", "second")]
    with running_etcd(folders[0]) as etcd, running_pair(etcd, *folders[1:]) as servers:
        yield servers


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


@pytest.mark.parametrize("megabytes", [1.9, 2.7])
def test_an_object_that_etcd_does_not_take_is_refused(one: Caller, megabytes: float) -> None:
    """By its own limit, or by that of its gRPC server; the server goes on."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"plural": "blobs", "kind": "Blob"}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]}
    assert one.call("POST", crds, {"metadata": {"name": "blobs.example.com"}, "spec": spec}).status in (201, 409)
    body = {"apiVersion": "example.com/v1", "kind": "Blob", "metadata": {"name": "a"}}
    answer = one.call("POST", "/apis/example.com/v1/blobs", {**body, "data": "x" * int(megabytes * 1_000_000)})
    assert (answer.status, answer.json()["reason"]) == (413, "RequestEntityTooLarge")
    assert one.get("/apis/example.com/v1/blobs/a").status == 404
    assert one.call("POST", MAPS, {"metadata": {"generateName": "after-"}}).status == 201
