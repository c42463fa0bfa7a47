"""Images of a CRI runtime, which pulls and keeps them; the agent decides by the pull policy, and what goes when."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from dray.lib.clock import Clock
from dray.node.runtimes.image_references import (
    ANONYMOUS,
    NO_CREDENTIALS,
    Credentials,
    ImageError,
    Keyring,
    Reference,
    parse_reference,
    read_keyring,
)
from dray.node.runtimes.runtime import Image, ImageFailure, ImageRequest, NodeImage, RuntimeFailure
from dray.node.untrusted_files import write_private
from dray.rpc.pb.cri.v1 import api_pb2 as pb
from dray.runtime.logs import fields
from dray.runtime.tasks import KeyedLocks

_log = logging.getLogger(__name__)

INVALID_NAME: Final = "InvalidImageName"
NEVER_PULL: Final = "ErrImageNeverPull"
PULL_FAILED: Final = "ErrImagePull"
# The errors of runtimes that have a reason of their own, with kubelet's words.
_REASONS: Final = {
    "RegistryUnavailable": "the registry is unavailable",
    "SignatureValidationFailed": "the signature validation failed",
}
CALL_SECONDS_MAX: Final = 120.0
PULL_SECONDS_MAX: Final = 1800.0
# kubelet's defaults.
COLLECT_SECONDS: Final = 300.0
USED_PERCENT_HIGH: Final = 85
USED_PERCENT_LOW: Final = 80
AGE_SECONDS_LEAST: Final = 120.0


@dataclass(frozen=True, slots=True)
class KnownImage:
    """An image of the runtime, and when it was last used or first seen, by the monotonic clock."""

    id: str
    names: tuple[str, ...]
    size: int
    last_used: float
    is_pinned: bool = False


def bytes_to_free(total: int, free: int) -> int:
    """Return how many bytes must go for the disk to be below the low threshold; 0 below the high one."""
    used = total - free
    return used - total * USED_PERCENT_LOW // 100 if used * 100 >= total * USED_PERCENT_HIGH and total else 0


def removable(images: Iterable[KnownImage], in_use: Collection[str], now: float) -> list[KnownImage]:
    """Return the images that may be removed, those longest unused first; `in_use` has names and IDs."""
    unused = [
        image
        for image in images
        if not image.is_pinned
        and not {image.id, *image.names} & set(in_use)
        and now - image.last_used >= AGE_SECONDS_LEAST
    ]
    return sorted(unused, key=lambda item: (item.last_used, item.id))


def format_duration(seconds: float) -> str:
    """Return a duration as kubelet prints it, rounded to milliseconds."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"


