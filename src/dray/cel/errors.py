"""Errors of expressions, with cel-go's messages and layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# As wide as a character that is not ASCII above them.
WIDE_DOT = "\N{FULLWIDTH FULL STOP}"
WIDE_CARET = "\N{FULLWIDTH CIRCUMFLEX ACCENT}"


@dataclass(frozen=True, slots=True)
class Issue:
    """An error at a character offset of the source."""

    offset: int
    message: str

    def render(self, source: str) -> str:
        """Return the message with its position and source line."""
        line_start = source.rfind("\n", 0, self.offset) + 1
        line_end = source.find("\n", line_start)
        line = source[line_start : line_end if line_end >= 0 else len(source)]
        number = source.count("\n", 0, line_start) + 1
        column = self.offset - line_start
        marks = "".join("." if char.isascii() else WIDE_DOT for char in line[:column])
        at = line[column : column + 1]
        marks += WIDE_CARET if at > "\x7f" else "^"
        snippet = line.replace("\t", " ")
        return f"ERROR: <input>:{number}:{column + 1}: {self.message}\n | {snippet}\n | {marks}"


class CELError(Exception):
    """An expression that does not compile; the text has all issues."""

    def __init__(self, message: str, issues: Sequence[Issue] = ()) -> None:
        super().__init__(message)
        self.issues = tuple(issues)

    @property
    def detail(self) -> str:
        """Return the text that Kubernetes uses in field errors."""
        return f"compilation failed: {self}" if self.issues else str(self)

    @classmethod
    def of(cls, source: str, issues: Sequence[Issue]) -> CELError:
        """Return the error with the issues in source order."""
        ordered = sorted(issues, key=lambda issue: issue.offset)
        return cls("\n".join(issue.render(source) for issue in ordered), ordered)


class CELRuntimeError(Exception):
    """An evaluation without a result."""


class CELCostError(CELRuntimeError):
    """The evaluation exceeded its cost limit; never absorbed by a logical operator."""

    def __init__(self, message: str = "operation cancelled: actual cost limit exceeded") -> None:
        super().__init__(message)


class CELInterruptedError(CELRuntimeError):
    """The caller cancelled the evaluation; never absorbed by a logical operator."""

    def __init__(self) -> None:
        super().__init__("operation interrupted")


# Errors that always end the evaluation.
FATAL = (CELCostError, CELInterruptedError)
