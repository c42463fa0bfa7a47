"""Merge of an applied configuration into a live object: by shape, the configuration wins at the leaves.

Lists of items with keys are merged item by item. Their order: shared items in the configuration's order; items of only
one side stay behind the shared item that they follow there, live ones first.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from dray.api.document import Document
from dray.api.schema.model import StructType
from dray.apiserver.patch.managed_fields.shape import MISSING, Form, Shape, struct_shape
from dray.apiserver.patch.managed_fields.walk import element_of
from dray.lib.processor_time import tick, ticking

_MERGED: Final = frozenset({Form.MAP, Form.SET, Form.KEYED})


def merge(live: Document, config: Document, struct: StructType) -> Document:
    """Return the live object with the configuration's fields; unchanged parts are shared, arguments are not changed."""
    return _merge_maps(live, config, struct_shape(struct))


def _merge_values(live: Any, config: Any, shape: Shape) -> Any:
    if config is None and live and shape.form in _MERGED and isinstance(live, shape.walked):
        # Null is an empty list or map, to which nothing is added.
        return live
    if not isinstance(config, shape.walked) or not isinstance(live, shape.walked):
        return config
    return _merge_maps(live, config, shape) if shape.is_map else _merge_lists(live, config, shape)


def _merge_maps(live: Document, config: Document, shape: Shape) -> Document:
    merged = dict(live)
    slots = shape.slots
    for name, value in ticking(config.items()):
        slot = slots.get(name)
        if slot is None:
            merged[name] = _merge_values(live.get(name), value, shape.item)
        else:
            merged[name] = value if slot.is_leaf else _merge_values(live.get(name), value, slot.shape)
    return merged


def _merge_lists(live: list[Any], config: list[Any], shape: Shape) -> list[Any]:
    if not live or not config:
        return live or config
    lefts = [(element_of(item, shape) or "", item) for item in ticking(live)]
    rights = [(element_of(item, shape) or "", item) for item in ticking(config)]
    return [item for _, item in _ListMerge(lefts, rights, shape.item).run()]


class _ListMerge:
    """One merge of two lists of (path element, item)."""

    def __init__(self, lefts: list[tuple[str, Any]], rights: list[tuple[str, Any]], shape: Shape) -> None:
        self._lefts, self._rights, self._shape = lefts, rights, shape
        self._live: dict[str, Any] = {}
        for element, item in ticking(lefts):
            # Live items with duplicate keys cannot be merged; the configuration's item replaces them.
            self._live[element] = MISSING if element in self._live else item
        self._applied = {element for element, _ in rights}
        self._shared = deque(element for element, _ in rights if element in self._live)
        self._merged: set[str] = set()
        self._out: list[tuple[str, Any]] = []

    def run(self) -> list[tuple[str, Any]]:
        """Merge both lists in one pass, keeping the live items that the configuration does not have."""
        left = right = 0
        while left < len(self._lefts) or right < len(self._rights):
            tick()
            if left < len(self._lefts):
                element, item = self._lefts[left]
                if element not in self._applied:
                    self._out.append((element, item))
                    left += 1
                    continue
                if self._passes(element, right):
                    left += 1
                    continue
                if element in self._merged:
                    left += 1
            if right < len(self._rights):
                left += self._take(right, left)
                right += 1
        return self._out

    def _passes(self, element: str, right: int) -> bool:
        """Report whether a shared live item is not the configuration's next one, so that it comes later."""
        if right >= len(self._rights) or self._rights[right][0] == element:
            return False
        return bool(self._shared) and self._shared[0] != element

    def _take(self, right: int, left: int) -> int:
        element, item = self._rights[right]
        self._out.append((element, _merge_values(self._live.get(element, MISSING), item, self._shape)))
        self._merged.add(element)
        if self._shared and self._shared[0] == element:
            self._shared.popleft()
        return int(left < len(self._lefts) and self._lefts[left][0] == element)
