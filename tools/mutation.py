"""Mutation testing: change one expression of a module, run the tests that cover it, and see whether they notice.

The operators come from Cosmic Ray; one more removes a call. Mutants are sampled with a fixed seed, so that a run can be
repeated. Nothing is written to disk: each mutant is compiled in a forked process that has every module loaded that the
mutated package does not affect. Tests that take long run only on mutants that the quick tests did not kill.

`make mutation` runs all targets. `python -m tools.mutation allocator --at src/dray/allocator/explain.py:205` tests
every mutant of one line.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import difflib
import importlib
import importlib.abc
import importlib.machinery
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import cosmic_ray.plugins
import parso.python.tree
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

SOURCE: Final = Path("src")
# A mutant may loop for ever. The tests of a target take a few seconds, so that this is many times as long.
CPU_SECONDS_MAX: Final = 60
SECONDS_MAX: Final = 180
KILLED_BY_TEST: Final = 1
# As <linux/prctl.h> has it.
_SET_PARENT_DEATH_SIGNAL: Final = 1
PYTEST_OPTIONS: Final = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain", "--no-header")
# Cosmic Ray replaces each operator by every other one. Most of these mutants fail at once with a TypeError, and one
# binary expression would count eleven times; the nearest operator is the hardest to tell apart.
REPLACEMENTS: Final = (
    "ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_NotEq_Eq",
    "ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is",
    "ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_LtE_Lt",
    "ReplaceComparisonOperator_Gt_GtE", "ReplaceComparisonOperator_GtE_Gt",
    "ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add",
    "ReplaceBinaryOperator_Mul_Add", "ReplaceBinaryOperator_Div_Mul",
    "ReplaceBinaryOperator_FloorDiv_Mul", "ReplaceBinaryOperator_Mod_FloorDiv",
    "ReplaceBinaryOperator_BitAnd_BitOr", "ReplaceBinaryOperator_BitOr_BitAnd", "ReplaceBinaryOperator_BitXor_BitOr",
    "ReplaceBinaryOperator_LShift_RShift", "ReplaceBinaryOperator_RShift_LShift",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert", "ReplaceUnaryOperator_Delete_USub",
    "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak",
    "AddNot", "NumberReplacer", "ExceptionReplacer", "ZeroIterationForLoop",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """Modules to mutate and the tests that cover them."""

    # Paths below src/dray: packages or modules.
    paths: tuple[str, ...]
    tests: tuple[str, ...]
    # Pytest arguments for what the quick tests do not kill.
    slow_tests: tuple[str, ...] = ()
    mutants: int = 60

    def modules(self) -> list[Path]:
        """Return the files to mutate."""
        found: list[Path] = []
        for path in self.paths:
            below = SOURCE / "dray" / path
            found += sorted(below.rglob("*.py")) if below.is_dir() else [below.with_suffix(".py")]
        return [path for path in found if path.name != "__init__.py"]


TARGETS: Final = {
    "allocator": Target(
        ("allocator",), ("tests/unit/allocator", "tests/conformance/allocator"), ("tests/property/allocator",), 120
    ),
    "dynamic_resources": Target(
        ("scheduler/plugins/dynamic_resources",),
        ("tests/unit/scheduler/plugins/dynamic_resources", "tests/conformance/scheduler/dynamic_resources"),
        ("tests/property/scheduler",),
        80,
    ),
    "resource_claim": Target(
        ("controllers/resource_claim",),
        ("tests/unit/controllers/resource_claim",),
        ("tests/property/controllers/test_claim_event_filter_laws.py",),
        80,
    ),
    "store": Target(
        tuple(f"store/{each}" for each in (
            "buffered_watch", "index", "memory", "sqlite", "sqlite_file", "sqlite_rows", "state", "watch_hub", "writer"
        )),
        ("tests/unit/store", "tests/conformance/store", "-k", "not etcd"),
        ("tests/property/store",),
        80,
    ),
    "ledger": Target(
        ("apiserver/device_ledger", "apiserver/allocation_writer"),
        ("tests/unit/apiserver/test_device_ledger.py", "tests/unit/apiserver/test_allocation_writer.py"),
        (),
        60,
    ),
    "admission": Target(
        ("apiserver/admission",),
        ("tests/unit/apiserver/admission",),
        ("tests/security/test_pod_security.py", *(f"tests/conformance/apiserver/test_{each}.py" for each in (
            "admission_policies", "admission_webhooks", "pod_admission", "quota_races", "certificates_and_policies"
        ))),
        60,
    ),
    "node_dra": Target(("node/dra",), ("tests/unit/node/dra",), ("tests/e2e/driver", "tests/e2e/dra"), 60),
    "node_devices": Target(("node/devices",), ("tests/unit/node/devices",), ("tests/e2e/node",), 60),
    "etcd": Target(("store/etcd",), ("tests/unit/store", "tests/conformance/store", "-k", "etcd"), (), 40),
}  # fmt: skip


class CallRemover(Operator):  # type: ignore[misc]
    """Replaces a statement that is one call by `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the position of the statement, if it is a call."""
        if node.type == "simple_stmt":
            statement = node.children[0]
            called = statement.children[-1] if statement.type == "await" else statement
            if called.type == "atom_expr" and called.children[-1].type == "trailer":
                yield statement.start_pos, statement.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the statement without its call."""
        assert index == 0
        old = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", old.start_pos, prefix=old.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return nothing: only Cosmic Ray's own tests read examples."""
        return ()


@dataclass(frozen=True)
class Mutant:
    """One change to one module."""

    path: Path
    line: int
    operator_name: str
    operator: Operator
    occurrence: int

    @cached_property
    def source(self) -> str:
        """Return the changed source."""
        before = self.path.read_text()
        return mutate_code(before, self.operator, self.occurrence) or before

    @property
    def module(self) -> str:
        """Return the dotted name of the module."""
        return ".".join(self.path.relative_to(SOURCE).with_suffix("").parts)

    def describe(self) -> str:
        """Return where the change is, and its lines before and after."""
        before = self.path.read_text().splitlines()
        changed = [
            line.strip() if line[0] == " " else f"{line[0]} {line[1:].strip()}"
            for line in difflib.unified_diff(before, self.source.splitlines(), lineterm="", n=0)
            if line[:2] not in {"--", "++", "@@"}
        ]
        return "\n".join((f"{self.path}:{self.line} {self.operator_name}", *(f"    {line}" for line in changed)))


def operators() -> Iterator[tuple[str, Operator]]:
    """Yield the operators with their names."""
    for name in REPLACEMENTS:
        yield name, cosmic_ray.plugins.get_operator(f"core/{name}")()
    yield "CallRemover", CallRemover()


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module, except those of declarations, which tests cannot or need not notice."""
    source = path.read_text()
    excluded = _declarations(source)
    tree = get_ast(source)
    for name, operator in operators():
        positions = [start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(positions):
            if not any(start <= (line, column) < end for start, end in excluded):
                yield Mutant(path, line, name, operator, occurrence)


def _declarations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where annotations, decorators and the options of classes (`frozen=True`) are."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            found += [*node.decorator_list, *(each.value for each in node.keywords)]
    return [
        ((each.lineno, each.col_offset), (each.end_lineno or 0, each.end_col_offset or 0))
        for each in found
        if each is not None
    ]


class MutantImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from the source of a mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a specification for the mutated module only."""
        if fullname != self._mutant.module:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=str(self._mutant.path))

    def exec_module(self, module: ModuleType) -> None:
        """Execute the mutated source."""
        exec(compile(self._mutant.source, self._mutant.path, "exec"), module.__dict__)


class Refusal(importlib.abc.MetaPathFinder):
    """Fails the import of some modules, so that nothing that depends on them is preloaded."""

    def __init__(self, modules: frozenset[str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Raise for a refused module."""
        if fullname in self._modules:
            raise ImportError(fullname)
        return None


def run(tests: Sequence[str], mutant: Mutant | None) -> tuple[bool, list[str]]:
    """Run the tests in a forked process; return whether they pass, and the modules that they load."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _test(tests, mutant, writer)
    os.close(writer)
    with os.fdopen(reader) as loaded:
        status = _wait(child)
        return status == 0, loaded.read().split() if status == 0 else []


def _test(tests: Sequence[str], mutant: Mutant | None, report: int) -> None:
    """Run the tests and end the process with their result."""
    os.setsid()
    _end_with_parent()
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    code = 2
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2) if mutant else (0,):
            os.dup2(nowhere, stream)
        if mutant is not None:
            sys.meta_path.insert(0, MutantImporter(mutant))
        code = int(pytest.main([*PYTEST_OPTIONS, *tests]))
        if mutant is None:
            os.write(report, "\n".join(name for name in sys.modules if name != "__main__").encode())
    finally:
        os._exit(code)


def _end_with_parent() -> None:
    """End this process when its parent ends: a mutant that hangs must not outlive an interrupted run."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _wait(child: int) -> int:
    """Wait for a process that leads its own group, and end whatever is left of the group."""
    deadline = time.monotonic() + SECONDS_MAX
    done, status = os.waitpid(child, os.WNOHANG)
    while not done and time.monotonic() < deadline:
        time.sleep(0.02)
        done, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def preload(names: Sequence[str], target: Target) -> None:
    """Import what the tests load, without what depends on a module to mutate."""
    modules = frozenset(".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in target.modules())
    refusal = Refusal(modules)
    sys.meta_path.insert(0, refusal)
    for name in names:
        if not name.startswith(("tests", "conftest", "test_")):
            # What cannot be imported here is imported by each process.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    sys.meta_path.remove(refusal)


def test_target(name: str, chosen: Sequence[Mutant], *, quick: bool) -> list[Mutant]:
    """Test mutants of a target, print the result, and return the survivors."""
    target = TARGETS[name]
    slow_tests = () if quick else target.slow_tests
    passed, loaded = run(target.tests, None)
    if not passed:
        raise SystemExit(f"{name}: the tests fail without a mutation")
    preload(loaded, target)
    if not run(target.tests, Mutant(target.modules()[0], 0, "", CallRemover(), -1))[0]:
        raise SystemExit(f"{name}: the tests fail with modules that were loaded before")
    survivors: list[Mutant] = []
    for number, mutant in enumerate(chosen, 1):
        survived = run(target.tests, mutant)[0] and (not slow_tests or run(slow_tests, mutant)[0])
        if survived:
            survivors.append(mutant)
            print(mutant.describe(), flush=True)
        if number % 20 == 0:
            print(f"{name}: {number} of {len(chosen)} tested, {len(survivors)} survived", flush=True)
    killed = len(chosen) - len(survivors)
    seconds = os.times().children_user + os.times().children_system
    print(f"{name}: {len(chosen)} mutants, {killed} killed, {len(survivors)} survived; {seconds:.0f} s CPU", flush=True)
    return survivors


def main() -> None:
    """Test a sample of the mutants of each target in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--mutants", type=int, help="sample size; default: that of the target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at", action="append", default=[], metavar="PATH:LINE", help="all mutants of a line instead")
    parser.add_argument("--quick", action="store_true", help="run only the quick tests")
    options = parser.parse_args()
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    for name in options.targets or TARGETS:
        every = [mutant for path in TARGETS[name].modules() for mutant in mutants(path)]
        if options.at:
            chosen = [mutant for mutant in every if f"{mutant.path}:{mutant.line}" in options.at]
        else:
            count = options.mutants or TARGETS[name].mutants
            chosen = random.Random(options.seed).sample(every, min(count, len(every)))
        print(f"{name}: {len(every)} mutants, of which {len(chosen)} are tested", flush=True)
        child = os.fork()
        if child == 0:
            _end_with_parent()
            test_target(name, chosen, quick=options.quick)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
