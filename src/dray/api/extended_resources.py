"""Names of resources in Pods: which are Kubernetes' own, which are extended, and which stand for a device class."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dray.api.names import qualified_name

# A Pod may ask for devices of any class by this name, without the class saying so.
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"

_NATIVE_DOMAIN: Final = "kubernetes.io/"
# How quota names what is requested; an extended resource must still be a legal name with it.
_REQUESTS_PREFIX: Final = "requests."
_CACHE_SIZE: Final = 4096


def is_native_resource(name: str) -> bool:
    """Whether the resource is Kubernetes' own: it has no domain, or one of kubernetes.io."""
    return "/" not in name or _NATIVE_DOMAIN in name


@lru_cache(_CACHE_SIZE)
def is_extended_resource_name(name: str) -> bool:
    """Whether the name is a legal extended resource that an administrator may choose."""
    if is_native_resource(name) or name.startswith(_REQUESTS_PREFIX):
        return False
    return not qualified_name(_REQUESTS_PREFIX + name)


def implicit_extended_resource_name(device_class: str) -> str:
    """The name by which a Pod can ask for devices of any class."""
    return DEVICE_CLASS_PREFIX + device_class


def device_class_of(name: str) -> str | None:
    """The class of an implicit extended resource name, None for other names."""
    return name.removeprefix(DEVICE_CLASS_PREFIX) if name.startswith(DEVICE_CLASS_PREFIX) else None


def is_dra_extended_resource_name(name: str) -> bool:
    """Whether devices could serve the resource: a legal extended name, or an implicit one."""
    if name.startswith(DEVICE_CLASS_PREFIX):
        return not qualified_name(name)
    return is_extended_resource_name(name)
