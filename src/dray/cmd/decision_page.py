"""`/debug/decisions` of a scheduler that runs as its own process.

As kube-scheduler does for its pages, it lets the API server decide who may read: a bearer token is checked by a
TokenReview, the right to get the path by a SubjectAccessReview.
"""

from __future__ import annotations

from typing import Final

import orjson

from dray.api.errors import APIError
from dray.client.access_reviews import review_access, review_token
from dray.client.interface import Client
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply, text
from dray.scheduler.decisions import DecisionLog

DECISIONS: Final = "/debug/decisions"
_READING: Final = {"nonResourceAttributes": {"path": DECISIONS, "verb": "get"}}


class DecisionPage:
    """Serves the record of a scheduler to those who may get the path."""

    def __init__(self, log: DecisionLog) -> None:
        self.log = log
        # None until the scheduler has found its API server and, with leader election, leads.
        self.reviews: Client | None = None

    async def serve(self, request: Request) -> Reply:
        """Return all decisions, the newest first."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return text("401: Unauthorized: a bearer token is needed", 401, (("WWW-Authenticate", "Bearer"),))
        if self.reviews is None:
            return text("503: this scheduler does not lead, or has not reached its API server", 503)
        try:
            user = await review_token(self.reviews, token.strip())
            if user is None:
                return text("401: Unauthorized", 401, (("WWW-Authenticate", "Bearer"),))
            if not await review_access(self.reviews, user, _READING):
                name = user.get("username", "")
                return text(f'403: User "{name}" cannot get path "{DECISIONS}"', 403)
        except APIError as error:
            return text(f"503: the API server could not review the request: {error}", 503)
        body = {"decisions": self.log.documents(), "hidden": 0}
        return Reply(orjson.dumps(body), content_type="application/json")
