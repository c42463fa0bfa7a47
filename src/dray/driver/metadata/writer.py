"""Writes the device metadata of prepared claims, and the CDI files that mount it into containers.

For each request of a claim there is one file on the host and one CDI file with one mount. The name of its CDI device is
added to the first device of the request in the answer to kubelet, so that every container that uses the request has it.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from dray.api import cdi
from dray.api.cdi import VERSION, CdiDevice, ContainerEdits, Mount, QualifiedName, Spec, minimum_version
from dray.api.device_metadata import (
    POD_CLAIM_NAME,
    ClaimReference,
    DeviceMetadata,
    DeviceMetadataError,
    MetadataDevice,
    MetadataRequest,
    check_versions,
    container_path,
    encode,
    main_request,
)
from dray.api.document import UID, NamespacedName
from dray.driver.claims import Claim, PreparedClaim, PreparedDevice
from dray.driver.metadata.reader import read_file
from dray.driver.prepared.cdi import vendor_of
from dray.driver.prepared.checkpoint import AnsweredDevice
from dray.runtime.files import remove_file, replace_file, sync_folder
from dray.runtime.logs import fields

_log = logging.getLogger(__name__)

FOLDER: Final = "dra-device-metadata"
FILE: Final = "metadata.json"
CDI_CLASS: Final = "metadata"
_FILE_MODE: Final = 0o644
_FOLDER_MODE: Final = 0o755


class MetadataWriter:
    """The metadata files of one driver; thread-safe."""

    def __init__(self, driver: str, folder: str, cdi_folder: str, versions: Sequence[str]) -> None:
        """`folder` is the driver's own; raises `DeviceMetadataError` unless the versions can be written."""
        check_versions(versions)
        self._driver = driver
        self._folder = Path(folder) / FOLDER
        self._cdi_folder = Path(cdi_folder)
        self._versions = tuple(versions)
        self._lock = threading.Lock()

    def add(
        self, claim: Claim, prepared: Sequence[PreparedDevice], answer: Sequence[AnsweredDevice]
    ) -> tuple[AnsweredDevice, ...]:
        """Write the files of a prepared claim and return the answer with their CDI devices.

        A request whose files cannot be written is prepared without metadata; the failure is logged.
        """
        result = list(answer)
        for request, devices in _by_request(prepared).items():
            metadata = DeviceMetadata(
                metadata=ClaimReference(
                    name=claim.key.name, namespace=claim.key.namespace, uid=claim.uid, generation=1
                ),
                pod_claim_name=(claim.object.metadata.annotations or {}).get(POD_CLAIM_NAME, ""),
                requests=self._requests(devices),
            )
            try:
                name = self._write(claim.uid, request, metadata)
            except (OSError, DeviceMetadataError, cdi.CdiError) as error:
                _log.error("device metadata not written", extra=fields(claim=str(claim.key), error=error))
                continue
            position = next(
                index for index, item in enumerate(prepared) if main_request(item.device.request) == request
            )
            first = result[position]
            result[position] = replace(first, cdi_device_ids=(*first.cdi_device_ids, name))
        return tuple(result)

    def update(self, claim: Claim | PreparedClaim, request: str, devices: Iterable[PreparedDevice]) -> None:
        """Replace the devices in the file of a request that is prepared, e.g. when an interface has its name.

        Call it before the containers start: a container that runs keeps the file it has. Raises `DeviceMetadataError`.
        """
        given = tuple(devices)
        requests = {main_request(item.device.request) for item in given}
        if requests - {main_request(request)}:
            raise DeviceMetadataError(f"claim {claim.key}: devices of other requests than {request}")
        with self._lock:
            path = self._path(claim.key, request)
            try:
                known = read_file(path)
            except DeviceMetadataError as error:
                raise DeviceMetadataError(f"claim {claim.key}: request {request} has no metadata: {error}") from error
            if known.metadata.uid != claim.uid:
                raise DeviceMetadataError(f"claim {claim.key}: request {request} is of claim {known.metadata.uid}")
            changed = msgspec.structs.replace(
                known,
                metadata=msgspec.structs.replace(known.metadata, generation=known.metadata.generation + 1),
                requests=self._requests(given),
            )
            replace_file(str(path), encode(changed, self._versions), _FILE_MODE)

    def is_intact(self, answer: Iterable[AnsweredDevice]) -> bool:
        """Whether the CDI files of the answer exist."""
        prefix = f"{vendor_of(self._driver)}/{CDI_CLASS}="
        names = (name for item in answer for name in item.cdi_device_ids if name.startswith(prefix))
        return all((self._cdi_folder / self._cdi_file(name.removeprefix(prefix))).is_file() for name in names)

    def remove(self, claim: PreparedClaim) -> None:
        """Remove the files of a claim; they need not exist. Raises OSError."""
        folder = self._claim_folder(claim.key)
        with self._lock:
            # A claim of the same name that was prepared meanwhile keeps its files.
            if folder.is_dir() and not self._belongs_to_other(folder, claim.uid):
                shutil.rmtree(folder)
                sync_folder(str(self._folder))
            prefix = self._cdi_file(f"{claim.uid}_").removesuffix(".json")
            for path in _files(self._cdi_folder):
                if path.name.startswith(prefix) and path.suffix == ".json":
                    remove_file(str(path))

    # --- Parts. ---

    def _requests(self, devices: Iterable[PreparedDevice]) -> tuple[MetadataRequest, ...]:
        by_name: dict[str, list[MetadataDevice]] = {}
        for item in devices:
            by_name.setdefault(item.device.request, []).append(
                MetadataDevice(
                    driver=self._driver,
                    pool=item.device.pool,
                    name=item.device.name,
                    attributes=dict(item.attributes),
                    network_data=item.network,
                )
            )
        return tuple(MetadataRequest(name=name, devices=tuple(items)) for name, items in by_name.items())

    def _write(self, uid: UID, request: str, metadata: DeviceMetadata) -> str:
        """Write both files and return the name of the CDI device."""
        key = NamespacedName(metadata.metadata.namespace, metadata.metadata.name)
        path = self._path(key, request)
        target = container_path(metadata, request, self._driver)
        device = CdiDevice(
            name=f"{uid}_{request}",
            container_edits=ContainerEdits(
                mounts=(Mount(host_path=str(path), container_path=target, options=("ro", "bind")),)
            ),
        )
        kind = f"{vendor_of(self._driver)}/{CDI_CLASS}"
        spec = Spec(cdi_version=VERSION, kind=kind, devices=(device,))
        spec = msgspec.structs.replace(spec, cdi_version=minimum_version(spec))
        content = encode(metadata, self._versions)
        with self._lock:
            for folder in (self._folder, path.parent.parent, path.parent):
                folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
                # Whatever the umask.
                folder.chmod(_FOLDER_MODE)
            replace_file(str(path), content, _FILE_MODE)
            os.makedirs(self._cdi_folder, exist_ok=True)
            replace_file(str(self._cdi_folder / self._cdi_file(device.name)), cdi.render(spec), _FILE_MODE)
        return str(QualifiedName(vendor_of(self._driver), CDI_CLASS, device.name))

    def _claim_folder(self, key: NamespacedName) -> Path:
        return self._folder / f"{key.namespace}_{key.name}"

    def _path(self, key: NamespacedName, request: str) -> Path:
        return self._claim_folder(key) / main_request(request) / FILE

    def _cdi_file(self, device: str) -> str:
        return f"{self._driver}_{CDI_CLASS}_{device}.json"

    def _belongs_to_other(self, folder: Path, uid: UID) -> bool:
        for path in folder.glob(f"*/{FILE}"):
            try:
                if read_file(path).metadata.uid != uid:
                    return True
            except DeviceMetadataError:
                continue
        return False


def _by_request(prepared: Iterable[PreparedDevice]) -> Mapping[str, list[PreparedDevice]]:
    found: dict[str, list[PreparedDevice]] = {}
    for item in prepared:
        found.setdefault(main_request(item.device.request), []).append(item)
    return found


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from folder.iterdir()
