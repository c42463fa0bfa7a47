"""Handles the page's requests for data. The client passed to `data` decides which objects are visible."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from dray.api.document import Document
from dray.api.errors import BadRequestError, MethodNotAllowedError, UnsupportedMediaTypeError
from dray.client.interface import Client
from dray.client.resources import SELF_SUBJECT_REVIEWS
from dray.dashboard.actions import Actions, permitted_actions
from dray.dashboard.assets import DATA
from dray.dashboard.change_stream import SharedFeeds
from dray.dashboard.queries import Queries
from dray.dashboard.responses import JSON, JSON_LINES, Reply, json_reply
from dray.lib.clock import Clock
from dray.runtime.tasks import ChildTasks

ACTION: Final = "action"


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A request for data, of a user who is authenticated."""

    path: str
    query: Mapping[str, str]
    method: str = "GET"
    content_type: str = ""
    body: bytes = b""


class Dashboard:
    """Serves the data of the page; one instance per process."""

    def __init__(self, clock: Clock) -> None:
        self._feeds = SharedFeeds(clock)
        self._queries = Queries()

    async def prepare(self, client: Client, tasks: ChildTasks) -> None:
        """Start reading the cluster before the page is opened."""
        await self._feeds.prepare(client, tasks)

    async def data(self, request: DataRequest, client: Client, watcher: Client, tasks: ChildTasks) -> Reply:
        """Return data read with the permissions of the user's client, or change something; raises `APIError`.

        Streams share the watches of the process, which run in its tasks with the client `watcher`; what a user gets of
        them is decided by the user's client.
        """
        path, query = request.path.removeprefix(DATA), request.query
        if path == ACTION:
            return json_reply(await Actions(client).perform(_action_body(request)))
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowedError
        if path == "stream":
            return Reply(b"", JSON_LINES, stream=self._feeds.stream(client, watcher, tasks))
        answers: Mapping[str, Callable[[], Awaitable[Any]]] = {
            "whoami": lambda: _whoami(client),
            "object": lambda: self._queries.object(client, query),
            "explain": lambda: self._queries.explain(client, query),
            "simulate": lambda: self._queries.simulate(client, query),
            "doctor": lambda: self._queries.doctor(client),
            "fragmentation": lambda: self._queries.fragmentation(client),
            "decisions": lambda: self._queries.decisions(client),
            "permissions": lambda: permitted_actions(client, query.get("namespace", "")),
        }
        if path not in answers:
            return json_reply({"message": f"{request.path} not found"}, 404)
        return json_reply(await answers[path]())


def _action_body(request: DataRequest) -> Document:
    """Return the body of an action. Pages of other origins cannot send JSON without asking, and are never allowed."""
    if request.method != "POST":
        raise MethodNotAllowedError
    if request.content_type.partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMediaTypeError([JSON])
    try:
        body = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError("the body must be an object")
    return body


async def _whoami(client: Client) -> Document:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    review = await client.create(SELF_SUBJECT_REVIEWS, body)
    version = await client.get_path("/version")
    return {"user": review["status"]["userInfo"], "version": version.get("gitVersion", "")}
