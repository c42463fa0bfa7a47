"""The selectors of a class and a request, evaluated for device contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from dray.allocator.content import Content, has_list
from dray.cel.environments import CompiledSelector, DeviceView, compile_device_selector, device_view
from dray.cel.errors import CELError, CELRuntimeError

# Cached compiled expressions. Kubernetes caches 10; clusters use more, and each takes a few KB.
_COMPILED_MAX: Final = 1024
# Cached pairs of class and request selectors.
_GROUPS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class SelectorFailure:
    """A selector that failed; the owner is part of the error text."""

    of_class: bool
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first selector that is false for the device."""

    of_class: bool
    index: int
    expression: str


# None if all selectors match.
Verdict = SelectorFailure | Mismatch | None


class SelectorGroup:
    """The selectors of a class followed by those of a request; equal texts are one group."""

    __slots__ = ("class_expressions", "list_attributes", "request_expressions")

    def __init__(
        self,
        class_expressions: tuple[str, ...],
        request_expressions: tuple[str, ...],
        *,
        list_attributes: bool,
    ) -> None:
        self.class_expressions = class_expressions
        self.request_expressions = request_expressions
        self.list_attributes = list_attributes

    def verdict(self, content: Content) -> Verdict:
        """Return the verdict on a content; evaluated once."""
        verdicts = content.verdicts
        if self in verdicts:
            return verdicts[self]
        verdict = self._evaluate(content)
        content.cache_verdict(self, verdict)
        return verdict

    def _evaluate(self, content: Content) -> Verdict:
        view: DeviceView | None = None
        for of_class, expressions in ((True, self.class_expressions), (False, self.request_expressions)):
            for index, expression in enumerate(expressions):
                try:
                    selector = _compile(expression)
                except CELError as error:
                    return SelectorFailure(of_class, index, f"CEL compile error: {error.detail}")
                try:
                    view = view or _view(content, list_attributes=self.list_attributes)
                    matches = selector.evaluate(view)
                except CELRuntimeError as error:
                    return SelectorFailure(of_class, index, f"CEL runtime error: {error}")
                if not matches:
                    return Mismatch(of_class, index, expression)
        return None


@lru_cache(maxsize=_COMPILED_MAX)
def _compile(expression: str) -> CompiledSelector:
    """Compile a stored selector, which may use features whose gates are off now."""
    return compile_device_selector(expression)


def _view(content: Content, *, list_attributes: bool) -> DeviceView:
    if not list_attributes:
        for name, attribute in content.attributes.items():
            if has_list(attribute):
                raise CELRuntimeError(f"attribute {name}: unsupported attribute value")
    document = {
        "attributes": msgspec.to_builtins(content.attributes),
        "capacity": msgspec.to_builtins(content.capacity),
        "allowMultipleAllocations": content.allow_multiple,
    }
    return device_view(content.driver, document)


class SelectorGroups:
    """Interns the groups, so that claims of one template share their verdicts."""

    def __init__(self, *, list_attributes: bool) -> None:
        self._list_attributes = list_attributes
        self._groups: dict[tuple[tuple[str, ...], tuple[str, ...]], SelectorGroup] = {}

    def group(self, class_expressions: Sequence[str], request_expressions: Sequence[str]) -> SelectorGroup:
        """Return the group with these texts."""
        key = (tuple(class_expressions), tuple(request_expressions))
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= _GROUPS_MAX:
                # Its verdicts are evicted by the bound of the contents.
                del self._groups[next(iter(self._groups))]
            group = self._groups[key] = SelectorGroup(*key, list_attributes=self._list_attributes)
        return group
