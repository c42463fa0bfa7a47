"""The groups that say whether a caller is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dray.apiserver.request import ANONYMOUS, UserInfo

AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"


def with_authenticated_group(user: UserInfo) -> UserInfo:
    """The user with `system:authenticated`, unless anonymous or marked already."""
    if user.name == ANONYMOUS.name or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))
