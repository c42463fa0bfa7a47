"""A network and mounts of its own for the calling thread and the processes that it starts; needs root and iproute2."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

_libc: Final = ctypes.CDLL(None, use_errno=True)
_NAMESPACES: Final = {"net": 0x40000000, "mnt": 0x00020000}
_SHARED_ROOT: Final = 0x200
_RECURSIVE_PRIVATE: Final = 0x4000 | 0x40000
_INTERFACE: Final = "dray-test0"

needs_namespaces = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")


@contextmanager
def own_namespaces(address: str = "198.51.100.2") -> Iterator[str]:
    """Isolate the thread for the block.

    It keeps the files of the machine. Its network has loopback and one other address, which is also the way out.
    """
    with ExitStack() as stack:
        for name, flag in _NAMESPACES.items():
            before = os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY)
            stack.callback(os.close, before)
            _check(_libc.unshare(flag), "unshare")
            stack.callback(_enter, before, flag)
        _check(_libc.mount(None, b"/", None, _RECURSIVE_PRIVATE, None), "mount")
        _configure_network(address)
        yield address


def _enter(namespace: int, flag: int) -> None:
    # A thread may not change its mounts while another one, which was started in the block, shares its root.
    _check(_libc.unshare(_SHARED_ROOT), "unshare")
    _check(_libc.setns(namespace, flag), "setns")


def _configure_network(address: str) -> None:
    for command in (
        "link set lo up",
        # Not every kernel has dummy interfaces; a bridge without ports is as good.
        f"link add {_INTERFACE} type bridge",
        f"addr add {address}/24 dev {_INTERFACE}",
        f"link set {_INTERFACE} up",
        f"route add default dev {_INTERFACE}",
    ):
        subprocess.run(["ip", *command.split()], check=True)


def _check(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
