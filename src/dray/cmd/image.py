"""`dray image`: pull, load, import, list, inspect and remove the images of this node."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
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
        "load", help="load an archive of docker save, or an image that Docker, Podman or nerdctl have on this machine"
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
    engine = next((found for name in _ENGINES if (found := shutil.which(name))), "")
    if not engine:
        raise ImageError(f"{source}: no such file, and neither {', '.join(_ENGINES)} is on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "image.tar"
        done = subprocess.run(  # noqa: S603 - the user's own container engine
            [engine, "save", "--output", str(archive), source], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ImageError(f"{engine} save {source}: {done.stderr.strip() or done.returncode}")
        return store.import_path(archive, source)
