"""The limit on open file descriptors of this process, and what it leaves for streams and connections."""

from __future__ import annotations

import resource
from typing import Final

# Files, sockets and pipes of the process itself, with its containers: a full `dray up` has about 120 at rest.
OWN_DESCRIPTORS: Final = 256
# An exec with a terminal or three pipes, when API server and node agent share a process: three connections, the pipes
# and the process.
DESCRIPTORS_PER_STREAM: Final = 8
STREAMS_MAX: Final = 1000
# Where the hard limit is "unlimited".
_LIMIT_MAX: Final = 1 << 20


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, as Go programs do; processes started from now on inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Return the number of descriptors that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def streams_max() -> int:
    """Return how many streams may run at the same time: half of the descriptors are enough for them."""
    return max(1, min(STREAMS_MAX, limit() // (2 * DESCRIPTORS_PER_STREAM)))


def connections_max(wanted: int) -> int:
    """Return the wanted number of connections, or what is left for them beside streams."""
    return max(1, min(wanted, limit() - OWN_DESCRIPTORS - DESCRIPTORS_PER_STREAM * streams_max()))
