"""The Common Expression Language: lexer, parser, checker, compiler, cost model. Knows values, not devices; no I/O."""

from __future__ import annotations

from dray.cel.errors import CELCostError, CELError, CELInterruptedError, CELRuntimeError
from dray.cel.program import Program, compile_program
from dray.cel.types import Type

__all__ = ["CELCostError", "CELError", "CELInterruptedError", "CELRuntimeError", "Program", "Type", "compile_program"]
