"""`dray image`: import, list and remove the images of this node."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dray.node.runtimes.images.model import ImageError
from dray.node.runtimes.images.store import ImageStore


def main(argv: Sequence[str]) -> int:
    """Run one of the subcommands."""
    parser = argparse.ArgumentParser("dray image", description="Images of this node, for the runc runtime.")
    parser.add_argument("--root-dir", default="/var/lib/kubelet", help="the node agent's root directory")
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser(
        "import", help="import a root file system folder, an OCI layout, or an archive of either"
    )
    importing.add_argument("path", type=Path)
    importing.add_argument("name", nargs="?", default="", help="how Pods call it; an archive may know its own name")
    commands.add_parser("list", help="list the images")
    removing = commands.add_parser("remove", help="remove a name, and the image with its last name")
    removing.add_argument("name")
    arguments = parser.parse_args(argv)
    store = ImageStore(Path(arguments.root_dir).resolve() / "images")
    try:
        return _run(store, arguments)
    except (ImageError, OSError) as error:
        sys.stderr.write(f"dray image: {error}\n")
        return 1


def _run(store: ImageStore, arguments: argparse.Namespace) -> int:
    if arguments.command == "import":
        image = store.import_path(arguments.path, arguments.name)
        sys.stdout.write(f"{', '.join(image.names)}\t{image.id}\n")
    elif arguments.command == "remove":
        store.remove(arguments.name)
    else:
        for image in store.all():
            sys.stdout.write(f"{', '.join(image.names)}\t{image.id}\n")
    return 0
