"""The command `dray dev`: starts the cluster, runs the session, and stops everything."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dray.api.errors import APIError
from dray.cli.command import EXIT_FAILURE, EXIT_USAGE, Parser
from dray.cmd.detached import DetachError, start_detached
from dray.cmd.local_clusters import LocalCluster, LocalClusterError, read_record, stop_cluster
from dray.cmd.short_folder import make_folder, remove_folder

PROG: Final = "dray dev"


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parser = Parser(
        PROG,
        "Run a driver on a cluster of its own, start it again whenever its file is saved, and show its slices, devices "
        "and claims. The driver gets KUBECONFIG, NODE_NAME, DRAY_ROOT_DIR and DRAY_CDI_DIR; containers of Pods are "
        "processes of this machine. Ctrl-C stops all of it.",
    )
    parser.add_argument("file", metavar="FILE", help="the driver's Python file")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*", help="of the driver; flags after --")
    parser.add_argument("--data-dir", default="", metavar="DIR", help="keep the cluster here; default: a temporary one")
    arguments = parser.parse_args(argv)
    file = Path(arguments.file).resolve()
    if not file.is_file():
        sys.stderr.write(f"{PROG}: there is no file {arguments.file}\n")
        return EXIT_USAGE
    # From the start: a cluster must not be left when the command is ended early.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _data_dir(arguments.data_dir) as folder, _running_cluster(folder) as cluster:
            asyncio.run(_run(file, arguments.arguments, cluster))
    except KeyboardInterrupt:
        return 0
    except (DetachError, LocalClusterError, APIError, OSError) as error:
        sys.stderr.write(f"{PROG}: {error}\n")
        return EXIT_FAILURE
    return 0


@contextmanager
def _data_dir(named: str) -> Iterator[Path]:
    """The folder that is named, or one for the time of the block."""
    if named:
        yield Path(named).resolve()
        return
    folder = make_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


@contextmanager
def _running_cluster(folder: Path) -> Iterator[LocalCluster]:
    """A cluster with a node, as a process of its own, whose log is in its folder."""
    running = read_record(folder)
    if running is not None and running.is_running:
        raise LocalClusterError(f"the cluster in {folder} runs already, as process {running.pid}")
    sys.stdout.write(f"{PROG}: starting a cluster in {folder}\n")
    sys.stdout.flush()
    root = f"--node-root-dir={folder.resolve() / 'node'}"
    flags = ("--node", "--node-runtime=process", root, f"--node-cdi-spec-dirs={_cdi(folder)}", "--port=0")
    start_detached(("up", f"--data-dir={folder}", *flags), folder)
    cluster = read_record(folder)
    if cluster is None:
        raise LocalClusterError(f"the cluster in {folder} has ended")
    try:
        sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")
        sys.stdout.flush()
        yield cluster
    finally:
        sys.stdout.write(f"{PROG}: stopping the cluster\n")
        sys.stdout.flush()
        stop_cluster(cluster)


async def _run(file: Path, arguments: Sequence[str], cluster: LocalCluster) -> None:
    # Imported on use: invalid arguments are refused at once, and the cluster starts meanwhile.
    from dray.cmd.dev.session import DevSession, DriverProgram
    from dray.runtime.tasks import stop_on_signals

    stop = asyncio.Event()
    stop_on_signals(stop)
    environment = {
        "KUBECONFIG": cluster.kubeconfig,
        "NODE_NAME": socket.gethostname().lower(),
        "DRAY_ROOT_DIR": cluster.node_root,
        "DRAY_CDI_DIR": str(_cdi(Path(cluster.data_dir))),
    }
    await DevSession(DriverProgram(file, arguments, environment), cluster).run(stop)


def _cdi(folder: Path) -> Path:
    return folder / "cdi"
