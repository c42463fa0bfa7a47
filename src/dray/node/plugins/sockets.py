"""The desired and actual registration state of sockets. Pure.

The plugin manager scans, performs the actions and reports their results. A socket that was removed and created again
has another identity and is a new plugin. Removals come before registrations. A failed registration is retried after
500 ms, doubling up to 2 min 2 s; a new socket starts over.
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
    """A socket file: its path, and an identity that differs when it is created again."""

    path: str
    # Device, inode and creation time; an inode number alone may be reused.
    identity: tuple[int, int, int]


class Phase(enum.StrEnum):
    """The phases of a socket."""

    WAITING = "waiting"
    REGISTERING = "registering"
    REGISTERED = "registered"
    DEREGISTERING = "deregistering"


class Event(enum.StrEnum):
    """The events of a socket."""

    REGISTER = "register"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEREGISTER = "deregister"


# Anything else is a bug. A socket in `DEREGISTERING` is removed at the end.
NEXT_PHASE: Final[Mapping[tuple[Phase, Event], Phase]] = {
    (Phase.WAITING, Event.REGISTER): Phase.REGISTERING,
    (Phase.REGISTERING, Event.SUCCEEDED): Phase.REGISTERED,
    (Phase.REGISTERING, Event.FAILED): Phase.WAITING,
    (Phase.REGISTERED, Event.DEREGISTER): Phase.DEREGISTERING,
}


@dataclass(frozen=True, slots=True)
class Register:
    """Get the plugin's info from the socket and register it."""

    socket: SocketFile


@dataclass(frozen=True, slots=True)
class Deregister:
    """Deregister a plugin."""

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
    """The state of all sockets; changed only by its methods, by one caller at a time."""

    def __init__(self) -> None:
        self._wanted: dict[str, SocketFile] = {}
        # By path; a new socket at a path waits until the old one is removed.
        self._entries: dict[str, _Entry] = {}

    def scanned(self, found: Iterable[SocketFile]) -> None:
        """Set the sockets that the folder has."""
        self._wanted = {socket.path: socket for socket in found}

    def plan(self, now: float) -> tuple[Action, ...]:
        """Return the actions to perform, removals first; the methods below report their results."""
        return (*self._removals(), *self._registrations(now))

    def registered(self, socket: SocketFile, plugin: Plugin) -> None:
        """Note a successful registration."""
        entry = self._step(socket, Event.SUCCEEDED)
        entry.plugin, entry.failures = plugin, 0

    def failed(self, socket: SocketFile, now: float) -> float:
        """Note a failed registration; return the delay of the retry."""
        entry = self._step(socket, Event.FAILED)
        delay = min(RETRY_FIRST_SECONDS * 2.0 ** min(entry.failures, 16), RETRY_MAX_SECONDS)
        entry.failures += 1
        entry.due = now + delay
        return delay

    def deregistered(self, socket: SocketFile) -> None:
        """Note that the plugin was deregistered."""
        entry = self._entries.pop(socket.path)
        assert entry.phase is Phase.DEREGISTERING, f"{socket.path} is {entry.phase}"

    @property
    def wanted(self) -> tuple[str, ...]:
        """The paths of the sockets in the folder."""
        return tuple(sorted(self._wanted))

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The registered plugins, in the order of paths."""
        entries = (self._entries[path] for path in sorted(self._entries))
        return tuple(entry.plugin for entry in entries if entry.plugin is not None)

    def next_due(self) -> float | None:
        """Return when the next retry is due."""
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
