"""Kubernetes' words for a refused request."""

from __future__ import annotations

from dray.api.document import GroupResource
from dray.api.errors import ForbiddenError
from dray.api.field_errors import quote
from dray.apiserver.request import Attributes

# The text may reach a browser.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def forbidden_message(attributes: Attributes) -> str:
    """What the user cannot do, as every client knows it."""
    who = f"User {quote(attributes.user.name)}"
    if not attributes.is_resource:
        return f"{who} cannot {attributes.verb} path {quote(attributes.path)}".translate(_ESCAPES)
    resource = attributes.resource
    if attributes.subresource:
        resource = f"{resource}/{attributes.subresource}"
    what = f"cannot {attributes.verb} resource {quote(resource)} in API group {quote(attributes.group)}"
    where = f"in the namespace {quote(attributes.namespace)}" if attributes.namespace else "at the cluster scope"
    return f"{who} {what} {where}".translate(_ESCAPES)


def forbidden_error(attributes: Attributes, reason: str = "") -> ForbiddenError:
    """The 403 for a denied request; `reason` is what the authorizers had to say."""
    message = forbidden_message(attributes)
    resource = GroupResource(attributes.group, attributes.resource) if attributes.is_resource else GroupResource("", "")
    name = attributes.name if attributes.is_resource else ""
    return ForbiddenError(resource, name, f"{message}: {reason}" if reason else message)
