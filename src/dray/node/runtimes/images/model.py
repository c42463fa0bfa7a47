"""Images and their names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

DEFAULT_REGISTRY: Final = "docker.io"
DEFAULT_TAG: Final = "latest"
# /etc/group has four fields.
_COLONS_LEAST: Final = 3


class ImageError(Exception):
    """An invalid or missing image."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The run configuration of an image."""

    env: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""
    # A name or number, optionally followed by a colon and a group.
    user: str = ""
    stop_signal: str = ""

    def argv(self, command: tuple[str, ...], args: tuple[str, ...]) -> tuple[str, ...]:
        """Return the arguments; a Pod's command replaces the entry point and the image's arguments."""
        if command:
            return (*command, *args)
        return (*self.entrypoint, *(args or self.command))


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A stored image."""

    id: str
    names: tuple[str, ...]
    config: ImageConfig = ImageConfig()
    size: int = 0
    # Fingerprints of the credentials that it was pulled with; empty for an image that every Pod may use.
    pulled_with: tuple[str, ...] = ()
    # Seconds since the epoch.
    last_used: float = 0.0
    # The chain IDs of its shared layers, the lowest first; empty for an image with a folder of its own.
    layers: tuple[str, ...] = ()

    @property
    def is_imported(self) -> bool:
        """Whether it comes from a file and not from a registry."""
        return not any("@" in name for name in self.names)

    @property
    def reference(self) -> str:
        """The name by digest, as in a container's status; the ID if it was imported."""
        return next((name for name in self.names if "@" in name), self.id)


def full_name(name: str) -> str:
    """Return the name with registry and tag."""
    rest, at, digest = name.partition("@")
    first, slash, _ = rest.partition("/")
    is_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    if not is_registry:
        rest = f"{DEFAULT_REGISTRY}/{rest}" if slash else f"{DEFAULT_REGISTRY}/library/{rest}"
    if at:
        return f"{rest}@{digest}"
    last = rest.rpartition("/")[2]
    return rest if ":" in last else f"{rest}:{DEFAULT_TAG}"


def read_config(document: Mapping[str, Any]) -> ImageConfig:
    """Parse the `config` part of an OCI or Docker image configuration."""
    return ImageConfig(
        env=tuple(document.get("Env") or ()),
        entrypoint=tuple(document.get("Entrypoint") or ()),
        command=tuple(document.get("Cmd") or ()),
        working_dir=document.get("WorkingDir") or "",
        user=document.get("User") or "",
        stop_signal=document.get("StopSignal") or "",
    )


def write_config(config: ImageConfig) -> dict[str, Any]:
    """Return the configuration as it is stored."""
    return {
        "Env": list(config.env),
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "WorkingDir": config.working_dir,
        "User": config.user,
        "StopSignal": config.stop_signal,
    }


def parse_user(text: str, passwd: str, group: str) -> tuple[int, int]:
    """Return the UID and GID of an image's user, from the image's passwd and group files."""
    user, _, group_text = text.partition(":")
    uid, gid = 0, 0
    if user.isdigit():
        uid = int(user)
        gid = next((int(row[3]) for row in _rows(passwd) if row[2] == user), 0)
    elif user:
        row = next((row for row in _rows(passwd) if row[0] == user), None)
        if row is None:
            raise ImageError(f"no user {user!r} in the image")
        uid, gid = int(row[2]), int(row[3])
    if group_text.isdigit():
        gid = int(group_text)
    elif group_text:
        found = next((row for row in _rows(group) if row[0] == group_text), None)
        if found is None:
            raise ImageError(f"no group {group_text!r} in the image")
        gid = int(found[2])
    return uid, gid


def _rows(text: str) -> list[list[str]]:
    return [line.split(":") for line in text.splitlines() if line.count(":") >= _COLONS_LEAST]
