"""Impersonation by the `Impersonate-*` headers, each of which needs its own permission."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from dray.api.errors import BadRequestError
from dray.apiserver.authentication.service_accounts import split_user_name, user_groups
from dray.apiserver.authorization.authorizer import forbidden_error
from dray.apiserver.authorization.rbac import Decision
from dray.apiserver.request import ANONYMOUS, UNAUTHENTICATED, Attributes, UserInfo, with_authenticated_group

USER_HEADER: Final = "impersonate-user"
GROUP_HEADER: Final = "impersonate-group"
UID_HEADER: Final = "impersonate-uid"
EXTRA_PREFIX: Final = "impersonate-extra-"
_GROUP: Final = "authentication.k8s.io"

Authorize: TypeAlias = Callable[[Attributes], Decision]


@dataclass(frozen=True, slots=True)
class _Impersonation:
    user: str
    uid: str
    groups: tuple[str, ...]
    extra: Mapping[str, tuple[str, ...]]


def is_impersonating(header_names: Iterable[str]) -> bool:
    """Report whether there is any impersonation header; cheap, since it runs for every request."""
    return any(name[:12].lower() == "impersonate-" for name in header_names)


def impersonate(headers: Sequence[tuple[str, str]], user: UserInfo, authorize: Authorize) -> UserInfo:
    """Return the impersonated user; raises `ForbiddenError` without permission for all headers."""
    wanted = _parse_headers(headers)
    if not wanted.user:
        if wanted.uid or wanted.groups or wanted.extra:
            raise BadRequestError("requested groups, uid or extra without impersonating a user")
        return user
    for attributes in _checks(wanted, user):
        decision = authorize(attributes)
        if not decision.allowed:
            raise forbidden_error(attributes, decision.reason)
    return _impersonated_user(wanted)


def _parse_headers(headers: Sequence[tuple[str, str]]) -> _Impersonation:
    name, uid, groups, extra = "", "", list[str](), dict[str, list[str]]()
    for key, value in headers:
        lowered = key.lower()
        if lowered == USER_HEADER:
            name = value
        elif lowered == UID_HEADER:
            uid = value
        elif lowered == GROUP_HEADER:
            groups.append(value)
        elif lowered.startswith(EXTRA_PREFIX):
            extra.setdefault(unquote(lowered[len(EXTRA_PREFIX) :]), []).append(value)
    return _Impersonation(name, uid, tuple(groups), {key: tuple(values) for key, values in extra.items()})


def _checks(wanted: _Impersonation, user: UserInfo) -> list[Attributes]:
    account = split_user_name(wanted.user)
    if account is not None:
        namespace, name = account
        subject = Attributes(
            user, "impersonate", version="v1", resource="serviceaccounts", namespace=namespace, name=name
        )
    else:
        subject = Attributes(user, "impersonate", version="v1", resource="users", name=wanted.user)
    checks = [subject]
    checks += [Attributes(user, "impersonate", version="v1", resource="groups", name=group) for group in wanted.groups]
    checks += [
        Attributes(user, "impersonate", group=_GROUP, version="v1", resource="userextras", subresource=key, name=value)
        for key, values in wanted.extra.items()
        for value in values
    ]
    if wanted.uid:
        checks.append(Attributes(user, "impersonate", group=_GROUP, version="v1", resource="uids", name=wanted.uid))
    return checks


def _impersonated_user(wanted: _Impersonation) -> UserInfo:
    groups = wanted.groups
    account = split_user_name(wanted.user)
    if account is not None and not groups:
        groups = user_groups(account[0])
    if wanted.user == ANONYMOUS.name and UNAUTHENTICATED not in groups:
        groups = (*groups, UNAUTHENTICATED)
    return with_authenticated_group(UserInfo(wanted.user, wanted.uid, groups, wanted.extra))
