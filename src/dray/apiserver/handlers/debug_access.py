"""Who may read the pages below `/debug` that show a part of the cluster: what the caller may list elsewhere."""

from __future__ import annotations

from dray.api.errors import MethodNotAllowedError, UnauthorizedError
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.call import Call
from dray.apiserver.request import ANONYMOUS, Attributes


def check_reader(call: Call) -> None:
    """Refuse callers without credentials, and everything but reading."""
    if call.user.name == ANONYMOUS.name:
        raise UnauthorizedError
    if call.info.method not in ("GET", "HEAD"):
        raise MethodNotAllowedError


def may_list(authorizer: Authorizer, call: Call, resource: str, *, namespace: str = "", group: str = "") -> bool:
    """Return whether the caller may list a resource of version v1."""
    wanted = Attributes(call.user, "list", group=group, version="v1", resource=resource, namespace=namespace)
    return authorizer.authorize(wanted).allowed
