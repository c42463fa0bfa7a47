"""Strategic merge patch: a merge patch with rules for the merge and order of lists.

Lists are merged when the field's strategy says so: objects by their merge key, scalars as sets. Directives in the patch
(`$patch`, `$retainKeys`, `$setElementOrder/<list>`, `$deleteFromPrimitiveList/<list>`) control the merge and are not
part of the result. Order: `$setElementOrder`, else the patch's order, wins; items that only the server has keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from dray.api.document import Document
from dray.api.errors import BadRequestError, PatchFailedError, PatchRejectedError
from dray.api.schema.model import Field, ListOf, MapOf, Scalar, StructType, Type
from dray.apiserver.patch import go_text
from dray.apiserver.patch.go_text import GoJSONError, json_kind, loads
from dray.apiserver.patch.merge_patch import without_nulls
from dray.lib.processor_time import ticking

_PATCH: Final = "$patch"
_RETAIN_KEYS: Final = "$retainKeys"
_SET_ORDER: Final = "$setElementOrder"
_DELETE_SCALARS: Final = "$deleteFromPrimitiveList"

_BAD_RETAIN_KEYS: Final = "invalid patch format of retainKeys"
_BAD_SET_ORDER: Final = "invalid patch format of setElementOrder list"
_BAD_DELETE_SCALARS: Final = "invalid patch format of primitive list"

_List: TypeAlias = list[Any]
# Stands for a value deleted by `$patch: delete`.
_GONE: Final = object()


def decode(body: bytes) -> Document:
    """Decode a patch body, which must be an object."""
    try:
        patch = loads(body)
    except GoJSONError as error:
        raise BadRequestError(str(error)) from None
    if patch is None:
        return {}
    if not isinstance(patch, dict):
        raise BadRequestError(
            f"json: cannot unmarshal {json_kind(patch)} into Go value of type map[string]interface {{}}"
        )
    return patch


def apply(document: Document, patch: Document, struct: StructType) -> Document:
    """Return the patched document; parts that the patch does not touch are shared, not copied."""
    return _merge_map(document, patch, struct)


def _merge_map(original: Document, patch: Document, kind: Type) -> Document:
    if _PATCH in patch:
        return _directed_map(patch)
    merged = _retain_keys(original, patch)
    ordered = _merge_ordered_lists(merged, original, patch, kind)
    for name, change in ticking(patch.items()):
        if name == _RETAIN_KEYS or name in ordered or name.startswith(_SET_ORDER):
            continue
        if name.startswith(_DELETE_SCALARS):
            _delete_scalars(merged, name, change, kind)
        else:
            _merge_member(merged, name, change, kind)
    return merged


def _directed_map(patch: Document) -> Document:
    directive = patch[_PATCH]
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != _PATCH}
    if directive == "delete":
        return {}
    raise _unknown_directive(directive, patch)


def _unknown_directive(directive: Any, patch: Document) -> PatchFailedError:
    return PatchFailedError(f"unknown patch type: {go_text.plain(directive)} in map: {go_text.plain(patch)}")


def _retain_keys(original: Document, patch: Document) -> Document:
    """Return a shallow copy of the original, with only the retained members if the patch lists them."""
    if _RETAIN_KEYS not in patch:
        return dict(original)
    retained = patch[_RETAIN_KEYS]
    if not isinstance(retained, list):
        raise BadRequestError(_BAD_RETAIN_KEYS)
    retained = {name for name in retained if isinstance(name, str)}
    for name, value in patch.items():
        if value is None or name == _RETAIN_KEYS or name.startswith((_DELETE_SCALARS, _SET_ORDER)):
            continue
        if name not in retained:
            raise BadRequestError(_BAD_RETAIN_KEYS)
    return {name: value for name, value in original.items() if name in retained}


def _merge_member(merged: Document, name: str, change: Any, kind: Type) -> None:
    if change is None:
        merged.pop(name, None)
        return
    current = merged.get(name)
    if isinstance(current, dict) and isinstance(change, dict):
        field = _field(kind, name)
        replaces = field is not None and "replace" in field.patch_strategies
        merged[name] = change if replaces else _merge_map(current, change, _member_type(kind, name))
    elif isinstance(current, list) and isinstance(change, list):
        merged[name] = _merge_list_field(current, change, _field(kind, name))
    else:
        _take(merged, name, change)


def _take(merged: Document, name: str, change: Any) -> None:
    """Set a value that has no counterpart in the original."""
    value = _without_directives(without_nulls(change))
    if value is _GONE:
        merged.pop(name, None)
    else:
        merged[name] = value


def _without_directives(value: Any) -> Any:
    if isinstance(value, list):
        kept = (_without_directives(item) for item in value if not _is_list_directive(item))
        return [item for item in kept if item is not _GONE]
    if not isinstance(value, dict):
        return value
    if value.get(_PATCH) == "delete":
        return _GONE
    kept_members = {
        name: _without_directives(item)
        for name, item in value.items()
        if name not in (_PATCH, _RETAIN_KEYS) and not name.startswith((_SET_ORDER + "/", _DELETE_SCALARS + "/"))
    }
    return {name: item for name, item in kept_members.items() if item is not _GONE}


def _is_list_directive(item: Any) -> bool:
    return isinstance(item, dict) and item.keys() == {_PATCH}


# --- Types.


def _field(kind: Type, name: str) -> Field | None:
    return kind.fields.get(name) if isinstance(kind, StructType) else None


def _member_type(kind: Type, name: str) -> Type:
    if isinstance(kind, MapOf):
        return kind.element
    field = _field(kind, name)
    return Scalar.ANY if field is None else field.type


def _element_type(field: Field) -> Type:
    return field.type.element if isinstance(field.type, ListOf) else Scalar.ANY


# --- Lists.


def _merge_list_field(current: _List, change: _List, field: Field | None) -> _List:
    if field is None or "merge" not in field.patch_strategies:
        return change
    return _merge_list(current, change, field)


def _merge_list(original: _List, patch: _List, field: Field) -> _List:
    if not original and not patch:
        return original
    merge_key = field.patch_merge_key
    if not _elements_are_objects(original, patch):
        return arrange(list(dict.fromkeys([*original, *patch])), patch, original, "")
    if not merge_key:
        raise PatchFailedError("cannot merge lists without merge key for type struct")
    original, patch = _apply_list_directives(original, patch, merge_key)
    return arrange(_merge_items(original, patch, field), patch, original, merge_key)


def _elements_are_objects(*lists: _List) -> bool:
    kinds = {json_kind(item) for items in lists for item in items}
    if "array" in kinds:
        raise PatchRejectedError("lists of lists are not supported")
    if any(None in items for items in lists):
        raise PatchRejectedError("null elements of lists are not supported")
    if len(kinds) > 1:
        raise PatchFailedError(f"list element types are not identical: {go_text.plain(list(lists))}")
    return kinds == {"object"}


def _apply_list_directives(original: _List, patch: _List, merge_key: str) -> tuple[_List, _List]:
    """Return the original without what the patch deletes, and the patch without its directives."""
    kept: _List = []
    deleted: set[Any] = set()
    replace = False
    for item in patch:
        directive = item.get(_PATCH)
        if _PATCH not in item:
            kept.append(item)
        elif directive == "delete":
            deleted.add(_identity(_key_of(item, merge_key)))
        elif directive == "replace":
            replace = True
        elif directive == "merge":
            raise PatchFailedError("merging lists cannot yet be specified in the patch")
        else:
            raise _unknown_directive(directive, item)
    if replace:
        return kept, []
    return [element for element in original if _identity(element.get(merge_key)) not in deleted], kept


def _key_of(item: Any, merge_key: str) -> Any:
    if not isinstance(item, dict):
        raise PatchFailedError(f"expected a map[string]interface {{}}, but received a {go_text.type_name(item)}")
    # A list or map is not a valid key and equals nothing.
    if isinstance(item.get(merge_key, {}), dict | list):
        raise PatchFailedError(f"map: {go_text.plain(item)} does not contain declared merge key: {merge_key}")
    return item[merge_key]


def _merge_items(original: _List, patch: _List, field: Field) -> _List:
    """Merge the patch's items into those with the same key, the first of each; in linear time."""
    merged = list(original)
    positions = _ranks([_identity(element.get(field.patch_merge_key)) for element in merged])
    for item in patch:
        key = _identity(_key_of(item, field.patch_merge_key))
        position = positions.get(key)
        if position is None:
            positions[key] = len(merged)
            merged.append(_without_directives(without_nulls(item)))
        else:
            merged[position] = _merge_map(merged[position], item, _element_type(field))
    return merged


