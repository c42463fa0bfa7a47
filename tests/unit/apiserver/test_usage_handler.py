"""Who sees the usage of which namespaces and classes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from dray.api.document import Document
from dray.api.errors import BadRequestError, MethodNotAllowedError, UnauthorizedError
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.authorization.rbac import Decision
from dray.apiserver.call import Call
from dray.apiserver.handlers.usage import UsageHandler
from dray.apiserver.request import ANONYMOUS, Attributes, UserInfo
from dray.apiserver.routes import RequestInfo

POINT = {"time": 1.0, "seconds": 1.0, "classes": {"gpu": [1, 1, 0, 1, 1]}, "namespaces": {"a": {}, "b": {}}}


class Source:
    """One point; keeps which time was asked for."""

    seconds = 0.0

    async def documents(self, seconds: float) -> Sequence[Document]:
        self.seconds = seconds
        return [POINT]


class Rights:
    """Allows to list these."""

    def __init__(self, *allowed: tuple[str, str]) -> None:
        self.allowed = allowed

    def authorize(self, attributes: Attributes) -> Decision:
        return Decision(allowed=(attributes.resource, attributes.namespace) in self.allowed, reason="")


def serve(*allowed: tuple[str, str], user: UserInfo | None = None, method: str = "GET", **query: str) -> Document:
    source = Source()
    handler = UsageHandler(cast("Authorizer", Rights(*allowed)), source)
    info = RequestInfo(path="/debug/usage", verb=method.lower(), method=method)
    answer = asyncio.run(handler.serve(Call(info, query, user or UserInfo("alice"))))
    return {**answer.document, "asked": source.seconds}


def test_namespaces_and_classes_are_those_that_may_be_listed() -> None:
    found = serve(("pods", "a"))
    assert found["points"] == [{**POINT, "classes": {}, "namespaces": {"a": {}}}]
    assert (found["hiddenNamespaces"], found["hiddenClasses"]) == (1, True)
    found = serve(("pods", "a"), ("pods", "b"), ("resourceslices", ""))
    assert found["points"] == [POINT]
    assert (found["hiddenNamespaces"], found["hiddenClasses"]) == (0, False)


def test_a_time() -> None:
    assert serve(seconds="90")["asked"] == 90.0
    assert serve()["asked"] == float("inf")


@pytest.mark.parametrize("text", ["x", "0", "-1", "nan"])
def test_a_bad_time_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="is no positive number"):
        serve(seconds=text)


def test_reads_of_known_users_only() -> None:
    with pytest.raises(UnauthorizedError):
        serve(user=ANONYMOUS)
    with pytest.raises(MethodNotAllowedError):
        serve(method="POST")
