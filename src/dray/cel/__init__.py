"""The Common Expression Language: lexer, parser, checker, compiler, cost model. Knows values, not devices; no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from dray.cel.errors import CELCostError, CELError, CELInterruptedError, CELRuntimeError
from dray.cel.program import Program, compile_program
from dray.cel.types import Type

__all__ = ["CELCostError", "CELError", "CELInterruptedError", "CELRuntimeError", "Program", "Type", "compile"]


def compile(  # noqa: A001 - what the language calls it
    expression: str, variables: Mapping[str, Type] | None = None, *, homogeneous: bool = True
) -> Program:
    """Compile an expression over typed variables; `homogeneous` rejects literals of mixed types."""
    return compile_program(expression, variables or {}, homogeneous=homogeneous)
