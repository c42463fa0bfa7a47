"""Reads device metadata in a container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dray.api.device_metadata import (
    CLAIMS_FOLDER,
    CONTAINER_FOLDER,
    FILE_BYTES_MAX,
    FILE_SUFFIX,
    TEMPLATES_FOLDER,
    DeviceMetadata,
    DeviceMetadataError,
    decode,
    merge,
    request_folder,
)

# Set by runtimes that cannot mount files at the usual path.
FOLDER_VARIABLE: Final = "DRAY_DEVICE_METADATA"


def read_claim(claim: str, request: str, *, root: str = "") -> DeviceMetadata:
    """Return the devices of a request of a claim that the Pod names; raises `DeviceMetadataError`.

    The files of all drivers of the request are merged.
    """
    return _read_folder(Path(request_folder(_root(root), claim, "", request)))


def read_template_claim(pod_claim: str, request: str, *, root: str = "") -> DeviceMetadata:
    """Return the devices of a request of a claim from a template, by the Pod's name for it."""
    return _read_folder(Path(request_folder(_root(root), "", pod_claim, request)))


def read_all(*, root: str = "") -> tuple[DeviceMetadata, ...]:
    """Return all devices of the container, one item per claim, by the folders' names; empty without metadata."""
    base = Path(_root(root))
    claims = [folder for kind in (CLAIMS_FOLDER, TEMPLATES_FOLDER) for folder in _folders(base / kind)]
    return tuple(merge(_read_folder(request) for request in _folders(claim)) for claim in claims if _folders(claim))


def read_file(path: str | Path) -> DeviceMetadata:
    """Return the content of one file; raises `DeviceMetadataError`."""
    try:
        with Path(path).open("rb") as file:
            return decode(file.read(FILE_BYTES_MAX + 1))
    except OSError as error:
        raise DeviceMetadataError(f"{path}: {error.strerror}") from error
    except DeviceMetadataError as error:
        raise DeviceMetadataError(f"{path}: {error}") from error


def _root(root: str) -> str:
    return root or os.environ.get(FOLDER_VARIABLE) or CONTAINER_FOLDER


def _folders(folder: Path) -> list[Path]:
    return sorted(item for item in folder.iterdir() if item.is_dir()) if folder.is_dir() else []


def _read_folder(folder: Path) -> DeviceMetadata:
    files = sorted(folder.glob(f"*{FILE_SUFFIX}"))
    if not files:
        raise DeviceMetadataError(f"{folder}: no metadata files")
    return merge(read_file(path) for path in files)