class PullRecords:
    """With which credentials images were pulled, in a file; an image that is not in it may be used by every Pod."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._saving = asyncio.Lock()
        self._fingerprints: dict[str, list[str]] = _read(file)

    def may_use(self, image_id: str, shown: Iterable[str]) -> bool:
        """Return whether a Pod that shows credentials with these fingerprints may use an image that is present."""
        known = self._fingerprints.get(image_id)
        return not known or not set(known).isdisjoint(shown)

    async def pulled(self, image_id: str, fingerprint: str) -> None:
        """Record a pull; an empty fingerprint means that it was without credentials."""
        known = self._fingerprints.get(image_id, [])
        if fingerprint in known or not (fingerprint or known):
            return
        if fingerprint:
            self._fingerprints[image_id] = [*known, fingerprint]
        else:
            del self._fingerprints[image_id]
        await self._save()

    async def keep_only(self, image_ids: Collection[str]) -> None:
        """Forget images that are gone."""
        gone = self._fingerprints.keys() - set(image_ids)
        for image_id in gone:
            del self._fingerprints[image_id]
        if gone:
            await self._save()

    async def _save(self) -> None:
        async with self._saving:
            # A save that waited writes what is true now.
            await asyncio.to_thread(write_private, self._file, json.dumps(self._fingerprints).encode())


def _read(file: Path) -> dict[str, list[str]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        # Going on would show images to Pods that may not have them.
        raise RuntimeFailure(
            f"{file} cannot be read ({error}); remove it and the images of private registries"
        ) from error
    return {str(key): [str(item) for item in value] for key, value in dict(found).items()}


class CriImages:
    """The images of one node; containers that need the same image share one pull, and few are pulled at a time."""

    def __init__(
        self,
        service: Any,
        clock: Clock,
        records: PullRecords,
        *,
        keyring: Keyring = NO_CREDENTIALS,
        pulls_max: int = 1,
        disk: Callable[[str], tuple[int, int]] | None = None,
    ) -> None:
        self._service = service
        self._clock = clock
        self._records = records
        # Credentials of the node, after those of the Pod.
        self._keyring = keyring
        # Total and free bytes of the file system at a path.
        self._disk = disk or _disk
        self._locks = KeyedLocks()
        self._slots = asyncio.Semaphore(pulls_max)
        # By image ID.
        self._last_used: dict[str, float] = {}

    async def status(self, image: str) -> pb.Image:
        """Return what the runtime knows about an image; without an ID if it is not present."""
        request = pb.ImageStatusRequest(image=pb.ImageSpec(image=image))
        answer: pb.ImageStatusResponse = await self._call(self._service.ImageStatus, request)
        return answer.image

    async def all(self) -> Sequence[NodeImage]:
        """Return the images of the runtime."""
        return [NodeImage(_names(image), image.size) for image in await self._list()]

    async def _list(self) -> list[pb.Image]:
        return list((await self._call(self._service.ListImages, pb.ListImagesRequest())).images)

    # --- Pulling. ---

    async def ensure(self, request: ImageRequest) -> Image:
        """Return the image that a container needs, pulled if the policy says so; raises `ImageFailure`."""
        try:
            reference = parse_reference(request.image)
        except ImageError as error:
            text = f'Failed to apply default image tag "{request.image}": {error}'
            raise ImageFailure(INVALID_NAME, text) from error
        keyring = read_keyring(request.credentials)
        credentials = [*keyring.lookup(reference), *self._keyring.lookup(reference)]
        found = await self.status(request.image)
        shown = [item.fingerprint(reference.host) for item in credentials]
        if found.id and request.policy != "Always" and self._records.may_use(found.id, shown):
            text = f'Container image "{request.image}" already present on machine and can be accessed by the pod'
            request.report("Pulled", text)
            self._last_used[found.id] = self._clock.monotonic()
            return Image(request.image, found.id)
        if request.policy == "Never":
            text = f'Container image "{request.image}" is not present with pull policy of Never'
            raise ImageFailure(NEVER_PULL, text)
        request.report("Pulling", f'Pulling image "{request.image}"')
        return await self._pull(request, reference, list(dict.fromkeys(credentials)) or [ANONYMOUS])

    async def _pull(self, request: ImageRequest, reference: Reference, credentials: Sequence[Credentials]) -> Image:
        begun = self._clock.monotonic()
        async with self._locks.held((str(reference),)), self._slots:
            started = self._clock.monotonic()
            pulled, used = await self._pull_with(request.image, credentials)
            found = await self.status(request.image)
        image_id = found.id or pulled
        now = self._last_used[image_id] = self._clock.monotonic()
        await self._records.pulled(image_id, used.fingerprint(reference.host) if used != ANONYMOUS else "")
        request.report(
            "Pulled",
            f'Successfully pulled image "{request.image}" in {format_duration(now - started)} '
            f"({format_duration(now - begun)} including waiting). Image size: {found.size} bytes.",
        )
        return Image(request.image, image_id)

    async def _pull_with(self, image: str, credentials: Sequence[Credentials]) -> tuple[str, Credentials]:
        """Pull with the first credentials that work; return the runtime's reference, and the credentials."""
        failure = ""
        for item in credentials:
            auth = pb.AuthConfig(username=item.username, password=item.password, identity_token=item.identity_token)
            pull = pb.PullImageRequest(image=pb.ImageSpec(image=image), auth=None if item == ANONYMOUS else auth)
            try:
                answer = await self._service.PullImage(pull, timeout=PULL_SECONDS_MAX)
            except grpc.aio.AioRpcError as error:
                failure = error.details() or str(error.code())
            else:
                return str(answer.image_ref), item
        for reason, words in _REASONS.items():
            if failure.startswith(reason):
                text = f"image pull failed for {image} because {words}{failure.removeprefix(reason)}"
                raise ImageFailure(reason, text)
        raise ImageFailure(PULL_FAILED, f'Failed to pull image "{image}": {failure}')

    # --- Garbage collection. ---

    async def collect_forever(
        self, in_use: Callable[[], Awaitable[Collection[str]]], warn: Callable[[str, str], None]
    ) -> None:
        """Collect until cancelled; `in_use` returns names and IDs of the images of all containers."""
        while True:
            try:
                await self.collect(await in_use(), warn)
            except (RuntimeFailure, OSError) as error:
                _log.warning("images cannot be collected", extra=fields(error=str(error)))
                warn("ImageGCFailed", str(error))
            await self._clock.sleep(COLLECT_SECONDS)

    async def collect(self, in_use: Collection[str], warn: Callable[[str, str], None]) -> None:
        """Remove unused images if too little of the runtime's disk is free."""
        images = self._known(await self._list(), in_use)
        await self._records.keep_only([image.id for image in images])
        answer = await self._call(self._service.ImageFsInfo, pb.ImageFsInfoRequest())
        places = [item.fs_id.mountpoint for item in answer.image_filesystems if item.fs_id.mountpoint]
        wanted = bytes_to_free(*await asyncio.to_thread(self._disk, places[0])) if places else 0
        freed = 0
        for image in removable(images, in_use, self._clock.monotonic()):
            if freed >= wanted:
                break
            spec = pb.ImageSpec(image=image.id)
            await self._call(self._service.RemoveImage, pb.RemoveImageRequest(image=spec))
            # Layers that other images have as well stay, so that it may have been less.
            freed += image.size
        if freed < wanted:
            text = (
                "Failed to garbage collect required amount of images. Attempted to free "
                f"{wanted} bytes, but only found {freed} bytes eligible to free."
            )
            warn("FreeDiskSpaceFailed", text)

    def _known(self, images: Iterable[pb.Image], in_use: Collection[str]) -> list[KnownImage]:
        now = self._clock.monotonic()
        found = []
        for image in images:
            names = _names(image)
            if not {image.id, *names}.isdisjoint(in_use):
                self._last_used[image.id] = now
            used = self._last_used.setdefault(image.id, now)
            found.append(KnownImage(image.id, names, image.size, used, image.pinned))
        kept = {image.id for image in found}
        self._last_used = {key: value for key, value in self._last_used.items() if key in kept}
        return found

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=CALL_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            raise RuntimeFailure(error.details() or str(error.code())) from error


def _names(image: pb.Image) -> tuple[str, ...]:
    return (*image.repo_digests, *image.repo_tags)


def _disk(path: str) -> tuple[int, int]:
    usage = shutil.disk_usage(path)
    return usage.total, usage.free


def sandbox_images(info: Mapping[str, str]) -> tuple[str, ...]:
    """Return the image of sandboxes by a runtime's verbose status: earlier releases of containerd do not pin it."""
    try:
        name = json.loads(info.get("config", "{}")).get("sandboxImage")
    except (ValueError, AttributeError):
        return ()
    return (str(name),) if name else ()
