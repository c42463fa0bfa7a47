"""Device metadata (`metadata.resource.k8s.io`, KEP-5304): the files in which containers find their devices. Pure.

A driver writes one file per request of a claim; it is mounted into every container that uses the request. A file is a
stream of JSON objects with the same data, one for each version that the driver chose, so that readers of different
versions can share it. Writers put the newest version first; readers take the first one that they know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
import orjson

from dray.api.document import Document
from dray.api.field_errors import FieldErrors, Path, invalid, required
from dray.api.types.resource_v1 import DeviceAttribute, NetworkDeviceData
from dray.api.validation import resource_fields as fields
from dray.api.validation.resource_claim_status import RESULTS_MAX, validate_network_data
from dray.api.validation.resource_device import validate_device

GROUP: Final = "metadata.resource.k8s.io"
KIND: Final = "DeviceMetadata"
# Newest first; they have the same fields.
VERSIONS: Final = ("v1beta1", "v1alpha1")
# A reader of Kubernetes 1.37 must find this one.
REQUIRED_VERSION: Final = "v1beta1"
# The claim's annotation with the name of the Pod's entry, for claims created from a template.
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"

CONTAINER_FOLDER: Final = "/var/run/kubernetes.io/dra-device-attributes"
CLAIMS_FOLDER: Final = "resourceclaims"
TEMPLATES_FOLDER: Final = "resourceclaimtemplates"
FILE_SUFFIX: Final = "-metadata.json"
# 32 devices with 32 attributes each in two versions need less than a quarter of it.
FILE_BYTES_MAX: Final = 1024 * 1024

_NOT_SPACE: Final = re.compile(r"\S")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)


class DeviceMetadataError(ValueError):
    """Metadata that cannot be read or written."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A part of the metadata; unknown fields are ignored."""


class ClaimReference(_Part, frozen=True, kw_only=True):
    """The claim; the generation counts the changes of the file."""

    name: str
    namespace: str
    uid: str
    generation: int = 0


class MetadataDevice(_Part, frozen=True, kw_only=True):
    """A device of a request; the attributes are the driver's choice and need not be those of the slice."""

    driver: str
    pool: str
    name: str
    attributes: Mapping[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    network_data: NetworkDeviceData | None = None


class MetadataRequest(_Part, frozen=True, kw_only=True):
    """A request with its devices; the name includes the chosen alternative, as in `request/alternative`."""

    name: str
    devices: tuple[MetadataDevice, ...] = ()


class DeviceMetadata(_Part, frozen=True, kw_only=True):
    """The content of a file, or of several that were merged."""

    metadata: ClaimReference
    # The Pod's entry, for a claim that was created from a template.
    pod_claim_name: str = ""
    requests: tuple[MetadataRequest, ...] = ()

    @property
    def devices(self) -> tuple[MetadataDevice, ...]:
        """The devices of all requests."""
        return tuple(device for request in self.requests for device in request.devices)


def check_versions(versions: Sequence[str]) -> None:
    """Raise `DeviceMetadataError` unless a driver may write the versions."""
    if not versions:
        raise DeviceMetadataError("metadata versions must be explicitly selected, none chosen")
    unknown = [version for version in versions if version not in VERSIONS]
    if unknown:
        raise DeviceMetadataError(f"unknown metadata versions: {', '.join(unknown)} (known: {', '.join(VERSIONS)})")
    if len(set(versions)) != len(versions):
        raise DeviceMetadataError(f"metadata versions are selected twice: {', '.join(versions)}")
    if REQUIRED_VERSION not in versions:
        raise DeviceMetadataError(f"metadata version {REQUIRED_VERSION} must be selected")


def container_path(metadata: DeviceMetadata, request: str, driver: str) -> str:
    """Return the path of a driver's file for a request in a container."""
    folder = request_folder(CONTAINER_FOLDER, metadata.metadata.name, metadata.pod_claim_name, request)
    return str(folder / f"{driver}{FILE_SUFFIX}")


def request_folder(root: str, claim: str, pod_claim_name: str, request: str) -> PurePosixPath:
    """Return the folder of a request's files; names that are none in the API raise `DeviceMetadataError`."""
    kind, name = (TEMPLATES_FOLDER, pod_claim_name) if pod_claim_name else (CLAIMS_FOLDER, claim)
    for part in (name, main_request(request)):
        if not _NAME.fullmatch(part):
            raise DeviceMetadataError(f"invalid name {part!r}")
    return PurePosixPath(root, kind, name, main_request(request))


def main_request(request: str) -> str:
    """Return the request without the chosen alternative."""
    return request.partition("/")[0]


# --- Files. ---


def encode(metadata: DeviceMetadata, versions: Sequence[str]) -> bytes:
    """Return the content of a file; raises `DeviceMetadataError` if the metadata is not valid."""
    _check(metadata)
    body: Document = orjson.loads(msgspec.json.encode(metadata))
    objects = [{"apiVersion": f"{GROUP}/{version}", "kind": KIND, **body} for version in versions]
    content = b"".join(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE) for item in objects)
    if len(content) > FILE_BYTES_MAX:
        raise DeviceMetadataError(f"the file would have {len(content)} bytes, at most {FILE_BYTES_MAX} are allowed")
    return content


