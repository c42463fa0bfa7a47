"""Makes images available on a node: decides by the pull policy and pulls from registries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dray.lib.clock import Clock
from dray.node.runtimes.images import manifests
from dray.node.runtimes.images.manifests import Manifest
from dray.node.runtimes.images.model import ImageError, StoredImage
from dray.node.runtimes.images.references import (
    ANONYMOUS,
    NO_CREDENTIALS,
    Credentials,
    Keyring,
    Reference,
    parse_reference,
    read_keyring,
)
from dray.node.runtimes.images.registry import DEFAULT_SETTINGS, RegistryClient, RegistrySettings, UnavailableError
from dray.node.runtimes.images.store import ImageStore
from dray.node.runtimes.runtime import Image, ImageFailure, ImageRequest
from dray.runtime.http.urls import Origin
from dray.runtime.tasks import KeyedLocks

INVALID_NAME: Final = "InvalidImageName"
NEVER_PULL: Final = "ErrImageNeverPull"
PULL_FAILED: Final = "ErrImagePull"
UNAVAILABLE: Final = "RegistryUnavailable"


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pulled image, and how long the pull took, with and without waiting for others."""

    image: StoredImage
    seconds: float
    total_seconds: float
    size: int


class ImagePuller:
    """The images of one node; pulls of the same image are done once, and few at a time."""

    def __init__(
        self,
        store: ImageStore,
        clock: Clock,
        *,
        registries: Mapping[str, RegistrySettings] | None = None,
        keyring: Keyring = NO_CREDENTIALS,
        parallel: int = 1,
        proxy_for: Callable[[Origin], str] = lambda _origin: "",
    ) -> None:
        self.store = store
        self._clock = clock
        self._registries = registries or {}
        # Credentials of the node, after those of the Pod.
        self._keyring = keyring
        self._proxy_for = proxy_for
        self._locks = KeyedLocks()
        self._slots = asyncio.Semaphore(parallel)

    async def ensure(self, request: ImageRequest) -> Image:
        """Return the image that a container needs, pulled if the policy says so; raises `ImageFailure`."""
        try:
            reference = parse_reference(request.image)
        except ImageError as error:
            # An image that was imported under a name that no registry could have.
            found = await asyncio.to_thread(self.store.find, request.image)
            if found is not None:
                return self._present(request, found)
            text = f'Failed to apply default image tag "{request.image}": {error}'
            raise ImageFailure(INVALID_NAME, text) from error
        found = await asyncio.to_thread(self.store.find, request.image)
        keyring = read_keyring(request.credentials)
        # An imported image is the one to use, whatever a registry has under its name.
        is_settled = request.policy != "Always" or (found is not None and found.is_imported)
        if found is not None and is_settled and self._may_use(found, reference, keyring):
            return self._present(request, found)
        if request.policy == "Never":
            text = f'Container image "{request.image}" is not present with pull policy of Never'
            raise ImageFailure(NEVER_PULL, text)
        request.report("Pulling", f'Pulling image "{request.image}"')
        try:
            pulled = await self.pull(reference, keyring)
        except ImageError as error:
            text = f'Failed to pull image "{request.image}": {error}'
            if isinstance(error, UnavailableError):
                load = f"dray image --root-dir={self.store.folder.parent} load {request.image}"
                text = f"{text} (without the registry, load the image or its archive on the node: {load})"
                raise ImageFailure(UNAVAILABLE, text) from error
            raise ImageFailure(PULL_FAILED, text) from error
        request.report(
            "Pulled",
            f'Successfully pulled image "{request.image}" in {_duration(pulled.seconds)} '
            f"({_duration(pulled.total_seconds)} including waiting). Image size: {pulled.size} bytes.",
        )
        return Image(str(reference), pulled.image.reference)

    def _present(self, request: ImageRequest, image: StoredImage) -> Image:
        text = f'Container image "{request.image}" already present on machine and can be accessed by the pod'
        request.report("Pulled", text)
        self.store.touch(image)
        return Image(request.image, image.reference)

    def _may_use(self, image: StoredImage, reference: Reference, keyring: Keyring) -> bool:
        """Return whether the Pod may use a present image: one pulled with credentials needs the same ones."""
        if not image.pulled_with:
            return True
        shown = (*keyring.lookup(reference), *self._keyring.lookup(reference))
        return any(item.fingerprint(reference.host) in image.pulled_with for item in shown)

    async def pull(self, reference: Reference, keyring: Keyring) -> Pulled:
        """Pull an image with the first credentials that work; raises `ImageError`."""
        begun = self._clock.monotonic()
        async with self._locks.held((str(reference),)), self._slots:
            started = self._clock.monotonic()
            credentials = [*keyring.lookup(reference), *self._keyring.lookup(reference)] or [ANONYMOUS]
            failure: ImageError | None = None
            for item in dict.fromkeys(credentials):
                try:
                    image = await self._pull_with(reference, item)
                except ImageError as error:
                    failure = error
                except OSError as error:
                    raise ImageError(f"{error.filename or 'the image folder'}: {error.strerror}") from error
                else:
                    now = self._clock.monotonic()
                    return Pulled(image, now - started, now - begun, image.size)
            assert failure is not None
            raise failure

    async def _pull_with(self, reference: Reference, credentials: Credentials) -> StoredImage:
        settings = self._registries.get(reference.host, DEFAULT_SETTINGS)
        used = (credentials.fingerprint(reference.host),) if credentials != ANONYMOUS else ()
        async with RegistryClient(reference, self._clock, credentials, settings, self._proxy_for) as client:
            data, header, digest = await client.manifest(reference.version)
            names = (reference.with_digest(digest), *(() if reference.digest else (str(reference),)))
            found = await asyncio.to_thread(self.store.find, names[0])
            if found is not None:
                return await asyncio.to_thread(self.store.tag, found, names, used)
            document = manifests.parse_document(data)
            media_type = manifests.media_type_of(document, header)
            if manifests.is_index(media_type):
                chosen = manifests.choose(document)
                data, header, _ = await client.manifest(chosen.digest)
                document = manifests.parse_document(data)
                media_type = manifests.media_type_of(document, header)
            manifest = manifests.parse_manifest(document, media_type)
            return await self._fetch(client, manifest, names, used)

    async def _fetch(
        self, client: RegistryClient, manifest: Manifest, names: Sequence[str], used: Sequence[str]
    ) -> StoredImage:
        config = manifests.parse_document(await client.small_blob(manifest.config))
        with self.store.layers.kept(), self.store.download_folder() as folder:
            missing = await asyncio.to_thread(self.store.missing_layers, config, len(manifest.layers))
            layers: list[Path | None] = []
            for number, layer in enumerate(manifest.layers):
                if not missing[number]:
                    layers.append(None)
                    continue
                path = folder / str(number)
                with path.open("wb") as file:
                    await client.download(layer, file)
                layers.append(path)
            return await asyncio.to_thread(self.store.add, layers, config, manifest.config.digest, names, used)


def _duration(seconds: float) -> str:
    """Return a duration as kubelet prints it, rounded to milliseconds."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
