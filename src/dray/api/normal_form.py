"""Recognizes parts of objects that strict decoding leaves as they are.

Nearly every part that a client sends is in this form already: all fields known and of their type, none null or empty
where Go would omit it, times and quantities as Go writes them. One conversion by msgspec finds that out several times
faster than a traversal. It may miss a part in normal form, never accept another, so that `strict` decides on the rest.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from dray.api.schema.model import Field, MapOf, Scalar, StructType, Type
from dray.api.shorthands import SHORTHANDS
from dray.api.strict_scalars import SCALARS, Check


class _ScalarForm:
    """The normal text of a scalar."""

    scalar: ClassVar[Scalar]


class _Time(_ScalarForm):
    scalar = Scalar.TIME


class _MicroTime(_ScalarForm):
    scalar = Scalar.MICRO_TIME


class _Quantity(_ScalarForm):
    scalar = Scalar.QUANTITY


# The same times and quantities recur in the writes of an object. Called by msgspec, which needs an instance as result.
@lru_cache(maxsize=4096, typed=True)
def _scalar_form(form: type[_ScalarForm], value: Any) -> _ScalarForm:
    """Return a value if the text is in normal form; raises ValueError otherwise."""
    if type(value) is not str or SCALARS[form.scalar](value, []) is not value:
        raise ValueError(form.scalar)
    return form()


# Scalars that keep their zero value.
_SCALARS: Final[dict[Scalar, Any]] = {
    Scalar.STRING: str,
    Scalar.DURATION: str,
    Scalar.BOOL: bool,
    Scalar.INT32: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)],
    Scalar.INT64: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
    Scalar.TIME: _Time,
    Scalar.MICRO_TIME: _MicroTime,
    Scalar.QUANTITY: _Quantity,
    Scalar.ANY: Any,
}
# A field of any type: null is a value in a list or map, and drops a field.
_ANY_BUT_NULL: Final = str | bool | int | float | list | dict
# Scalars whose zero value is omitted; of the others no value is recognized.
_NONZERO_SCALARS: Final[dict[Scalar, Any]] = _SCALARS | {
    Scalar.STRING: Annotated[str, Meta(min_length=1)],
    Scalar.INT32: Annotated[int, Meta(ge=1, le=2**31 - 1)],
    Scalar.INT64: Annotated[int, Meta(ge=1, le=2**63 - 1)],
    Scalar.BOOL: None,
}


def unless_normal(struct: StructType, kept_empty: Collection[tuple[str, str]], check: Check) -> Check:
    """Return the check of messages of a built-in type, which is left out for JSON values in normal form.

    `kept_empty` has the lists, by type and field, that stay when they are empty.
    """
    form = _Forms(kept_empty).of_struct(struct, ())

    def check_other(value: Any, unknown: list[str]) -> Any:
        try:
            msgspec.convert(value, form, dec_hook=_scalar_form)  # type: ignore[arg-type]  # types are hashable
        except msgspec.ValidationError:
            # Checked below, so that errors of the check do not refer to this one.
            pass
        else:
            return value
        return check(value, unknown)

    return check if form is None else check_other


class _Forms:
    """Makes the msgspec types of normal values; None for a type of which no value is recognized."""

    def __init__(self, kept_empty: Collection[tuple[str, str]]) -> None:
        self._kept_empty = kept_empty
        self._structs: dict[str, Any] = {}

    def of_struct(self, struct: StructType, above: tuple[str, ...]) -> Any:
        """Return the form of a message; `above` has the names of those that contain it."""
        if struct.name in SHORTHANDS or struct.name in above:
            return None
        if struct.name not in self._structs:
            self._structs[struct.name] = self._new_struct(struct, (*above, struct.name))
        return self._structs[struct.name]

    def _new_struct(self, struct: StructType, above: tuple[str, ...]) -> Any:
        members: list[tuple[str, Any] | tuple[str, Any, None]] = []
        names: dict[str, str] = {}
        for index, field in enumerate(struct.fields.values()):
            form = self._of_field(struct, field, above)
            is_added = field.always and isinstance(field.type, StructType)
            if form is None and is_added:
                return None
            if form is not None:
                # Not all names of fields are identifiers.
                name = f"field_{index}"
                names[name] = field.name
                members.append((name, form) if is_added else (name, form, None))
        return msgspec.defstruct(
            struct.name.rpartition(".")[2], members, rename=names, kw_only=True, forbid_unknown_fields=True, gc=False
        )

    def _of_field(self, struct: StructType, field: Field, above: tuple[str, ...]) -> Any:
        kind = field.type
        if isinstance(kind, StructType):
            return self.of_struct(kind, above)
        if kind is Scalar.ANY:
            return _ANY_BUT_NULL
        if isinstance(kind, Scalar):
            keeps_zero = field.required or field.pointer or field.default is not None
            return (_SCALARS if keeps_zero else _NONZERO_SCALARS).get(kind)
        form = self._of_value(kind, above)
        if form is None or field.required or (struct.name, field.name) in self._kept_empty:
            return form
        return Annotated[form, Meta(min_length=1)]

    def _of_value(self, kind: Type, above: tuple[str, ...]) -> Any:
        if isinstance(kind, Scalar):
            return _SCALARS.get(kind)
        if isinstance(kind, StructType):
            return self.of_struct(kind, above)
        element = self._of_value(kind.element, above)
        if element is None:
            return None
        return GenericAlias(dict, (str, element)) if isinstance(kind, MapOf) else GenericAlias(list, (element,))
