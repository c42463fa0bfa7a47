"""Content negotiation: media types, Table and PartialObjectMetadata. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dray.api.errors import APIError, NotAcceptableError


class Media(enum.StrEnum):
    """A serialization."""

    JSON = "application/json"
    YAML = "application/yaml"
    PROTOBUF = "application/vnd.kubernetes.protobuf"


MEDIA_TYPES: Final[tuple[str, ...]] = tuple(media.value for media in Media)
_WATCH_TYPES: Final = ("application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")


@dataclass(frozen=True, slots=True)
class Representation:
    """A serialization and, for Table and PartialObjectMetadata, the transformation before it."""

    media: Media
    # "", "Table", "PartialObjectMetadata" or "PartialObjectMetadataList"
    transform: str = ""
    # The apiVersion of the transformed object.
    api_version: str = ""
    pretty: bool = False


JSON: Final = Representation(Media.JSON)


class UnavailableRepresentationError(APIError):
    """None of the accepted media types is known; the message is that of kube-apiserver's route filter."""

    code = 406
    reason = "NotAcceptable"

    def __init__(self, available: Sequence[str]) -> None:
        super().__init__("406: Not Acceptable\n\nAvailable representations: " + ", ".join(available), details={})


@lru_cache(maxsize=1024)
def negotiate(accept: str, *, listing: bool = False, protobuf: bool = True, tables: bool = True) -> Representation:
    """Choose the first acceptable representation; an empty header or `*/*` means JSON.

    `protobuf` is false for kinds without a protobuf encoding (custom resources), whose metadata alone has one all the
    same; `tables` is false for what is not stored (reviews). Tables have no protobuf encoding.
    """
    clauses = _parse_accept(accept)
    if not clauses:
        return JSON
    known = False
    for _, media_type, parameters in clauses:
        media = _media(media_type)
        if media is None:
            continue
        known = True
        representation = _representation(media, parameters)
        if representation is None or (media is Media.PROTOBUF and not (protobuf or representation.transform)):
            continue
        if representation.transform == "Table" and (media is Media.PROTOBUF or not tables):
            continue
        return representation
    if not known:
        raise UnavailableRepresentationError(MEDIA_TYPES + (_WATCH_TYPES if listing else ()))
    raise NotAcceptableError(MEDIA_TYPES)


def _parse_accept(accept: str) -> list[tuple[float, str, dict[str, str]]]:
    clauses: list[tuple[float, str, dict[str, str]]] = []
    for clause in accept.split(","):
        media_type, *parameters = (part.strip() for part in clause.split(";"))
        if not media_type:
            continue
        values = dict(_parameter(parameter) for parameter in parameters if parameter)
        clauses.append((_quality(values.pop("q", "1")), media_type, values))
    # A stable sort keeps the client's order among equals.
    clauses.sort(key=lambda item: -item[0])
    return clauses


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip().lower(), value.strip().strip('"')


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 1.0


def _media(media_type: str) -> Media | None:
    if media_type in ("*/*", "application/*"):
        return Media.JSON
    try:
        return Media(media_type)
    except ValueError:
        return None


_TRANSFORMS: Final = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})


def _representation(media: Media, parameters: dict[str, str]) -> Representation | None:
    transform = parameters.get("as", "")
    if not transform:
        return Representation(media)
    version, group = parameters.get("v", ""), parameters.get("g", "")
    if transform not in _TRANSFORMS or group != "meta.k8s.io" or version not in ("v1", "v1beta1"):
        return None
    return Representation(media, transform, f"{group}/{version}")
