"""One API request, as the flow sees it: who asks, what for, with which options. No transport in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec


@dataclass(frozen=True, slots=True)
class UserInfo:
    """An authenticated caller, as authentication.k8s.io describes one."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


ANONYMOUS = UserInfo("system:anonymous", groups=("system:unauthenticated",))


class Attributes(msgspec.Struct, frozen=True):
    """What authorization decides on: a verb on a resource, or on a path.

    `verb` is Kubernetes' request verb: get list watch create update patch delete deletecollection
    (impersonate, bind, escalate in secondary checks), or the lower-case method for paths.
    """

    user: UserInfo
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    field_selector: str = ""
    label_selector: str = ""

    @property
    def is_resource(self) -> bool:
        """Whether a resource, not a path, is asked for."""
        return bool(self.resource)


AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"


def with_authenticated_group(user: UserInfo) -> UserInfo:
    """The user with `system:authenticated`, unless anonymous or marked already."""
    if user.name == ANONYMOUS.name or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))
