"""Handles the page's requests. The client passed to `data` decides which objects are visible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dray.api.document import Document
from dray.api.errors import BadRequestError
from dray.api.names import dns1123_label, dns1123_subdomain
from dray.client.interface import Client
from dray.client.resources import SELF_SUBJECT_REVIEWS
from dray.dashboard.assets import asset
from dray.dashboard.change_stream import stream_changes
from dray.dashboard.queries import Queries
from dray.dashboard.responses import HTML, JSON_LINES, Reply, json_reply
from dray.lib.clock import Clock

ROOT: Final = "/ui"
DATA: Final = "/ui/data/"
_KINDS: Final = ("pod", "claim")


class Dashboard:
    """Serves the page and its data; one instance per process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queries = Queries()

    def page(self, path: str, if_none_match: str = "") -> Reply | None:
        """Return a static file, which needs no credentials; None if there is none at the path."""
        if path == ROOT:
            # Relative links need the slash.
            return Reply(b"", HTML, 308, (("Location", f"{ROOT}/"),))
        if not path.startswith(f"{ROOT}/") or path.startswith(DATA):
            return None
        return asset(path.removeprefix(f"{ROOT}/"), if_none_match)

    async def data(self, path: str, query: Mapping[str, str], client: Client) -> Reply:
        """Return data read with the client's permissions; raises `APIError`."""
        match path.removeprefix(DATA):
            case "whoami":
                return json_reply(await _whoami(client))
            case "stream":
                return Reply(b"", JSON_LINES, stream=stream_changes(client, self._clock))
            case "classes":
                return json_reply(await self._queries.classes(client))
            case "explain":
                return json_reply(await self._explain(query, client))
            case _:
                return json_reply({"message": f"{path} not found"}, 404)

    async def _explain(self, query: Mapping[str, str], client: Client) -> Any:
        kind, namespace, name = (query.get(part, "") for part in ("kind", "namespace", "name"))
        if kind not in _KINDS or not namespace or not name:
            raise BadRequestError(f"kind ({' or '.join(_KINDS)}), namespace and name are required")
        # They become arguments of a command: no NUL, no leading dash, no length that it would not take.
        for problem in (*dns1123_label(namespace), *dns1123_subdomain(name)):
            raise BadRequestError(f"namespace and name of an object are required: {problem}")
        return await self._queries.explain(client, kind, namespace, name)


async def _whoami(client: Client) -> Document:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    review = await client.create(SELF_SUBJECT_REVIEWS, body)
    version = await client.get_path("/version")
    return {"user": review["status"]["userInfo"], "version": version.get("gitVersion", "")}
