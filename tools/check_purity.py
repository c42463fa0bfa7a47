"""Checks that the modules declared pure in pyproject.toml decide without acting.

`[tool.dray] pure` lists modules and packages (`dray.cel.*` covers a package and everything below it). A pure module
has no coroutine (a Protocol may declare one), reads no clock, draws no randomness of its own, does no I/O, and imports
only pure modules of dray. A module whose docstring says "Pure" must be declared, with the package below it if it is
one. `--suggest` prints every module that could be declared.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

SOURCE: Final = Path("src")
IMPURE_IMPORTS: Final = frozenset(
    {
        "asyncio", "concurrent", "fcntl", "grpc", "http", "httptools", "logging", "multiprocessing", "os", "select",
        "secrets", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time",
        "urllib.request", "uvloop",
    }
)  # fmt: skip
IMPURE_CALLS: Final = frozenset({"open", "input", "print", "uuid.uuid4", "datetime.now", "datetime.utcnow"})
# Generated code and data; it is read, not written by hand.
IGNORED: Final = ("dray.rpc.pb*",)


def module_name(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def problems(tree: ast.Module) -> Iterator[str]:
    """Yield what makes a module impure by itself, with line numbers."""
    protocols = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        for inner in ast.walk(node)
    }
    for node in _executed(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node not in protocols:
            yield f"{node.lineno}: coroutine {node.name}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imported(node):
                if any(name == banned or name.startswith(f"{banned}.") for banned in IMPURE_IMPORTS):
                    yield f"{node.lineno}: imports {name}"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in IMPURE_CALLS or (called.startswith("random.") and called != "random.Random"):
                yield f"{node.lineno}: calls {called}"


def _executed(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all nodes except those that only the type checker sees."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        pending.extend(ast.iter_child_nodes(node))


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dependencies(tree: ast.Module, known: Mapping[str, ast.Module]) -> set[str]:
    """Return the modules of dray that a module imports when it runs."""
    return {
        name
        for node in _executed(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in _imported(node)
        if name in known
    }


def pure_modules(modules: Mapping[str, ast.Module]) -> set[str]:
    """Return the largest set of modules that are pure and import only each other."""
    pure = {name for name, tree in modules.items() if not any(True for _ in problems(tree))}
    while True:
        impure = {name for name in pure if not dependencies(modules[name], modules) <= pure}
        if not impure:
            return pure
        pure -= impure


def declared_modules(patterns: Iterable[str], modules: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each declared pattern with the modules it covers."""
    names = list(modules)
    for pattern in patterns:
        package = pattern.removesuffix(".*")
        yield pattern, [name for name in names if fnmatch.fnmatchcase(name, pattern) or name == package]


def undeclared_claims(modules: Mapping[str, ast.Module], declared: set[str]) -> Iterator[str]:
    """Yield each module that is not declared, though its docstring or that of a package above says "Pure"."""
    claiming = {name for name, tree in modules.items() if re.search(r"\bPure\b", ast.get_docstring(tree) or "")}
    for name in sorted(modules.keys() - declared):
        by = next((claim for claim in claiming if name == claim or name.startswith(f"{claim}.")), None)
        if by is not None:
            yield f"{name} is not declared pure, but the docstring of {by} says so"


def suggestions(modules: Mapping[str, ast.Module], pure: set[str]) -> Iterator[str]:
    """Yield the shortest list of patterns that covers the pure modules."""
    covered: set[str] = set()
    for name in sorted(modules):
        if name in covered or name == "dray":
            continue
        below = {other for other in modules if other == name or other.startswith(f"{name}.")}
        if len(below) > 1 and below <= pure:
            yield f"{name}.*"
            covered |= below
        elif name in pure and len(below) == 1:
            yield name


def main() -> int:
    """Check the declared modules, or print suggestions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suggest", action="store_true", help="print every module that could be declared pure")
    arguments = parser.parse_args()
    modules = {
        module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.glob("dray/**/*.py"))
    }
    modules = {
        name: tree for name, tree in modules.items() if not any(fnmatch.fnmatchcase(name, each) for each in IGNORED)
    }
    pure = pure_modules(modules)
    if arguments.suggest:
        print("\n".join(f'    "{pattern}",' for pattern in suggestions(modules, pure)))
        return 0
    with Path("pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["dray"]["pure"]
    failures = []
    declared: set[str] = set()
    for pattern, names in declared_modules(patterns, modules):
        declared.update(names)
        if not names:
            failures.append(f"pyproject.toml: {pattern} is declared pure and does not exist")
        for name in names:
            if name in pure:
                continue
            reasons = [f"line {problem}" for problem in problems(modules[name])]
            reasons += [f"imports {other}" for other in sorted(dependencies(modules[name], modules) - pure)]
            failures += [f"{name} is declared pure: {reason}" for reason in reasons]
    failures += undeclared_claims(modules, declared)
    print("\n".join(failures) or f"{len(declared)} modules are pure, as declared")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
