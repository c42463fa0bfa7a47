"""Runs the commands of plans, and reads and sets what no command offers."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dray.node.network.links import Step
from dray.node.runtimes.runtime import RuntimeFailure

COMMAND_SECONDS_MAX: Final = 20.0
# Where Debian has them, which the PATH of a user may lack.
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GET_MTU: Final = 0x8921
TOOLS: Final = ("ip", "iptables", "iptables-restore", "iptables-save")


def missing_tools(names: Iterable[str] = TOOLS) -> list[str]:
    """Return the commands that are not installed."""
    return [name for name in names if shutil.which(name, path=_PATH) is None]


async def run_step(step: Step) -> str:
    """Run a command and return its output; raises `RuntimeFailure` with its words."""
    binary = shutil.which(step.argv[0], path=_PATH)
    if binary is None:
        raise RuntimeFailure(f"{step.argv[0]} is not installed")

    def work() -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - a program of the plan, without a shell
            (binary, *step.argv[1:]),
            input=step.stdin,
            capture_output=True,
            text=True,
            errors="replace",
            env={"PATH": _PATH, "LC_ALL": "C"},
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )

    try:
        done = await asyncio.to_thread(work)
    except subprocess.TimeoutExpired as error:
        text = f"{' '.join(step.argv[:3])}: no end within {COMMAND_SECONDS_MAX:g} s"
        raise RuntimeFailure(text) from error
    except OSError as error:
        raise RuntimeFailure(f"{binary}: {error}") from error
    text = done.stderr.strip()
    if done.returncode and not any(part in text for part in step.tolerated):
        raise RuntimeFailure(f"{' '.join(step.argv)}: {text or f'exit code {done.returncode}'}")
    return done.stdout


async def run_steps(steps: Iterable[Step]) -> None:
    """Run commands in order; raises `RuntimeFailure` at the first that fails."""
    for step in steps:
        await run_step(step)


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
