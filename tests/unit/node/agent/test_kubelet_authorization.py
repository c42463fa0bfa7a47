"""Who may use the node's HTTPS server, and how long an answer of the API server counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dray.api.document import Document
from dray.api.errors import ServiceUnavailableError
from dray.node.agent.kubelet_authorization import (
    ALLOWED_SECONDS,
    DENIED_SECONDS,
    TOKEN_SECONDS,
    KubeletAuthorizer,
    subresources_of,
)
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply, text

pytestmark = pytest.mark.behaviour("EX-49")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
METRICS_SERVER = {"username": "system:serviceaccount:kube-system:metrics-server", "groups": ["system:authenticated"]}


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)


class FakeReviews:
    """Answers reviews as an API server with one valid token and one right would."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.rights = {("get", "metrics")}
        self.fails = ""

    async def create(self, resource: Any, review: Document) -> Document:
        self.asked.append(resource.plural)
        if self.fails == resource.plural:
            raise ServiceUnavailableError("no answer")
        spec = review["spec"]
        if resource.plural == "tokenreviews":
            is_valid = spec["token"] == "good"
            return {"status": {"authenticated": True, "user": METRICS_SERVER} if is_valid else {}}
        attributes = spec["resourceAttributes"]
        assert (attributes["resource"], attributes["name"]) == ("nodes", "n")
        allowed = (attributes["verb"], attributes["subresource"]) in self.rights and spec["user"]
        return {"status": {"allowed": bool(allowed)}}


class Caller:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.reviews = FakeReviews()
        authorizer = KubeletAuthorizer(self.reviews, self.clock, "n")  # type: ignore[arg-type]
        self._handler = authorizer.checked(self._answer)

    async def _answer(self, _request: Request) -> Reply:
        return text("ok")

    async def get(self, path: str, token: str = "good", method: str = "GET", **names: str) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        subject = tuple(((name, value),) for name, value in names.items())
        certificate = {"subject": subject, "notAfter": "Jan  2 00:00:00 2026 GMT"} if names else {}
        reply = await self._handler(Request(method, path, headers, certificate=certificate))
        return reply.status, reply.body.decode()


@pytest.fixture
def caller() -> Caller:
    return Caller()


@pytest.mark.parametrize(
    ("path", "subresources"),
    [
        ("/stats/summary", "stats"),
        ("/metrics/resource", "metrics"),
        ("/metrics", "metrics"),
        ("/logs/", "log"),
        ("/pods", "pods proxy"),
        ("/healthz/ping", "healthz proxy"),
        ("/configz", "configz proxy"),
        ("/statusz", "statusz proxy"),
        ("/runningpods/", "pods proxy"),
        ("/checkpoint/ns/p/c", "checkpoint"),
        ("/containerLogs/ns/p/c", "proxy"),
        ("/exec/ns/p/c", "proxy"),
        ("/podsecrets", "proxy"),
    ],
)
def test_paths_need_the_rights_of_kubelet(path: str, subresources: str) -> None:
    assert subresources_of(path) == tuple(subresources.split())


async def test_a_token_needs_the_right_of_the_path(caller: Caller) -> None:
    assert await caller.get("/metrics/resource") == (200, "ok")
    name = METRICS_SERVER["username"]
    expected = f"Forbidden (user={name}, verb=get, resource=nodes, subresource(s)=[configz proxy])\n"
    assert await caller.get("/configz") == (403, expected)
    assert (await caller.get("/metrics/resource", method="POST"))[0] == 403
    # The wider right is enough, and asked for after the narrow one.
    caller.clock.seconds += DENIED_SECONDS
    caller.reviews.rights.add(("get", "proxy"))
    assert await caller.get("/configz?x=/metrics") == (200, "ok")


@pytest.mark.parametrize("token", ["", "bad", "x" * 20_000])
async def test_no_or_a_wrong_token_is_unauthorized(caller: Caller, token: str) -> None:
    assert await caller.get("/metrics", token) == (401, "Unauthorized")


async def test_certificates_of_the_cluster(caller: Caller) -> None:
    known = [{"commonName": "kube-apiserver-kubelet-client"}, {"commonName": "x", "organizationName": "system:masters"}]
    for names in known:
        assert await caller.get("/exec/ns/p/c", "", **names) == (200, "ok")
    assert caller.reviews.asked == []
    assert await caller.get("/metrics", "", commonName="jane") == (200, "ok")
    assert (await caller.get("/exec/ns/p/c", "", commonName="jane"))[0] == 403


async def test_a_connection_does_not_outlive_its_certificate(caller: Caller) -> None:
    caller.clock.seconds = timedelta(days=1).total_seconds()
    assert await caller.get("/exec/ns/p/c", "", commonName="kube-apiserver-kubelet-client") == (401, "Unauthorized")


async def test_answers_are_kept_for_a_while(caller: Caller) -> None:
    async def asks(path: str, token: str = "good") -> list[str]:
        caller.reviews.asked.clear()
        await caller.get(path, token)
        return list(caller.reviews.asked)

    both = ["tokenreviews", "subjectaccessreviews"]
    assert await asks("/metrics") == both
    assert await asks("/metrics") == []
    assert await asks("/stats/summary") == both[1:]
    assert await asks("/metrics", "bad") == both[:1]
    assert await asks("/metrics", "bad") == []
    caller.clock.seconds = DENIED_SECONDS
    assert await asks("/stats/summary") == both[1:]
    caller.clock.seconds = TOKEN_SECONDS
    assert await asks("/metrics") == both[:1]
    caller.clock.seconds = ALLOWED_SECONDS
    assert await asks("/metrics") == both


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        ("tokenreviews", (401, "Unauthorized")),
        (
            "subjectaccessreviews",
            (
                500,
                f"Authorization error (user={METRICS_SERVER['username']}, verb=get, resource=nodes, subresource=stats)",
            ),
        ),
    ],
)
async def test_without_an_answer_nobody_is_let_in(caller: Caller, fails: str, expected: tuple[int, str]) -> None:
    caller.reviews.fails = fails
    assert await caller.get("/stats/summary") == expected
    # The failure is not kept.
    caller.reviews.fails = ""
    caller.reviews.rights.add(("get", "stats"))
    assert await caller.get("/stats/summary") == (200, "ok")