def _identity(key: Any) -> Any:
    """Return what a merge key is looked up by; a list or map equals no key of a patch."""
    return id(key) if isinstance(key, dict | list) else ("", key)


def _delete_scalars(merged: Document, name: str, deleted: Any, kind: Type) -> None:
    target = _list_name(name, _DELETE_SCALARS, _BAD_DELETE_SCALARS)
    if deleted is None:
        merged.pop(target, None)
        return
    current = merged.get(target)
    if not isinstance(current, list) or not isinstance(deleted, list):
        return
    field = _field(kind, target)
    if field is None or "merge" not in field.patch_strategies:
        merged[target] = deleted
    elif current or deleted:
        # For a list of objects the patch may be a list of deletions.
        objects = _elements_are_objects(current, deleted)
        merged[target] = _merge_list(current, deleted, field) if objects else _difference(current, deleted)


def _difference(current: _List, deleted: _List) -> _List:
    gone = set(deleted)
    return [item for item in current if item not in gone]


def _list_name(name: str, prefix: str, message: str) -> str:
    head, _, target = name.partition("/")
    if head != prefix or not target:
        raise BadRequestError(message)
    return target


# --- $setElementOrder.


def _merge_ordered_lists(merged: Document, original: Document, patch: Document, kind: Type) -> set[str]:
    """Merge the lists whose order the patch specifies; return their names."""
    done: set[str] = set()
    for name, order in patch.items():
        if not name.startswith(_SET_ORDER):
            continue
        if not isinstance(order, list):
            raise PatchFailedError(f"expected a []interface {{}}, but received a {go_text.type_name(order)}")
        target = _list_name(name, _SET_ORDER, _BAD_SET_ORDER)
        if target not in merged and target not in patch:
            continue
        _merge_ordered_list(merged, target, patch, (order, kind))
        done.add(target)
    return done


