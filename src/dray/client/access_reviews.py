"""Asks the API server who the owner of a bearer token is, and what a user may do."""

from __future__ import annotations

from dray.api.document import Document
from dray.client.interface import Client
from dray.client.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS


async def review_token(client: Client, token: str) -> Document | None:
    """Return the user of a token; None if it is not valid."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    status: Document = (await client.create(TOKEN_REVIEWS, review)).get("status") or {}
    return status.get("user") or {} if status.get("authenticated") else None


async def review_access(client: Client, user: Document, attributes: Document) -> bool:
    """Return whether a user may do something, given as the resource or non-resource attributes of a review."""
    spec = {
        "user": user.get("username") or "",
        "uid": user.get("uid") or "",
        "groups": user.get("groups") or [],
        "extra": user.get("extra") or {},
        **attributes,
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    reviewed = await client.create(SUBJECT_ACCESS_REVIEWS, review)
    return bool((reviewed.get("status") or {}).get("allowed"))
