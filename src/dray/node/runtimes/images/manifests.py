"""Manifests of images: media types, the choice of a platform, and what has to be fetched. Pure."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dray.node.runtimes.images.model import ImageError

OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPT: Final = ", ".join((OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST))
_INDEXES: Final = (OCI_INDEX, DOCKER_LIST)
_MANIFESTS: Final = (OCI_MANIFEST, DOCKER_MANIFEST)
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
# Manifests and configurations are small; a registry must not fill the memory.
DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
LAYERS_MAX: Final = 128
_ALGORITHMS: Final = ("sha256", "sha512")


class Descriptor(NamedTuple):
    """Content by its digest."""

    digest: str
    size: int
    media_type: str = ""


class Manifest(NamedTuple):
    """An image for one platform."""

    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def size(self) -> int:
        """The number of bytes to fetch."""
        return self.config.size + sum(layer.size for layer in self.layers)


def check_digest(data: bytes, digest: str) -> None:
    """Raise `ImageError` unless the data has the digest."""
    algorithm, _, wanted = digest.partition(":")
    if algorithm not in _ALGORITHMS:
        raise ImageError(f"unsupported digest algorithm: {digest}")
    found = hashlib.new(algorithm, data).hexdigest()
    if found != wanted:
        raise ImageError(f"unexpected digest {algorithm}:{found}, expected {digest}")


def parse_document(data: bytes) -> dict[str, Any]:
    """Decode a manifest or a configuration."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageError(f"not a JSON document: {error}") from error
    if not isinstance(document, dict):
        raise ImageError("not a JSON object")
    return document


def media_type_of(document: Mapping[str, Any], header: str) -> str:
    """Return the media type of a manifest: its own, or that of the response."""
    return str(document.get("mediaType") or header.partition(";")[0].strip())


def is_index(media_type: str) -> bool:
    """Return whether the document lists manifests of several platforms."""
    return media_type in _INDEXES


def choose(document: Mapping[str, Any], machine: str = "") -> Descriptor:
    """Return the manifest for a machine, this one by default."""
    wanted = _ARCHITECTURES.get(machine or platform.machine(), machine or platform.machine())
    for entry in document.get("manifests") or ():
        found = entry.get("platform") or {}
        variants = (None, "", "v8") if wanted == "arm64" else (None, "")
        if found.get("os") == "linux" and found.get("architecture") == wanted and found.get("variant") in variants:
            return _descriptor(entry)
    raise ImageError(f"no match for platform in manifest: linux/{wanted}")


def parse_manifest(document: Mapping[str, Any], media_type: str) -> Manifest:
    """Return the contents of an image."""
    if media_type not in _MANIFESTS:
        raise ImageError(f"unsupported manifest media type: {media_type or 'none'}")
    layers = tuple(_descriptor(layer) for layer in document.get("layers") or ())
    if len(layers) > LAYERS_MAX:
        raise ImageError(f"too many layers: {len(layers)}, at most {LAYERS_MAX}")
    for layer in layers:
        if "foreign" in layer.media_type or "encrypted" in layer.media_type:
            raise ImageError(f"unsupported layer media type: {layer.media_type}")
    return Manifest(_descriptor(document.get("config") or {}), layers)


def _descriptor(entry: Mapping[str, Any]) -> Descriptor:
    digest, size = entry.get("digest"), entry.get("size")
    if not isinstance(digest, str) or not isinstance(size, int) or size < 0:
        raise ImageError("a descriptor has no digest or size")
    algorithm, _, value = digest.partition(":")
    if algorithm not in _ALGORITHMS or not all(char in "0123456789abcdef" for char in value) or not value:
        raise ImageError(f"invalid digest: {digest[:100]}")
    return Descriptor(digest, size, str(entry.get("mediaType") or ""))


def error_text(status: int, body: bytes) -> str:
    """Return the first error of a registry's response, with its code."""
    try:
        first = json.loads(body)["errors"][0]
        return f"{str(first.get('code', '')).lower().replace('_', ' ')}: {first.get('message', '')}"
    except (ValueError, KeyError, AttributeError, IndexError, TypeError):
        return f"unexpected status {status}"
