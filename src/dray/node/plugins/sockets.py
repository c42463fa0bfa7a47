"""Which sockets should be registered and which are: decisions on what a scan of the folder found.

Pure: `loop` scans, performs the steps and reports their ends. A socket that was removed and made again has another
identity and is a new plugin. Removals come before registrations. A failed registration waits 500 ms before the next
try, doubling up to 2 min 2 s; a new socket begins anew.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dray.node.plugins.handler import Plugin

RETRY_FIRST_SECONDS: Final = 0.5
RETRY_MAX_SECONDS: Final = 122.0


@dataclass(frozen=True, slots=True, order=True)
class SocketFile:
    """A socket as the folder has it: its path, and what changes when it is made again."""

    path: str
    # Device, inode and time of creation; the inode alone may be used again.
    identity: tuple[int, int, int]


class Phase(enum.StrEnum):
    """Where a socket stands."""

    WAITING = "waiting"
    REGISTERING = "registering"
    REGISTERED = "registered"
    DEREGISTERING = "deregistering"


class Event(enum.StrEnum):
    """What happens to a socket."""

    REGISTER = "register"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEREGISTER = "deregister"


# What the table lacks is a bug. `DEREGISTERING` ends by forgetting the socket.
NEXT_PHASE: Final[Mapping[tuple[Phase, Event], Phase]] = {
    (Phase.WAITING, Event.REGISTER): Phase.REGISTERING,
    (Phase.REGISTERING, Event.SUCCEEDED): Phase.REGISTERED,
    (Phase.REGISTERING, Event.FAILED): Phase.WAITING,
    (Phase.REGISTERED, Event.DEREGISTER): Phase.DEREGISTERING,
}


@dataclass(frozen=True, slots=True)
class Register:
    """Ask the socket who it is and register it."""

    socket: SocketFile


@dataclass(frozen=True, slots=True)
class Deregister:
    """Give up a registered plugin."""

    socket: SocketFile
    plugin: Plugin


Action = Register | Deregister


@dataclass(slots=True)
class _Entry:
    socket: SocketFile
    phase: Phase = Phase.WAITING
    # Set exactly while REGISTERED or DEREGISTERING.
    plugin: Plugin | None = None
    failures: int = 0
    due: float = 0.0


class SocketStates:
    """All sockets known; changed only by its methods, by one caller at a time."""

    def __init__(self) -> None:
        self._wanted: dict[str, SocketFile] = {}
        # By path: at most one appearance of a path is worked on; its successor waits until it is gone.
        self._entries: dict[str, _Entry] = {}

    def scanned(self, found: Iterable[SocketFile]) -> None:
        """The folder holds exactly these sockets now."""
        self._wanted = {socket.path: socket for socket in found}

    def plan(self, now: float) -> tuple[Action, ...]:
        """What to do next, removals first; each is reported back by one of the methods below."""
        return (*self._removals(), *self._registrations(now))

    def registered(self, socket: SocketFile, plugin: Plugin) -> None:
        """The registration went well."""
        entry = self._step(socket, Event.SUCCEEDED)
        entry.plugin, entry.failures = plugin, 0

    def failed(self, socket: SocketFile, now: float) -> float:
        """The registration failed; returns how long until the next try."""
        entry = self._step(socket, Event.FAILED)
        delay = min(RETRY_FIRST_SECONDS * 2.0 ** min(entry.failures, 16), RETRY_MAX_SECONDS)
        entry.failures += 1
        entry.due = now + delay
        return delay

    def deregistered(self, socket: SocketFile) -> None:
        """The plugin was given up."""
        entry = self._entries.pop(socket.path)
        assert entry.phase is Phase.DEREGISTERING, f"{socket.path} is {entry.phase}"

    @property
    def wanted(self) -> tuple[str, ...]:
        """Paths of the sockets that are there."""
        return tuple(sorted(self._wanted))

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The registered plugins by path."""
        entries = (self._entries[path] for path in sorted(self._entries))
        return tuple(entry.plugin for entry in entries if entry.plugin is not None)

    def next_due(self) -> float | None:
        """When the next failed registration is to be tried again."""
        return min((entry.due for entry in self._entries.values() if entry.phase is Phase.WAITING), default=None)

    def _removals(self) -> list[Action]:
        actions: list[Action] = []
        for path in sorted(self._entries):
            entry = self._entries[path]
            if self._wanted.get(path) == entry.socket:
                continue
            if entry.phase is Phase.WAITING:
                del self._entries[path]
            elif entry.phase is Phase.REGISTERED:
                self._step(entry.socket, Event.DEREGISTER)
                assert entry.plugin is not None
                actions.append(Deregister(entry.socket, entry.plugin))
        return actions

    def _registrations(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for path in sorted(self._wanted):
            entry = self._entries.setdefault(path, _Entry(self._wanted[path]))
            if entry.phase is Phase.WAITING and entry.due <= now:
                self._step(entry.socket, Event.REGISTER)
                actions.append(Register(entry.socket))
        return actions

    def _step(self, socket: SocketFile, event: Event) -> _Entry:
        entry = self._entries[socket.path]
        assert entry.socket == socket, f"{event} for an older appearance of {socket.path}"
        after = NEXT_PHASE.get((entry.phase, event))
        assert after is not None, f"{event} while {socket.path} is {entry.phase}"
        entry.phase = after
        return entry
