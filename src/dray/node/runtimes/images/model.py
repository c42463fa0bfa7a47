"""What an image is on this node, and how images are named. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_REGISTRY: Final = "docker.io"
DEFAULT_TAG: Final = "latest"


class ImageError(Exception):
    """Something that is no image, or an image that is not there."""


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image says about running it."""

    env: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = ""
    # As the image has it: a name or number, perhaps with a group after a colon.
    user: str = ""
    stop_signal: str = ""

    def argv(self, command: tuple[str, ...], args: tuple[str, ...]) -> tuple[str, ...]:
        """What to run: a Pod's command replaces the entry point, and with it the image's arguments."""
        if command:
            return (*command, *args)
        return (*self.entrypoint, *(args or self.command))


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image that is on disk."""

    id: str
    names: tuple[str, ...]
    config: ImageConfig = ImageConfig()
    size: int = 0


@dataclass(frozen=True, slots=True)
class Index:
    """Which image each name means."""

    names: Mapping[str, str] = field(default_factory=dict)


def full_name(name: str) -> str:
    """The name with registry and tag, as every reference to an image is compared."""
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
    """From the `config` part of an OCI or Docker image configuration."""
    return ImageConfig(
        env=tuple(document.get("Env") or ()),
        entrypoint=tuple(document.get("Entrypoint") or ()),
        command=tuple(document.get("Cmd") or ()),
        working_dir=document.get("WorkingDir") or "",
        user=document.get("User") or "",
        stop_signal=document.get("StopSignal") or "",
    )


def write_config(config: ImageConfig) -> dict[str, Any]:
    """The same, as kept on disk."""
    return {
        "Env": list(config.env),
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "WorkingDir": config.working_dir,
        "User": config.user,
        "StopSignal": config.stop_signal,
    }


def parse_user(text: str, passwd: str, group: str) -> tuple[int, int]:
    """The numbers of an image's user, looked up in its own files."""
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
    return [line.split(":") for line in text.splitlines() if line.count(":") >= 3]  # noqa: PLR2004 - /etc/group has four
