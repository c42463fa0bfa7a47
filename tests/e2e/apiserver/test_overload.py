"""More than the server can take: one user's flood, too many watches, readers that do not read."""

from __future__ import annotations

import http.client
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.apiserver.calls import Caller, caller, calling, events
from tests.servers import Server, running_server

MAPS = "/api/v1/namespaces/default/configmaps"
# A read at a revision that has not happened holds its seat until the server gives up on it.
SLOW = f"{MAPS}?resourceVersion=999999999&resourceVersionMatch=NotOlderThan"
SEATS, QUEUE, FLOOD = 2, 128, 160


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Small, and with a user `alice` who may read."""
    with running_server(tmp_path, f"--max-requests-inflight={SEATS}", "--max-watches=3", command="apiserver") as found:
        with calling(found) as admin:
            binding = {
                "metadata": {"name": "readers"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [
                    {"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"},
                    {"kind": "ServiceAccount", "name": "robot", "namespace": "default"},
                ],
            }
            path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
            assert admin.call("POST", path, binding).status == 201
        yield found


def robot_token(admin: Caller) -> str:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    admin.call("POST", accounts, {"metadata": {"name": "robot"}})
    answer = admin.call("POST", f"{accounts}/robot/token", {"spec": {}})
    assert answer.status == 201, answer.body
    return str(answer.json()["status"]["token"])


def test_a_flood_of_one_user_does_not_drown_the_others(server: Server) -> None:
    alice = caller(server, "alice-token")
    with ExitStack() as stack, calling(server) as admin:
        token = robot_token(admin)
        flood: list[http.client.HTTPSConnection] = []
        for _ in range(FLOOD):
            connection = alice.connect()
            stack.callback(connection.close)
            connection.request("GET", SLOW, headers=alice.headers)
            flood.append(connection)
        refused = flood[-1].getresponse()
        assert refused.status == 429
        assert int(refused.getheader("Retry-After") or 0) >= 1
        assert b"Too many requests" in refused.read()
        # Alice's requests alone would hold the seats for minutes; the others have turns of their own.
        started = time.monotonic()
        with calling(server, token) as robot:
            assert robot.get(MAPS).status == 200
        assert time.monotonic() - started < 15
        # Administrators and probes do not queue at all.
        started = time.monotonic()
        assert admin.get(MAPS).status == 200
        with calling(server, "anonymous") as anonymous:
            assert anonymous.get("/readyz").status == 200
        assert time.monotonic() - started < 2
        statuses = Counter(connection.getresponse().status for connection in flood[SEATS + QUEUE + 10 : -1])
        assert set(statuses) == {429}
    # The flood has left: its places are free again.
    with calling(server, "alice-token") as again:
        deadline = time.monotonic() + 20
        while again.get(MAPS).status != 200:
            assert time.monotonic() < deadline


def test_watches_are_counted_in_and_out(server: Server) -> None:
    admin = caller(server)
    path = f"{MAPS}?watch=true"
    with ExitStack() as stack:
        for _ in range(3):
            answer = stack.enter_context(admin.stream(path))
            assert answer.status == 200
        with admin.stream(path) as refused:
            assert refused.status == 429
            assert int(refused.getheader("Retry-After") or 0) >= 1
    # The connections are closed: the server notices and gives the places back.
    deadline = time.monotonic() + 20
    status = 429
    while status == 429 and time.monotonic() < deadline:
        with admin.stream(path) as answer:
            status = answer.status
    assert status == 200


def resident_bytes(server: Server) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def test_a_reader_that_does_not_read_costs_little(server: Server) -> None:
    """A watch that is never read, and 30 MB written past it: the server holds pieces, not copies of everything."""
    with calling(server) as admin:
        assert admin.call("POST", MAPS, {"metadata": {"name": "large"}}).status == 201
        version = admin.get(MAPS).json()["metadata"]["resourceVersion"]
        with ExitStack() as stack:
            sleepers = [
                stack.enter_context(admin.stream(f"{MAPS}?watch=true&resourceVersion={version}")) for _ in range(2)
            ]
            text = "x" * 500_000
            write_many(admin, text, 20)
            before = resident_bytes(server)
            write_many(admin, text, 40)
            # The store's own history keeps what it must for other watches; each sleeping reader adds a piece or two.
            assert resident_bytes(server) - before < 40 * len(text) * 2
            # They are not lost: a client that reads on gets everything, in order.
            seen = [found["data"]["n"] for _, found in take(events(sleepers[0]), 60)]
            assert seen == [str(number) for number in [*range(20), *range(40)]]


def take(
    found: Iterator[tuple[str, dict[str, dict[str, str]]]], count: int
) -> list[tuple[str, dict[str, dict[str, str]]]]:
    return [next(found) for _ in range(count)]


def write_many(admin: Caller, text: str, count: int) -> None:
    for number in range(count):
        body = {"metadata": {"name": "large"}, "data": {"n": str(number), "text": text}}
        assert admin.call("PUT", f"{MAPS}/large", body).status == 200
