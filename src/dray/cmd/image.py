"""`dray image`: pull, load, import, list, inspect and remove the images of this node."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from dray.cli.command import Parser
from dray.node.runtimes.images.model import ImageError, StoredImage
from dray.node.runtimes.images.puller import ImagePuller
from dray.node.runtimes.images.references import parse_reference
from dray.node.runtimes.images.registry import environment_proxy, load_keyring, load_settings
from dray.node.runtimes.images.store import ImageStore
from dray.runtime.system import SystemClock

# Programs that export an image as an archive, with the arguments for it.
_ENGINES: Final = ("docker", "podman", "nerdctl")
BUSYBOX: Final = "busybox"
# Of a 64-bit little-endian ELF file: the offset, size and number of its program headers, and the type in each.
_ELF_HEADER: Final = struct.Struct("<32xQ14xHH")
_ELF_TYPE: Final = struct.Struct("<I")
_INTERPRETER: Final = 3


def main(argv: Sequence[str]) -> int:
    """Run one of the subcommands."""
    arguments = _parser().parse_args(argv)
    store = ImageStore(Path(arguments.root_dir).resolve() / "images")
    try:
        return _run(store, arguments)
    except (ImageError, OSError) as error:
        sys.stderr.write(f"dray image: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser("dray image", description="Images of this node, for the runc runtime.")
    parser.add_argument("--root-dir", default="/var/lib/kubelet", help="the node agent's root directory")
    commands = parser.add_subparsers(dest="command", required=True)
    pulling = commands.add_parser("pull", help="pull an image from its registry")
    pulling.add_argument("name")
    pulling.add_argument("--registries", default="", help="YAML file with settings of registries, as of dray node")
    pulling.add_argument("--registry-config", default="", help="Docker configuration file with credentials")
    loading = commands.add_parser(
        "load",
        help="load an archive of docker save, or an image of Docker, Podman or nerdctl, or busybox, from this machine",
    )
    loading.add_argument("source", help="an archive, or the name of an image")
    importing = commands.add_parser(
        "import", help="import a root file system folder, an OCI layout, or an archive of either"
    )
    importing.add_argument("path", type=Path)
    importing.add_argument("name", nargs="?", default="", help="how Pods call it; an archive may know its own name")
    commands.add_parser("list", help="list the images")
    inspecting = commands.add_parser("inspect", help="print an image as JSON")
    inspecting.add_argument("name")
    removing = commands.add_parser("remove", help="remove a name, and the image with its last name")
    removing.add_argument("name")
    return parser


def _run(store: ImageStore, arguments: argparse.Namespace) -> int:
    if arguments.command == "pull":
        _print(_pull(store, arguments))
    elif arguments.command == "load":
        _print(_load(store, arguments.source))
    elif arguments.command == "import":
        _print(store.import_path(arguments.path, arguments.name))
    elif arguments.command == "remove":
        store.remove(arguments.name)
    elif arguments.command == "inspect":
        sys.stdout.write(json.dumps(asdict(_find(store, arguments.name)), indent=2) + "\n")
    else:
        for image in store.all():
            _print(image)
    return 0


def _print(image: StoredImage) -> None:
    sys.stdout.write(f"{', '.join(image.names)}\t{image.id}\t{image.size / 1e6:.1f}MB\n")


def _find(store: ImageStore, name: str) -> StoredImage:
    image = store.find(name)
    if image is None:
        raise ImageError(f"no image {name!r}")
    return image


def _pull(store: ImageStore, arguments: argparse.Namespace) -> StoredImage:
    try:
        registries, keyring = load_settings(arguments.registries), load_keyring(arguments.registry_config)
    except ValueError as error:
        raise ImageError(str(error)) from error

    async def pull() -> StoredImage:
        puller = ImagePuller(store, SystemClock(), registries=registries, proxy_for=environment_proxy)
        return (await puller.pull(parse_reference(arguments.name), keyring)).image

    return asyncio.run(pull())


def _load(store: ImageStore, source: str) -> StoredImage:
    """Import an archive, or what a container engine of this machine exports."""
    path = Path(source)
    if path.exists():
        return store.import_path(path)
    problem = f"{source}: no such file, and none of {', '.join(_ENGINES)} is on the PATH"
    with tempfile.TemporaryDirectory() as folder:
        for engine in filter(None, map(shutil.which, _ENGINES)):
            archive = Path(folder) / "image.tar"
            done = subprocess.run(  # noqa: S603 - the user's own container engine
                [engine, "save", "--output", str(archive), source], capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return store.import_path(archive, source)
            problem = f"{engine} save {source}: {done.stderr.strip() or done.returncode}"
        if _repository(source) == BUSYBOX:
            return _import_busybox(store, source, Path(folder) / "rootfs", problem)
    raise ImageError(f"{problem}; containers of --runtime=process (--node-runtime of dray up) need no images")


def _repository(source: str) -> str:
    """Return the last part of an image's name, without its tag."""
    return source.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _import_busybox(store: ImageStore, name: str, root: Path, problem: str) -> StoredImage:
    """Make the image of the machine's own busybox, so that Pods for a first try run without a registry."""
    program = shutil.which(BUSYBOX)
    if program is None or not is_static(Path(program).read_bytes()):
        raise ImageError(f"{problem}; install a static busybox (Debian: busybox-static), of which an image is made")
    for folder in ("bin", "dev", "etc", "proc", "root", "sys", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(program, root / "bin" / BUSYBOX)
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()  # noqa: S603
    for applet in applets:
        if applet != BUSYBOX:
            (root / "bin" / applet).symlink_to(BUSYBOX)
    return store.import_path(root, name)


def is_static(program: bytes) -> bool:
    """Return whether an ELF program needs no interpreter, and so no libraries."""
    if program[:4] != b"\x7fELF" or len(program) < _ELF_HEADER.size:
        return False
    header_offset, header_size, count = _ELF_HEADER.unpack_from(program)
    types = (_ELF_TYPE.unpack_from(program, header_offset + number * header_size)[0] for number in range(count))
    return _INTERPRETER not in types
