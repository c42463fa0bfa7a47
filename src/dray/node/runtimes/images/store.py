"""Stores images: `<root>/images/<id>`, `layers/<chain id>` for what they share, and `index.json` for the names.

Images without layers of their own, such as folders, and those of a user who cannot mount have their files in
`<id>/rootfs`.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, cast

from dray.node.runtimes.images.layers import LAYERS_MAX, LayerStore, chain_ids, tree_size
from dray.node.runtimes.images.model import (
    ImageConfig,
    ImageError,
    StoredImage,
    full_name,
    parse_user,
    read_config,
    write_config,
)

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
_NAME_ANNOTATIONS: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
# The image's size and the credentials that it was pulled with; the time of the last change is that of the last use.
_RECORD: Final = "record.json"
_LAYERS: Final = "layers"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_IMPORT: Final = ".import-"
_DOWNLOAD: Final = ".download-"
_BLOCK_BYTES: Final = 128 * 1024
_INDEX_TYPES: Final = ("index.v1+json", "manifest.list.v2+json")


@dataclass(frozen=True, slots=True)
class _Record:
    """What is kept of an image besides its configuration."""

    size: int = 0
    pulled_with: tuple[str, ...] = ()
    # The chain IDs of its shared layers, the lowest first.
    layers: tuple[str, ...] = ()


class ImageStore:
    """The images of one node; processes can share it, since every change is one rename."""

    def __init__(self, folder: Path, *, shares_layers: bool | None = None) -> None:
        self._folder = folder
        # Overlays can be mounted by root only.
        self._shares_layers = os.geteuid() == 0 if shares_layers is None else shares_layers
        self.layers = LayerStore(folder / _LAYERS, apply_layer)

    @property
    def folder(self) -> Path:
        """The directory `images` below the root directory of the node agent."""
        return self._folder

    def find(self, name: str) -> StoredImage | None:
        """Return an image by name or ID."""
        names = self._names()
        identifier = names.get(full_name(name), name)
        return self._load(identifier.removeprefix("sha256:"), names)

    def all(self) -> tuple[StoredImage, ...]:
        """Return all images."""
        names = self._names()
        found = (self._load(identifier, names) for identifier in sorted(set(names.values())))
        return tuple(image for image in found if image is not None)

    def folders(self, image: StoredImage) -> list[Path]:
        """Return the folders that make up the image's root, the topmost first; they must not be changed."""
        if image.layers:
            return self.layers.contents(image.layers)
        return [self._folder / image.id.removeprefix("sha256:") / "rootfs"]

    def read(self, image: StoredImage, name: str) -> bytes:
        """Return the content of a file of the image; empty if it has none of this name."""
        for folder in self.folders(image):
            path = folder / name
            if path.is_symlink() or path.exists():
                # Links lead out of the folder, and a whiteout is a device.
                return path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        return b""

    def user(self, image: StoredImage) -> tuple[int, int]:
        """Return the UID and GID of the image's user."""
        files = [self.read(image, name).decode(errors="replace") for name in ("etc/passwd", "etc/group")]
        return parse_user(image.config.user, *files)

    def remove(self, name: str) -> None:
        """Remove a name, and the image with its last name."""
        names = self._names()
        identifier = names.pop(full_name(name), None)
        if identifier is None:
            raise ImageError(f"no image {name!r}")
        self._write_names(names)
        if identifier not in names.values():
            self._remove_folder(identifier)

    def import_path(self, path: Path, name: str = "") -> StoredImage:
        """Import a root file system folder, an OCI layout, or an archive of either (Docker's too)."""
        if not path.exists():
            raise ImageError(f"{path}: no such file or directory")
        if path.is_dir():
            if (path / "oci-layout").exists():
                return self._import_layout(path, name)
            return self._import_folder(path, name)
        with tempfile.TemporaryDirectory(dir=self._ready()) as folder:
            return self._import_archive(path, Path(folder), name)

    # --- Import formats. ---

    def _import_folder(self, path: Path, name: str) -> StoredImage:
        if not name:
            raise ImageError("a folder has no name of its own: give one")
        with self._building() as target:
            subprocess.run(["cp", "-a", f"{path}/.", str(target / "rootfs")], check=True)  # noqa: S603, S607
            return self._finish(target, ImageConfig(), tree_digest(target / "rootfs"), (name,), _Record())

    def _import_archive(self, path: Path, folder: Path, name: str) -> StoredImage:
        try:
            with tarfile.open(path) as archive:
                tops = {member.name.removeprefix("./").partition("/")[0] for member in archive}
                if "oci-layout" not in tops and "manifest.json" not in tops:
                    return self._import_plain(path, name)
                archive.extractall(folder, filter="data")
        except tarfile.TarError as error:
            raise ImageError(f"{path}: not an image: {error}") from error
        if "oci-layout" in tops:
            return self._import_layout(folder, name)
        return self._import_docker(folder, name)

    def _import_plain(self, path: Path, name: str) -> StoredImage:
        if not name:
            raise ImageError("an archive of files has no name of its own: give one")
        with self._building() as target:
            with path.open("rb") as file:
                apply_layer(file, target / "rootfs")
            return self._finish(target, ImageConfig(), tree_digest(target / "rootfs"), (name,), _Record())

    def _import_layout(self, layout: Path, name: str) -> StoredImage:
        def blob(digest: str) -> Path:
            algorithm, _, value = digest.partition(":")
            return layout / "blobs" / algorithm / value

        entry = _pick(json.loads((layout / "index.json").read_text()), "index.json")
        annotations = entry.get("annotations") or {}
        found = name or next((annotations[key] for key in _NAME_ANNOTATIONS if key in annotations), "")
        manifest = json.loads(blob(entry["digest"]).read_text())
        while str(manifest.get("mediaType", entry.get("mediaType", ""))).endswith(_INDEX_TYPES):
            entry = _pick(manifest, "index")
            manifest = json.loads(blob(entry["digest"]).read_text())
        digest = manifest["config"]["digest"]
        config = json.loads(blob(digest).read_text())
        layers = [blob(layer["digest"]) for layer in manifest["layers"]]
        return self.add(layers, config, digest, (found,))

    def _import_docker(self, folder: Path, name: str) -> StoredImage:
        manifest = json.loads((folder / "manifest.json").read_text())[0]
        content = (folder / manifest["Config"]).read_bytes()
        found = name or next(iter(manifest.get("RepoTags") or ()), "")
        layers = [folder / layer for layer in manifest["Layers"]]
        return self.add(layers, json.loads(content), f"sha256:{hashlib.sha256(content).hexdigest()}", (found,))

    # --- Pulled images. ---

    def missing_layers(self, config: Mapping[str, Any], count: int) -> list[bool]:
        """Return for each layer of an image whether it must be fetched; layers are kept by `layers.kept`."""
        chain = self._chain(config, count)
        if not chain:
            return [True] * count
        return [not self.layers.has(identifier) for identifier in chain]

    def _chain(self, config: Mapping[str, Any], count: int) -> tuple[str, ...]:
        """Return the chain IDs of an image whose layers can be shared; none for others."""
        diff_ids = (config.get("rootfs") or {}).get("diff_ids") or ()
        if not self._shares_layers or len(diff_ids) != count or not 0 < count <= LAYERS_MAX:
            return ()
        if not all(isinstance(item, str) and _DIGEST.fullmatch(item) for item in diff_ids):
            return ()
        return chain_ids(diff_ids)

    def add(
        self,
        layers: Sequence[Path | None],
        config: Mapping[str, Any],
        digest: str,
        names: Sequence[str],
        pulled_with: Sequence[str] = (),
    ) -> StoredImage:
        """Unpack an image from its layers, None for those that are there; nothing is visible before it is complete."""
        if not all(names):
            raise ImageError("the image has no name of its own: give one")
        expected = (config.get("rootfs") or {}).get("diff_ids") or ()
        if expected and len(expected) != len(layers):
            raise ImageError(f"the configuration is for {len(expected)} layers, not {len(layers)}")
        settings = read_config(config.get("config") or {})
        if chain := self._chain(config, len(layers)):
            with self.layers.kept(), self._building() as target:
                self._add_layers(chain, layers, expected)
                (target / "rootfs").rmdir()
                record = _Record(self.layers.size(chain), tuple(pulled_with), chain)
                return self._finish(target, settings, digest, names, record)
        with self._building() as target:
            for number, layer in enumerate(layers):
                assert layer is not None, "only layers that are shared can be there"
                with layer.open("rb") as file:
                    found = apply_layer(file, target / "rootfs")
                if expected and expected[number] != found:
                    raise ImageError(f"unexpected digest {found} of an unpacked layer, expected {expected[number]}")
            return self._finish(target, settings, digest, names, _Record(pulled_with=tuple(pulled_with)))

    def _add_layers(self, chain: Sequence[str], layers: Sequence[Path | None], diff_ids: Sequence[str]) -> None:
        for number, layer in enumerate(layers):
            if self.layers.has(chain[number]):
                continue
            if layer is None:
                raise ImageError(f"layer {diff_ids[number]} has been removed meanwhile")
            self.layers.add(chain[: number + 1], layer, diff_ids[number])

    def tag(self, image: StoredImage, names: Sequence[str], pulled_with: Sequence[str] = ()) -> StoredImage:
        """Add names to an image, and credentials with which it may be used; none means that all may."""
        identifier = image.id.removeprefix("sha256:")
        if image.pulled_with:
            known = tuple(dict.fromkeys((*image.pulled_with, *pulled_with))) if pulled_with else ()
            self._write_record(self._folder / identifier, _Record(image.size, known, image.layers))
        return self._name(identifier, names)

    def touch(self, image: StoredImage) -> None:
        """Record that the image is used."""
        os.utime(self._folder / image.id.removeprefix("sha256:") / _RECORD)

    def delete(self, image: StoredImage) -> int:
        """Remove an image with all its names, and the layers that no other image has; return the bytes freed."""
        identifier = image.id.removeprefix("sha256:")
        self._write_names({name: value for name, value in self._names().items() if value != identifier})
        return self._remove_folder(identifier) + (0 if image.layers else image.size)

    def _remove_folder(self, identifier: str) -> int:
        """Remove the files of an image; return the bytes of the layers that went with it."""
        shutil.rmtree(self._folder / identifier, ignore_errors=True)
        return self._remove_unused_layers()

    def _remove_unused_layers(self) -> int:
        return self.layers.remove_unused({layer for image in self.all() for layer in image.layers})

    def disk(self) -> tuple[int, int]:
        """Return the total and free bytes of the file system."""
        usage = shutil.disk_usage(self._ready())
        return usage.total, usage.free

    @contextmanager
    def download_folder(self) -> Iterator[Path]:
        """Return a folder for the parts of an image, on the same file system; removed afterwards."""
        with tempfile.TemporaryDirectory(prefix=_DOWNLOAD, dir=self._ready()) as folder:
            yield Path(folder)

    def remove_leftovers(self, older_than: float) -> None:
        """Remove parts of downloads and imports that a killed process left behind."""
        self.layers.remove_leftovers(older_than)
        self._remove_unused_layers()
        for prefix in (_DOWNLOAD, _IMPORT):
            for folder in self._folder.glob(f"{prefix}*"):
                with suppress(FileNotFoundError):
                    if folder.stat().st_mtime < older_than:
                        shutil.rmtree(folder, ignore_errors=True)

    # --- Storage. ---

    def _ready(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        return self._folder

    @contextmanager
    def _building(self) -> Iterator[Path]:
        target = Path(tempfile.mkdtemp(prefix=_IMPORT, dir=self._ready()))
        try:
            (target / "rootfs").mkdir(mode=0o755)
            yield target
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def _finish(
        self, target: Path, config: ImageConfig, digest: str, names: Sequence[str], record: _Record
    ) -> StoredImage:
        identifier = digest.removeprefix("sha256:")
        (target / "image.json").write_text(json.dumps(write_config(config), indent=1))
        if not record.layers:
            record = replace(record, size=tree_size(target / "rootfs"))
        self._write_record(target, record)
        target.chmod(0o711)
        final = self._folder / identifier
        if not final.exists():
            target.rename(final)
        return self._name(identifier, names)

    def _name(self, identifier: str, names: Sequence[str]) -> StoredImage:
        known = self._names() | {full_name(name): identifier for name in names}
        self._write_names(known)
        image = self._load(identifier, known)
        assert image is not None
        return image

    def _write_record(self, folder: Path, record: _Record) -> None:
        temporary = folder / f"{_RECORD}.new"
        content = {"size": record.size, "pulledWith": list(record.pulled_with), "layers": list(record.layers)}
        temporary.write_text(json.dumps(content))
        temporary.rename(folder / _RECORD)

    def _names(self) -> dict[str, str]:
        try:
            names: dict[str, str] = json.loads((self._folder / "index.json").read_text())
        except FileNotFoundError:
            return {}
        return names

    def _write_names(self, names: dict[str, str]) -> None:
        temporary = self._folder / f".index.{os.getpid()}"
        temporary.write_text(json.dumps(names, indent=1, sort_keys=True))
        temporary.rename(self._folder / "index.json")

    def _load(self, identifier: str, names: dict[str, str]) -> StoredImage | None:
        if not identifier or "/" in identifier or not (self._folder / identifier / "image.json").exists():
            return None
        folder = self._folder / identifier
        config = read_config(json.loads((folder / "image.json").read_text()))
        own = tuple(sorted(name for name, value in names.items() if value == identifier))
        try:
            record = json.loads((folder / _RECORD).read_text())
            used = (folder / _RECORD).stat().st_mtime
        except FileNotFoundError:
            # Stored by an earlier version.
            record, used = {}, folder.stat().st_mtime
        pulled_with, layers = tuple(record.get("pulledWith") or ()), tuple(record.get("layers") or ())
        return StoredImage(f"sha256:{identifier}", own, config, record.get("size") or 0, pulled_with, used, layers)


class _Hashing(io.RawIOBase):
    """Reads a stream and computes its digest."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._stream.read(len(buffer))
        self.digest.update(piece)
        buffer[: len(piece)] = piece
        return len(piece)


def apply_layer(file: IO[bytes], target: Path) -> str:
    """Unpack a layer over the lower ones; whiteouts remove files of lower layers. Return its uncompressed digest."""
    try:
        plain = _Hashing(_decompressed(file))
        with tarfile.open(fileobj=io.BufferedReader(plain, _BLOCK_BYTES), mode="r|") as archive:
            own: set[str] = set()
            for member in archive:
                folder, name = os.path.split(member.name)
                if name == OPAQUE:
                    _clear(_inside(target, member.name).parent, target, own)
                elif name.startswith(WHITEOUT):
                    _remove(_inside(target, f"{folder}/{name.removeprefix(WHITEOUT)}"))
                else:
                    _unpack(archive, member, target)
                    own.update(_with_parents(os.path.normpath(member.name)))
        while plain.read(_BLOCK_BYTES):
            # The padding after the last member counts, too.
            continue
    except tarfile.ReadError as error:
        raise ImageError(f"a layer cannot be read (only plain, gzip, zstd, bzip2 and xz are): {error}") from error
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise ImageError(f"a layer is refused: {error}") from error
    return f"sha256:{plain.digest.hexdigest()}"


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    magic = file.read(6)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if magic.startswith(b"\xfd7zXZ"):
        return lzma.LZMAFile(file)
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            import zstandard
        except ImportError as error:
            raise ImageError("a layer is compressed with zstd: install the package zstandard") from error
        stream: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(file)
        return stream
    return file


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    place = _inside(target, member.name)
    if not member.isdir() and (place.is_symlink() or place.exists()):
        _remove(place)
    # The filter keeps members inside the folder; owners and special mode bits are kept.
    archive.extract(member, target, numeric_owner=True, filter="tar")
    if not member.issym() and not member.islnk() and member.mode & 0o7000:
        place.chmod(member.mode & 0o7777)


def _inside(target: Path, name: str) -> Path:
    """Return the place of a member; refuses one whose folder is outside the image, by its name or by a link."""
    place = target / name.lstrip("/")
    if place == target:
        return place
    if place.name in ("", "..") or not place.parent.resolve().is_relative_to(target.resolve()):
        raise ImageError(f"a layer is refused: {name!r} is outside the destination")
    return place


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _clear(folder: Path, target: Path, own: Container[str]) -> None:
    """Remove what lower layers have in a folder; entries of the layer itself stay, whatever their order."""
    for entry in tuple(folder.iterdir()) if folder.is_dir() else ():
        if str(entry.relative_to(target)) not in own:
            _remove(entry)
        elif entry.is_dir() and not entry.is_symlink():
            _clear(entry, target, own)


def _with_parents(name: str) -> Iterator[str]:
    while name not in ("", ".", "/"):
        yield name
        name = os.path.dirname(name)


def tree_digest(folder: Path) -> str:
    """Return a digest of all names, modes, owners, links and contents."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        total.update(f"{path.relative_to(folder)}\0{info.st_mode:o}\0{info.st_uid}:{info.st_gid}\0".encode())
        if stat.S_ISLNK(info.st_mode):
            total.update(os.readlink(path).encode())
        elif stat.S_ISREG(info.st_mode):
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{total.hexdigest()}"


def _pick(index: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the manifest for this machine's architecture."""
    import platform

    wanted = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    entries: list[dict[str, Any]] = index.get("manifests") or []
    fitting = [
        entry for entry in entries if (entry.get("platform") or {}).get("architecture", wanted) in (wanted, "unknown")
    ]
    real = [entry for entry in fitting if (entry.get("platform") or {}).get("architecture") != "unknown"]
    if not real:
        raise ImageError(f"{where}: no image for {wanted}")
    return real[0]
