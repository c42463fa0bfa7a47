"""`/debug/decisions` of a scheduler that runs as its own process.

As kube-scheduler does for its pages, it lets the API server decide who may read: a bearer token is checked by a
TokenReview, the right to get the path by a SubjectAccessReview.
"""

from __future__ import annotations

from typing import Final

import orjson

from dray.api.document import Document
from dray.api.errors import APIError
from dray.client.interface import Client
from dray.client.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from dray.runtime.http.requests import Request
from dray.runtime.http.router import Reply, text
from dray.scheduler.decisions import DecisionLog

DECISIONS: Final = "/debug/decisions"


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
            user = await _authenticated(self.reviews, token.strip())
            if user is None:
                return text("401: Unauthorized", 401, (("WWW-Authenticate", "Bearer"),))
            if not await _may_read(self.reviews, user):
                name = user.get("username", "")
                return text(f'403: User "{name}" cannot get path "{DECISIONS}"', 403)
        except APIError as error:
            return text(f"503: the API server could not review the request: {error}", 503)
        body = {"decisions": self.log.documents(), "hidden": 0}
        return Reply(orjson.dumps(body), content_type="application/json")


async def _authenticated(client: Client, token: str) -> Document | None:
    """Return the user of a token; None if it is not valid."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status: Document = (await client.create(TOKEN_REVIEWS, review)).get("status") or {}
    return status.get("user") or {} if status.get("authenticated") else None


async def _may_read(client: Client, user: Document) -> bool:
    spec = {
        "user": user.get("username", ""),
        "uid": user.get("uid", ""),
        "groups": user.get("groups") or [],
        "extra": user.get("extra") or {},
        "nonResourceAttributes": {"path": DECISIONS, "verb": "get"},
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    reviewed = await client.create(SUBJECT_ACCESS_REVIEWS, review)
    return bool((reviewed.get("status") or {}).get("allowed"))