def _merge_ordered_list(merged: Document, target: str, patch: Document, context: tuple[_List, Type]) -> None:
    order, kind = context
    field = _field(kind, target)
    if field is None:
        raise PatchFailedError(f'unable to find api field in struct {_short_name(kind)} for the json field "{target}"')
    current, change = merged.get(target, []), patch.get(target, [])
    for value in (current, change):
        if not isinstance(value, list):
            raise PatchFailedError(f"expected a []interface {{}}, but received a {go_text.type_name(value)}")
    _check_order(change, order, field.patch_merge_key)
    if target not in patch:
        combined = list(current)
    elif target not in merged:
        combined = _without_directives(without_nulls(change))
    else:
        combined = _merge_list_field(current, change, field)
    if field.patch_merge_key:
        for item in (*combined, *order):
            _key_of(item, field.patch_merge_key)
    merged[target] = arrange(combined, order, current, field.patch_merge_key)


def _short_name(kind: Type) -> str:
    return kind.name.rpartition(".")[2] if isinstance(kind, StructType) else ""


def _check_order(change: _List, order: _List, merge_key: str) -> None:
    """Check that the patch's items occur in the specified order; deletions need not."""
    if not order or not change:
        return
    if merge_key:
        wanted = [_key_of(item, merge_key) for item in change if not (isinstance(item, dict) and _PATCH in item)]
    else:
        wanted = change
    getter = key_getter(merge_key)
    remaining = iter([_key_of(item, merge_key) if merge_key else getter(item) for item in order])
    if not all(item in remaining for item in wanted):
        raise PatchFailedError(
            f"The order in patch list:\n{go_text.plain(change)}\n doesn't match {_SET_ORDER} list:\n"
            f"{go_text.plain(order)}\n"
        )


def key_getter(merge_key: str) -> Callable[[Any], Any]:
    """Return the identity function of elements: the value of the merge key, or the element itself."""
    if not merge_key:
        return lambda item: item
    return lambda item: item.get(merge_key) if isinstance(item, dict) else None


def arrange(merged: list[Any], wanted: list[Any], live: list[Any], merge_key: str) -> list[Any]:
    """Return the merged elements in the order of `wanted` and `live`.

    Elements of the patch are in the wanted order, the others in the live order. An element that only the server has
    comes before the first wanted one that followed it in the live list; the wanted order wins conflicts.
    """
    key = key_getter(merge_key)
    wanted_rank = _ranks([key(item) for item in wanted])
    live_rank = _ranks([key(item) for item in live])
    named = sorted((item for item in merged if key(item) in wanted_rank), key=lambda item: wanted_rank[key(item)])
    others = [item for item in merged if key(item) not in wanted_rank]
    others.sort(key=lambda item: live_rank.get(key(item), len(live_rank)))
    return _interleave(
        others, named, [live_rank.get(key(item)) for item in others], [live_rank.get(key(i)) for i in named]
    )


def _ranks(keys: list[Any]) -> dict[Any, int]:
    ranks: dict[Any, int] = {}
    for position, key in enumerate(keys):
        ranks.setdefault(key, position)
    return ranks


def _interleave(
    left: list[Any], right: list[Any], left_ranks: list[int | None], right_ranks: list[int | None]
) -> list[Any]:
    """Merge two sorted lists; an element of `left` goes first only where the live list says so."""
    result: list[Any] = []
    position = 0
    for item, rank in zip(right, right_ranks, strict=True):
        while position < len(left) and _is_before(left_ranks[position], rank):
            result.append(left[position])
            position += 1
        result.append(item)
    return result + left[position:]


def _is_before(left: int | None, right: int | None) -> bool:
    return left is not None and right is not None and left < right