def decode(content: bytes) -> DeviceMetadata:
    """Return the first object with a known version; raises `DeviceMetadataError`."""
    unknown: list[str] = []
    for item in _objects(content):
        group, _, version = str(item.get("apiVersion") or "").rpartition("/")
        if group == GROUP and version in VERSIONS and item.get("kind") == KIND:
            return _from_document(item)
        unknown.append(f"{item.get('apiVersion')}, Kind={item.get('kind')}")
    raise DeviceMetadataError(
        f"no compatible metadata version found in stream (unknown versions: {', '.join(unknown) or 'none'})"
    )


def merge(parts: Iterable[DeviceMetadata]) -> DeviceMetadata:
    """Merge the files that several drivers wrote for one claim; requests of the same name are joined."""
    found = list(parts)
    if not found:
        raise DeviceMetadataError("no metadata")
    claims = {(part.metadata.namespace, part.metadata.name, part.metadata.uid) for part in found}
    if len(claims) > 1:
        raise DeviceMetadataError("the files belong to different claims: " + ", ".join(sorted(map("/".join, claims))))
    devices: dict[str, tuple[MetadataDevice, ...]] = {}
    for request in (request for part in found for request in part.requests):
        devices[request.name] = (*devices.get(request.name, ()), *request.devices)
    return DeviceMetadata(
        metadata=max((part.metadata for part in found), key=lambda item: item.generation),
        pod_claim_name=next((part.pod_claim_name for part in found if part.pod_claim_name), ""),
        requests=tuple(MetadataRequest(name=name, devices=items) for name, items in devices.items()),
    )


def _objects(content: bytes) -> Iterator[Document]:
    if len(content) > FILE_BYTES_MAX:
        raise DeviceMetadataError(f"the file has more than {FILE_BYTES_MAX} bytes")
    decoder = json.JSONDecoder()
    try:
        text = content.decode().strip()
        position = 0
        while position < len(text):
            item, end = decoder.raw_decode(text, position)
            if not isinstance(item, dict):
                raise DeviceMetadataError(f"not a JSON object at character {position}")
            yield item
            following = _NOT_SPACE.search(text, end)
            position = len(text) if following is None else following.start()
    except (ValueError, RecursionError) as error:
        if isinstance(error, DeviceMetadataError):
            raise
        raise DeviceMetadataError(f"malformed metadata: {error}") from error


def _from_document(item: Document) -> DeviceMetadata:
    try:
        metadata = msgspec.convert(item, DeviceMetadata)
    except msgspec.ValidationError as error:
        raise DeviceMetadataError(f"malformed metadata: {error}") from error
    _check(metadata)
    return metadata


# --- Validation. ---


def _check(metadata: DeviceMetadata) -> None:
    errors: FieldErrors = []
    for name in ("name", "namespace", "uid"):
        if not getattr(metadata.metadata, name):
            errors.append(required(Path("metadata").child(name)))
    if len(metadata.devices) > RESULTS_MAX:
        errors.append(invalid(Path("requests"), len(metadata.devices), f"at most {RESULTS_MAX} devices"))
    for number, request in enumerate(metadata.requests):
        path = Path("requests").index(number)
        if not request.name:
            errors.append(required(path.child("name")))
        for index, device in enumerate(request.devices):
            errors += _device_errors(device, path.child("devices").index(index))
    if errors:
        raise DeviceMetadataError("invalid metadata: " + "; ".join(map(str, errors)))


def _device_errors(device: MetadataDevice, path: Path) -> FieldErrors:
    document: dict[str, Any] = orjson.loads(msgspec.json.encode(device))
    errors = fields.driver_name(device.driver, path, "driver") + fields.pool_name(device.pool, path, "pool")
    shown = {"name": device.name, "attributes": document.get("attributes") or {}}
    errors += validate_device(shown, None, path, per_device_nodes=False)
    return errors + validate_network_data(document.get("networkData"), path.child("networkData"))
