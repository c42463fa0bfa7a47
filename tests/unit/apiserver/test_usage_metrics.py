"""NodeMetrics and PodMetrics from what the agents of nodes answer."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from dray.api.document import Document
from dray.api.errors import ServiceUnavailableError
from dray.apiserver.node_stats import KEPT_SECONDS, NodeStats
from dray.apiserver.usage_metrics import read_summary, with_metadata
from dray.lib.clock import VirtualClock

TIME = "2026-01-01T00:00:10Z"


def stats(cpu: int | None, memory: int) -> Document:
    rate = {} if cpu is None else {"usageNanoCores": cpu}
    return {"cpu": {"time": TIME, **rate}, "memory": {"workingSetBytes": memory}}


def pod(uid: str, *rates: int | None) -> Document:
    containers = [{"name": f"c{number}", **stats(rate, 2048)} for number, rate in enumerate(rates)]
    return {"podRef": {"uid": uid}, "containers": containers}


@pytest.mark.behaviour("EX-47")
def test_what_is_younger_than_a_window_is_left_out() -> None:
    answer = read_summary({"node": stats(5, 4096), "pods": [pod("old", 7, 0), pod("new", 7, None), pod("empty")]})
    assert answer.node is not None
    assert answer.node.content == {"timestamp": TIME, "window": "15s", "usage": {"cpu": "5n", "memory": "4Ki"}}
    assert answer.pods.keys() == {"old"}
    assert answer.pods["old"].content["containers"] == [
        {"name": "c0", "usage": {"cpu": "7n", "memory": "2Ki"}},
        {"name": "c1", "usage": {"cpu": "0", "memory": "2Ki"}},
    ]
    assert read_summary({"node": stats(None, 1)}).node is None


@pytest.mark.behaviour("EX-47")
def test_metadata_is_that_of_the_node_or_pod() -> None:
    node = read_summary({"node": stats(5, 4096), "window": "1s"}).node
    assert node is not None
    source = {"metadata": {"name": "n", "labels": {"a": "b"}, "uid": "u", "annotations": {"x": "y"}}}
    found = with_metadata(node, source, TIME)
    assert found["metadata"] == {"name": "n", "creationTimestamp": TIME, "labels": {"a": "b"}}
    assert found["window"] == "1s"


class Response:
    def __init__(self, body: bytes, status: int) -> None:
        self._body = body
        self.status = status

    async def read(self, _bytes_max: int) -> bytes:
        return self._body

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Nodes:
    """Implements `NodeProxy` and its client; counts requests."""

    def __init__(self, answers: dict[str, tuple[bytes, int]]) -> None:
        self._answers = answers
        self.asked: list[str] = []
        self.timeouts: set[float] = set()

    def node_client(self, node: Document) -> Any:
        name = node["metadata"]["name"]
        self.asked.append(name)
        if name not in self._answers:
            raise ServiceUnavailableError(f"node {name} does not say where it can be asked")
        nodes = self

        class Client:
            async def send(self, _method: str, _target: str, *, timeout_seconds: float) -> Response:
                nodes.timeouts.add(timeout_seconds)
                return Response(*nodes._answers[name])

        return Client()


@pytest.mark.behaviour("EX-47")
async def test_answers_are_kept_for_a_moment_and_nodes_without_one_are_left_out() -> None:
    good = orjson.dumps({"node": stats(5, 4096)})
    texts = {"a": (good, 200), "b": (good, 503), "c": (b"{", 200), "d": (b"[]", 200), "e": (b'{"node": 1}', 200)}
    nodes = Nodes(texts)
    clock = VirtualClock(lambda: asyncio.get_running_loop().create_future())
    found = NodeStats(nodes, clock)
    sources: list[Document] = [{"metadata": {"name": name}} for name in "abcdef"]
    assert (await found.answers(sources)).keys() == {"a"}
    assert nodes.timeouts == {2.0}
    assert (await found.answers(sources)).keys() == {"a"}
    assert sorted(nodes.asked) == list("abcdef")
    clock.advance(KEPT_SECONDS)
    assert (await found.answers(sources[:1])).keys() == {"a"}
    assert len(nodes.asked) == 7
    assert await NodeStats(None, clock).answers(sources) == {}
