"""Answers the page's requests; the client it is given has the reader's rights, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from dray.api.document import Document, GroupVersion
from dray.api.errors import APIError, BadRequestError
from dray.client.interface import Client, unstructured
from dray.dashboard.assets.files import asset
from dray.dashboard.interface import HTML, LINES, Reply
from dray.dashboard.questions.loop import Questions
from dray.dashboard.stream.loop import changes
from dray.lib.clock import Clock

ROOT: Final = "/ui"
DATA: Final = "/ui/data/"
_REVIEW: Final = unstructured(
    GroupVersion("authentication.k8s.io", "v1"), "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
_KINDS: Final = ("pod", "claim")


class Dashboard:
    """One for a whole process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._questions = Questions()

    def page(self, path: str, known_tag: str = "") -> Reply | None:
        """A file of the page, for anybody; None when the path is not one."""
        if path == ROOT:
            # Relative links need the slash.
            return Reply(b"", HTML, 308, (("Location", f"{ROOT}/"),))
        if not path.startswith(f"{ROOT}/") or path.startswith(DATA):
            return None
        return asset(path.removeprefix(f"{ROOT}/"), known_tag)

    async def data(self, path: str, query: Mapping[str, str], client: Client) -> Reply:
        """An answer for the reader that the client acts as; raises `APIError`."""
        match path.removeprefix(DATA):
            case "whoami":
                return _json(await _whoami(client))
            case "stream":
                return Reply(b"", LINES, stream=changes(client, self._clock))
            case "classes":
                return _json(await self._questions.classes(client))
            case "explain":
                return _json(await self._explain(query, client))
            case _:
                return _json({"message": "there is no such question"}, 404)

    async def _explain(self, query: Mapping[str, str], client: Client) -> Any:
        kind, namespace, name = (query.get(part, "") for part in ("kind", "namespace", "name"))
        if kind not in _KINDS or not namespace or not name or name.startswith("-") or namespace.startswith("-"):
            raise BadRequestError(f"kind ({' or '.join(_KINDS)}), namespace and name are needed")
        return await self._questions.explain(client, kind, namespace, name)


def failure(error: APIError) -> Reply:
    """An error as the page reads it."""
    return _json(error.status(), error.code)


def _json(value: Any, status: int = 200) -> Reply:
    return Reply(orjson.dumps(value), status=status)


async def _whoami(client: Client) -> Document:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    review = await client.create(_REVIEW, body)
    version = await client.get_path("/version")
    return {"user": review["status"]["userInfo"], "version": version.get("gitVersion", "")}
