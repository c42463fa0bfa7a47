"""What to do with the driver when its file is saved or it ends. Pure."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

# Of the driver's output.
LINES_KEPT_MAX: Final = 200
LINE_LENGTH_MAX: Final = 2000


class Phase(Enum):
    """Of the driver's process."""

    # There is none: a save starts it.
    WAITING = auto()
    RUNNING = auto()
    # It was told to end, because a new one is to start.
    REPLACING = auto()


@dataclass(frozen=True, slots=True)
class Start:
    """Start the driver."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the driver to end."""


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user."""

    text: str


Action: TypeAlias = Start | Stop | Say


class Reload:
    """Decides when the driver of a file is started and stopped; its process runs elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.phase = Phase.WAITING

    def saved(self, problem: str = "") -> tuple[Action, ...]:
        """Return what to do after a change of the file, or at the beginning; `problem` is what is wrong with it."""
        if problem:
            goes_on = "; the driver of the last version goes on" if self.phase is Phase.RUNNING else ""
            return (Say(f"{problem}{goes_on}"),)
        if self.phase is Phase.WAITING:
            self.phase = Phase.RUNNING
            return (Say(f"{self._name} starts"), Start())
        if self.phase is Phase.REPLACING:
            # The one that is about to start reads the latest version.
            return ()
        self.phase = Phase.REPLACING
        return (Say(f"{self._name} was changed: the driver is restarted"), Stop())

    def ended(self, code: int) -> tuple[Action, ...]:
        """Return what to do when the driver's process has ended."""
        if self.phase is Phase.REPLACING:
            self.phase = Phase.RUNNING
            return (Start(),)
        self.phase = Phase.WAITING
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return (Say(f"{self._name} {how}; the cluster goes on, and the next save starts the driver"),)


def problem_of(source: bytes, name: str) -> str:
    """Return why the text is no Python program; empty if it is one."""
    try:
        ast.parse(source, name)
    except SyntaxError as error:
        return f"{name}:{error.lineno or 1}: {error.msg}"
    except ValueError as error:
        return f"{name}: {error}"
    return ""


class Output:
    """The last lines of the driver's output."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_KEPT_MAX)
        self._rest = b""

    def add(self, data: bytes) -> Iterator[str]:
        """Add what was read, and yield the lines that it completes; long ones are cut."""
        *complete, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_LENGTH_MAX]
        for line in complete:
            text = line[:LINE_LENGTH_MAX].decode(errors="replace").rstrip("\r")
            self._lines.append(text)
            yield text

    def last(self, count: int) -> list[str]:
        """Return the last lines, at most so many."""
        return list(self._lines)[-count:]

    def clear(self) -> None:
        """Forget the output of the process before."""
        self._lines.clear()
        self._rest = b""
