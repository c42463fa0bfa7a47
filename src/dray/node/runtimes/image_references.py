"""References to images in registries, and the credentials for them. Pure."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

DEFAULT_REGISTRY: Final = "docker.io"
DEFAULT_TAG: Final = "latest"
# Docker Hub's names begin with docker.io, its registry has another host.
_API_HOSTS: Final = {DEFAULT_REGISTRY: "registry-1.docker.io"}
_HUB_KEYS: Final = ("index.docker.io", "docker.io")

_HOST: Final = r"(?:\[[0-9a-fA-F:]+\]|[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?)(?::[0-9]+)?"
_COMPONENT: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE: Final = re.compile(
    rf"(?P<host>{_HOST})/(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}))?"
)
_LENGTH_MAX: Final = 255


class ImageError(Exception):
    """An invalid name of an image."""


class Reference(NamedTuple):
    """An image in a registry; a digest counts more than a tag."""

    host: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """Host and path."""
        return f"{self.host}/{self.path}"

    @property
    def api_host(self) -> str:
        """The host that serves the registry's API."""
        return _API_HOSTS.get(self.host, self.host)

    @property
    def version(self) -> str:
        """What the manifest is requested by."""
        return self.digest or self.tag

    def with_digest(self, digest: str) -> str:
        """Return the name of exactly this content."""
        return f"{self.repository}@{digest}"

    def __str__(self) -> str:
        return self.with_digest(self.digest) if self.digest else f"{self.repository}:{self.tag}"


def parse_reference(text: str) -> Reference:
    """Parse the name of an image; raises `ImageError`."""
    # full_name completes the registry, and leaves a tag away where there is a digest.
    name, at, digest = text.partition("@")
    found = _REFERENCE.fullmatch(full_name(name) + at + digest)
    if not text or found is None or len(found["path"]) > _LENGTH_MAX:
        raise ImageError(f'couldn\'t parse image name "{text}": invalid reference format')
    if digest:
        return Reference(found["host"], found["path"], digest=found["digest"])
    return Reference(found["host"], found["path"], found["tag"] or DEFAULT_TAG)


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


def default_policy(image: str) -> str:
    """Return the pull policy of a container without one."""
    _, at, _ = image.partition("@")
    return "Always" if not at and full_name(image).endswith(f":{DEFAULT_TAG}") else "IfNotPresent"


# --- Credentials. ---


class Credentials(NamedTuple):
    """What a client shows to a registry; an identity token replaces a password."""

    username: str = ""
    password: str = ""
    identity_token: str = ""

    def fingerprint(self, host: str) -> str:
        """Return a hash by which equal credentials are recognized."""
        text = "\0".join((host, *self))
        return hashlib.sha256(text.encode()).hexdigest()


ANONYMOUS: Final = Credentials()


class Keyring(NamedTuple):
    """Credentials by the registry, or part of one, that they are for."""

    entries: tuple[tuple[str, Credentials], ...] = ()

    def lookup(self, reference: Reference) -> list[Credentials]:
        """Return the credentials to try in turn, the most specific first."""
        matching = [(key, found) for key, found in self.entries if _matches(key, reference)]
        matching.sort(key=lambda item: -len(item[0]))
        return list(dict.fromkeys(found for _, found in matching))


NO_CREDENTIALS: Final = Keyring()


def read_keyring(documents: Iterable[Mapping[str, Any]]) -> Keyring:
    """Return the credentials of Docker configuration files; entries that cannot be read are skipped."""
    entries: list[tuple[str, Credentials]] = []
    for document in documents:
        # The older form, of Secrets of type dockercfg, has no level `auths`.
        auths = document.get("auths", document)
        for key, entry in auths.items() if isinstance(auths, Mapping) else ():
            found = _credentials(entry) if isinstance(entry, Mapping) else None
            if found is not None:
                entries.append((_normalized(key), found))
    return Keyring(tuple(entries))


def _credentials(entry: Mapping[str, Any]) -> Credentials | None:
    username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if entry.get("auth") and not username:
        try:
            decoded = base64.b64decode(str(entry["auth"]), validate=True).decode()
        except ValueError:
            # Not base64, not ASCII or not UTF-8.
            return None
        username, _, password = decoded.partition(":")
    token = str(entry.get("identitytoken") or "")
    return Credentials(username, password, token) if username or token else None


def _normalized(key: str) -> str:
    """Return host and path of a key, without scheme and API version."""
    return re.sub(r"/v[12]/?$", "", re.sub(r"^https?://", "", key)).rstrip("/")


def _matches(key: str, reference: Reference) -> bool:
    host, _, path = key.partition("/")
    hosts = (reference.host, reference.api_host, *(_HUB_KEYS if reference.host == DEFAULT_REGISTRY else ()))
    if not any(_host_matches(host, each) for each in hosts):
        return False
    return not path or reference.path == path or reference.path.startswith(f"{path}/")


def _host_matches(pattern: str, host: str) -> bool:
    """Compare the parts between dots one by one: a star stands for a part, not for several."""
    wanted, found = pattern.split("."), host.split(".")
    return len(wanted) == len(found) and all(
        fnmatch.fnmatchcase(part, each) for part, each in zip(found, wanted, strict=True)
    )
