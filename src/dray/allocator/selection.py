"""The selectors of a class and a request, and its derived attributes, evaluated for device contents."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dray.allocator.content import Content
from dray.allocator.derived_attributes import DerivedAttributes, DerivedFailure
from dray.cel.attribute_reads import attributes_read
from dray.cel.environments import CompiledSelector, DeviceView, compile_device_selector
from dray.cel.errors import CELError, CELRuntimeError

# Cached compiled expressions. Kubernetes caches 10; clusters use more, and each takes a few KB.
_COMPILED_MAX: Final = 1024
# Cached pairs of class and request selectors.
_GROUPS_MAX: Final = 4096
# Verdicts of a group that contents share; more would be of little use, since a cluster has few models of devices.
_SHARED_VERDICTS_MAX: Final = 256


# What follows the error about a missing attribute.
_NO_SUCH_KEY: Final = "no such key"
_OPTIONAL_HINT: Final = (
    ". consider using CEL optional chaining (.? followed by orValue()) "
    "or guarding the check with has() for optional fields"
)


@dataclass(frozen=True, slots=True)
class SelectorFailure:
    """A selector that failed; the owner is part of the error text, and for a runtime error the device."""

    of_class: bool
    index: int
    text: str
    at_runtime: bool


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first selector that is false for the device."""

    of_class: bool
    index: int
    expression: str


# A device that cannot be evaluated ends the attempt.
Failure = SelectorFailure | DerivedFailure
# None if all selectors match.
Verdict = Failure | Mismatch | None


class SelectorGroup:
    """The selectors of a class followed by those of a request, and derived attributes; equal texts are one group."""

    __slots__ = ("_ids_read", "_shared_verdicts", "class_expressions", "derived", "request_expressions")

    def __init__(
        self,
        class_expressions: tuple[str, ...],
        request_expressions: tuple[str, ...],
        derived: DerivedAttributes | None = None,
    ) -> None:
        self.class_expressions = class_expressions
        self.request_expressions = request_expressions
        self.derived = derived
        # The attributes on which the selectors may depend; None if on all of them.
        self._ids_read = attributes_of_selectors((*class_expressions, *request_expressions))
        # By what the selectors read of a content.
        self._shared_verdicts: dict[Hashable, SelectorFailure | Mismatch | None] = {}

    def verdict(self, content: Content) -> Verdict:
        """Return the verdict on a content; evaluated once."""
        verdicts = content.verdicts
        if self in verdicts:
            return verdicts[self]
        verdict: Verdict = self._selectors_verdict(content)
        if verdict is None and self.derived is not None:
            verdict = self.derived.failure(content)
        content.cache_verdict(self, verdict)
        return verdict

    def _selectors_verdict(self, content: Content) -> SelectorFailure | Mismatch | None:
        """Evaluate the selectors once for devices that differ only in other attributes, such as serial numbers."""
        read = None if self._ids_read is None else content.read_by(self._ids_read)
        if read is None:
            return self._evaluate(content)
        shared = self._shared_verdicts
        if read not in shared:
            if len(shared) >= _SHARED_VERDICTS_MAX:
                shared.clear()
            shared[read] = self._evaluate(content)
        return shared[read]

    def _evaluate(self, content: Content) -> SelectorFailure | Mismatch | None:
        view: DeviceView | None = None
        for of_class, expressions in ((True, self.class_expressions), (False, self.request_expressions)):
            for index, expression in enumerate(expressions):
                try:
                    selector = _compile(expression)
                except CELError as error:
                    text = f"CEL compile error: {error.detail}"
                    return SelectorFailure(of_class, index, text, at_runtime=False)
                try:
                    view = view or content.view()
                    matches = selector.evaluate(view)
                except CELRuntimeError as error:
                    text = f"CEL runtime error: {error}"
                    hint = _OPTIONAL_HINT if _NO_SUCH_KEY in text else ""
                    return SelectorFailure(of_class, index, text + hint, at_runtime=True)
                if not matches:
                    return Mismatch(of_class, index, expression)
        return None


@lru_cache(maxsize=_COMPILED_MAX)
def _compile(expression: str) -> CompiledSelector:
    """Compile a stored selector, which may use features whose gates are off now."""
    return compile_device_selector(expression)


def attributes_of_selectors(expressions: Iterable[str]) -> frozenset[str] | None:
    """Return the ids of the attributes on which the verdicts of selectors may depend; None if on all of them."""
    found: set[str] = set()
    for expression in expressions:
        try:
            selector = _compile(expression)
        except CELError:
            # It fails for every device.
            continue
        read = attributes_read(selector.program.root)
        if read is None:
            return None
        found |= read
    return frozenset(found)


_GroupKey = tuple[tuple[str, ...], tuple[str, ...], DerivedAttributes | None]


class SelectorGroups:
    """Interns the groups, so that claims of one template share their verdicts."""

    def __init__(self) -> None:
        self._groups: dict[_GroupKey, SelectorGroup] = {}

    def group(
        self,
        class_expressions: Sequence[str],
        request_expressions: Sequence[str],
        derived: DerivedAttributes | None = None,
    ) -> SelectorGroup:
        """Return the group with these texts."""
        key = (tuple(class_expressions), tuple(request_expressions), derived)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= _GROUPS_MAX:
                # Its verdicts are evicted by the bound of the contents.
                del self._groups[next(iter(self._groups))]
            group = self._groups[key] = SelectorGroup(*key)
        return group
