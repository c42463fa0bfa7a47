"""Runs the commands of plans, and the system calls that no command offers."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dray.node.network.links import Step, new_namespace
from dray.node.runtimes.runtime import RuntimeFailure

COMMAND_SECONDS_MAX: Final = 20.0
_CONNECT_SECONDS_MAX: Final = 5.0
# Where Debian has them, which the PATH of a user may lack.
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEW_NETWORK: Final = 0x40000000
_DETACH: Final = 2
_GET_MTU: Final = 0x8921
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
TOOLS: Final = ("ip", "nsenter", "unshare", "iptables", "iptables-restore", "iptables-save")


def missing_tools(names: Iterable[str] = TOOLS) -> list[str]:
    """Return the commands that are not installed."""
    return [name for name in names if shutil.which(name, path=_PATH) is None]


async def run_step(step: Step) -> str:
    """Run a command and return its output; raises `RuntimeFailure` with its words."""
    binary = shutil.which(step.argv[0], path=_PATH)
    if binary is None:
        raise RuntimeFailure(f"{step.argv[0]} is not installed")
    code, output, text = await run_program(
        (binary, *step.argv[1:]), step.stdin.encode(), {"PATH": _PATH, "LC_ALL": "C"}, COMMAND_SECONDS_MAX
    )
    if code and not any(part in text for part in step.tolerated):
        raise RuntimeFailure(f"{' '.join(step.argv)}: {text or f'exit code {code}'}")
    return output.decode(errors="replace")


async def run_program(
    argv: Sequence[str], stdin: bytes, environment: Mapping[str, str], seconds_max: float
) -> tuple[int, bytes, str]:
    """Run a program in a thread; return its exit code, output and errors. Raises `RuntimeFailure`."""

    def work() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(  # noqa: S603 - a program of the plan, without a shell
            list(argv), input=stdin, capture_output=True, env=dict(environment), timeout=seconds_max, check=False
        )

    try:
        done = await asyncio.to_thread(work)
    except subprocess.TimeoutExpired as error:
        raise RuntimeFailure(f"{' '.join(argv[:3])}: no end within {seconds_max:g} s") from error
    except OSError as error:
        raise RuntimeFailure(f"{argv[0]}: {error}") from error
    return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()


async def run_steps(steps: Iterable[Step]) -> None:
    """Run commands in order; raises `RuntimeFailure` at the first that fails."""
    for step in steps:
        await run_step(step)


def holds_namespace(path: Path) -> bool:
    """Whether a namespace is mounted at the path."""
    try:
        return path.stat().st_dev != path.parent.stat().st_dev
    except OSError:
        return False


async def make_namespace(path: Path) -> None:
    """Make a network namespace with loopback and hold it at the path, unless there is one."""
    if holds_namespace(path):
        return
    _touch(path)
    await run_step(new_namespace(str(path)))


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)


def has_link(name: str) -> bool:
    """Whether the network of this process has a link."""
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def remove_namespace(path: Path) -> None:
    """Let go of the namespace at the path; it ends with its last process."""
    if holds_namespace(path) and _LIBC.umount2(os.fsencode(path), _DETACH) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    path.unlink(missing_ok=True)


async def connect_inside(namespace: Path, port: int) -> socket.socket:
    """Return a connection to a port on the loopback of a namespace; raises OSError."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[socket.socket] = loop.create_future()

    def settle(found: socket.socket | OSError) -> None:
        if future.done():
            if isinstance(found, socket.socket):
                found.close()
        elif isinstance(found, OSError):
            future.set_exception(found)
        else:
            future.set_result(found)

    def work() -> None:
        try:
            found: socket.socket | OSError = _connect(namespace, port)
        except OSError as error:
            found = error
        loop.call_soon_threadsafe(settle, found)

    # A thread of its own, which ends: a thread belongs to the namespace that it has entered.
    threading.Thread(target=work, name="port-forward", daemon=True).start()
    return await future


def _connect(namespace: Path, port: int) -> socket.socket:
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.setns(descriptor, _NEW_NETWORK) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)
    try:
        return _connected(socket.AF_INET, "127.0.0.1", port)
    except OSError as error:
        try:
            return _connected(socket.AF_INET6, "::1", port)
        except OSError:
            raise error from None


def _connected(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_SECONDS_MAX)
        connection.connect((host, port))
        connection.settimeout(0)
    except BaseException:
        connection.close()
        raise
    return connection


def write_sysctl(name: str, value: str) -> None:
    """Set a kernel parameter of the node's network."""
    path = Path("/proc/sys") / name.replace(".", "/")
    if path.read_text(encoding="ascii").strip() != value:
        path.write_text(value, encoding="ascii")


def uplink_mtu() -> int:
    """Return the MTU of the link with the default route; Ethernet's without one."""
    try:
        lines = Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]
        name = next(line.split()[0] for line in lines if line.split()[1] == "00000000")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, _GET_MTU, struct.pack("16si12x", name.encode(), 0))
        return int(struct.unpack("16si12x", answer)[1])
    except (OSError, StopIteration, IndexError):
        return 1500
