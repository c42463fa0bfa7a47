"""The first process of a Pod whose containers share their process namespace: it reaps what nobody waits for.

Runs as a separate program (`python -I -S pause.py`) and imports only the standard library. It creates the namespace and
prints the ID of the process in it, which runs until it is killed; the kernel then kills the rest of the namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import Final

_NEW_PROCESSES: Final = 0x20000000
_SET_NAME: Final = 15


def main() -> None:
    """Print the process ID of the namespace's first process, or the reason why there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_PROCESSES) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    pid = os.fork()
    if pid:
        os.write(1, b"%d\n" % pid)
        # The process belongs to no one, so that it survives the agent.
        os._exit(0)
    os.setsid()
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")
    libc.prctl(_SET_NAME, b"pause", 0, 0, 0)
    reap()


def reap() -> None:
    """Wait for children forever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    # Within the namespace, signals without a handler do not reach its first process.
    while True:
        signal.sigwait((signal.SIGCHLD,))
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
