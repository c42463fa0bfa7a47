"""Who may register: the checks of both ways, with kubelet's words. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dray.api.extended_resources import is_extended_resource_name
from dray.api.field_errors import quote

VERSION: Final = "v1beta1"


class RegistrationError(Exception):
    """A plugin that is not taken; the text is told to it."""


def check_request(version: str, resource: str) -> None:
    """Check a call of Register."""
    if version != VERSION:
        raise RegistrationError(
            f"requested API version {quote(version)} is not supported by kubelet. "
            f"Supported version is [{quote(VERSION)}]"
        )
    if not is_extended_resource_name(resource):
        raise RegistrationError(f"the ResourceName {quote(resource)} is invalid")


def check_plugin(name: str, versions: Collection[str]) -> None:
    """Check what a socket in the registration folder said of itself."""
    if VERSION not in versions:
        raise RegistrationError(
            f"manager version, {VERSION}, is not among plugin supported versions [{' '.join(versions)}]"
        )
    if not is_extended_resource_name(name):
        raise RegistrationError(f"invalid name of device plugin socket: the ResourceName {quote(name)} is invalid")
