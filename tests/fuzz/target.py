"""What a fuzz target is: a way in that decodes something, with its inputs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.security.attacker import JSON_TYPE, Attacker


@dataclass(frozen=True, slots=True)
class Sent:
    """One request before its mutation."""

    method: str
    target: str
    body: bytes
    media: str = JSON_TYPE

    @property
    def size(self) -> int:
        """The bytes from outside."""
        return len(self.target) + len(self.body)


class FuzzedServer:
    """A live server, over calls and over HTTP."""

    def __init__(self, attacker: Attacker, port: int) -> None:
        self.attacker = attacker
        self.port = port


class Finding(Exception):  # noqa: N818 - what fuzzing finds
    """An answer that must not be given."""


Run = Callable[[FuzzedServer, Sent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Target:
    """A way in: its inputs, and how one is sent."""

    inputs: st.SearchStrategy[Sent]
    run: Run
    # Whether the target of a request is mutated instead of its body.
    mutates_target: bool = False
