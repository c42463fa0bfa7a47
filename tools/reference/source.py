"""Parses source files of the repository."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file.

    The collector pauses meanwhile. A finalizer that logs a traceback parses source as well, and CPython 3.11 before
    3.11.8 then fails with `SystemError: AST constructor recursion depth mismatch`.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if collecting:
            gc.enable()
