"""What can go wrong with an expression, worded and laid out as cel-go does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDE_DOT = "．"  # noqa: RUF001 - as wide as the character above it
WIDE_CARET = "＾"  # noqa: RUF001 - as wide as the character above it


@dataclass(frozen=True, slots=True)
class Issue:
    """One mistake at a character offset of the source."""

    offset: int
    message: str

    def render(self, source: str) -> str:
        """The message with its place and the line it is in."""
        line_start = source.rfind("\n", 0, self.offset) + 1
        line_end = source.find("\n", line_start)
        line = source[line_start : line_end if line_end >= 0 else len(source)]
        number = source.count("\n", 0, line_start) + 1
        column = self.offset - line_start
        marks = "".join(WIDE_DOT if ord(char) > 127 else "." for char in line[:column])  # noqa: PLR2004 - ASCII
        at = line[column : column + 1]
        marks += WIDE_CARET if at > "\x7f" else "^"
        snippet = line.replace("\t", " ")
        return f"ERROR: <input>:{number}:{column + 1}: {self.message}\n | {snippet}\n | {marks}"


class CELError(Exception):
    """An expression that does not compile; the text names every issue."""

    def __init__(self, message: str, issues: Sequence[Issue] = ()) -> None:
        super().__init__(message)
        self.issues = tuple(issues)

    @property
    def detail(self) -> str:
        """The text as Kubernetes puts it into field errors."""
        return f"compilation failed: {self}" if self.issues else str(self)

    @classmethod
    def of(cls, source: str, issues: Sequence[Issue]) -> CELError:
        """Lay the issues out in source order."""
        ordered = sorted(issues, key=lambda issue: issue.offset)
        return cls("\n".join(issue.render(source) for issue in ordered), ordered)


class CELRuntimeError(Exception):
    """An evaluation without a result."""


class CELCostError(CELRuntimeError):
    """The evaluation did more work than it may; never absorbed by a logical operator."""

    def __init__(self, message: str = "operation cancelled: actual cost limit exceeded") -> None:
        super().__init__(message)


class CELInterruptedError(CELRuntimeError):
    """The caller no longer wants the result; never absorbed by a logical operator."""

    def __init__(self) -> None:
        super().__init__("operation interrupted")


# Errors that end the evaluation at once, whatever surrounds them.
FATAL = (CELCostError, CELInterruptedError)
