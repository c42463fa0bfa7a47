"""What there is to see. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.StrEnum):
    """Where a chapter is."""

    WORKING = "working"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing to know: `asked`, `tried`, `given`, `why`, `sees`."""

    label: str
    text: str
    # A colour of `dray.cli.output`, or nothing.
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One step of the story, as far as it has come."""

    number: int
    title: str
    # Where the behaviour is described, such as KEP-4816.
    source: str
    state: State = State.WORKING
    facts: tuple[Fact, ...] = ()
    # What is being waited for.
    doing: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Card:
    """One piece of hardware, and how many of its parts are held."""

    label: str
    held: int
    of: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node and its hardware."""

    name: str
    served_by: str
    ready: bool
    cards: tuple[Card, ...] = ()
    pods: tuple[str, ...] = ()
