"""Types and values of a custom resource, from its structural schema."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dray.api.document import Document
from dray.cel import types
from dray.cel.errors import CELRuntimeError
from dray.cel.lexer import KEYWORDS, RESERVED
from dray.cel.library.times import parse_duration, parse_timestamp
from dray.cel.types import Field, Type
from dray.cel.values import MapList, SetList

Converter = Callable[[Any], Any]

# The maximum size of a request, which bounds whatever declares no bound.
_REQUEST_BYTES_MAX: Final = 3 * 1024 * 1024
_TEXT_LENGTH_MAX: Final = _REQUEST_BYTES_MAX - 2
# maxLength counts code points, sizes are bytes.
_CODE_POINT_BYTES_MAX: Final = 4
# Serialized sizes: the shortest JSON values, and the quotes, colon and comma of a key.
_MIN_SIZES: Final = {"boolean": 4, "integer": 1, "number": 1, "string": 2, "array": 2, "object": 2}
_MIN_FORMAT_SIZES: Final = {"duration": 3, "date": 12, "date-time": 21}
_KEY_OVERHEAD: Final = 6
_FORMAT_LENGTHS: Final = {"duration": 32, "date": 12, "date-time": 32}

_ACCESSIBLE: Final = re.compile(r"[a-zA-Z_.\-/][a-zA-Z0-9_.\-/]*", re.ASCII)
_ESCAPES: Final = re.compile(r"__|[.\-/]")
_ESCAPED: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_RESERVED: Final = KEYWORDS | RESERVED


def escape_property(name: str) -> str | None:
    """Return the identifier by which an expression accesses a property, None if it cannot."""
    if _ACCESSIBLE.fullmatch(name) is None:
        return None
    if name in _RESERVED:
        return f"__{name}__"
    return _ESCAPES.sub(lambda match: _ESCAPED[match[0]], name)


def schema_type(schema: Document, *, is_root: bool = False) -> Type | None:
    """Return the type of a schema's values, None when expressions cannot access them."""
    if schema.get("x-kubernetes-int-or-string"):
        return types.DYN.sized(_text_bound(schema.get("maxLength"), _TEXT_LENGTH_MAX))
    builder = _BUILDERS.get(schema.get("type", ""))
    if builder is None:
        return None
    if is_root or schema.get("x-kubernetes-embedded-resource"):
        schema = _with_object_fields(schema)
    return builder(schema)


def _with_object_fields(schema: Document) -> Document:
    """Return the schema with the fields of every object; its own declarations count only if it has all of them."""
    declared = schema.get("properties") or {}
    metadata = declared.get("metadata") or {}
    names = metadata.get("properties") or {}
    wanted = (declared.get("apiVersion"), declared.get("kind"), names.get("name"), names.get("generateName"))
    if metadata.get("type") == "object" and all((item or {}).get("type") == "string" for item in wanted):
        return schema
    text = {"type": "string"}
    metadata = {"type": "object", "properties": {"name": text, "generateName": text}}
    return {**schema, "properties": {**declared, "apiVersion": text, "kind": text, "metadata": metadata}}


def _object_type(schema: Document) -> Type | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        value = schema_type(additional)
        if value is None:
            return None
        most = (_REQUEST_BYTES_MAX - 2) // (_min_size(additional) + _KEY_OVERHEAD)
        # Kubernetes charges nothing for keys.
        return types.map_of(types.STRING.sized(0), value, _bound(schema.get("maxProperties"), most))
    fields: dict[str, Field] = {}
    for name, property_schema in (schema.get("properties") or {}).items():
        escaped, declared = escape_property(name), schema_type(property_schema)
        if escaped is not None and declared is not None:
            fields[escaped] = Field(declared, name)
            if name in RESERVED:
                # Words that are only reserved can also follow a dot as they are.
                fields.setdefault(name, fields[escaped])
    # Kubernetes charges nothing for comparing whole objects, so that `self == oldSelf` needs no bounds.
    return types.object_type("object", fields).sized(0)


def _list_type(schema: Document) -> Type | None:
    items = schema.get("items")
    element = schema_type(items) if isinstance(items, dict) else None
    if element is None or not isinstance(items, dict):
        return None
    most = (_REQUEST_BYTES_MAX - 2) // (_min_size(items) + 1)
    return types.list_of(element, _bound(schema.get("maxItems"), most))


def _string_type(schema: Document) -> Type:
    form = schema.get("format")
    if form == "duration":
        return types.DURATION.sized(_FORMAT_LENGTHS[form])
    if form in ("date", "date-time"):
        return types.TIMESTAMP.sized(_FORMAT_LENGTHS[form])
    if form == "byte":
        return types.BYTES.sized(_bound(schema.get("maxLength"), _TEXT_LENGTH_MAX))
    texts = [value for value in schema.get("enum") or () if isinstance(value, str)]
    longest = max((len(text.encode()) for text in texts), default=0)
    return types.STRING.sized(_text_bound(schema.get("maxLength"), longest if schema.get("enum") else _TEXT_LENGTH_MAX))


def _bound(declared: Any, otherwise: int) -> int:
    return max(0, int(declared)) if declared is not None else otherwise


def _text_bound(declared: Any, otherwise: int) -> int:
    return otherwise if declared is None else _bound(declared, 0) * _CODE_POINT_BYTES_MAX


def _min_size(schema: Document) -> int:
    """Return the minimum serialized size of a value: its brackets and its required content."""
    if schema.get("x-kubernetes-int-or-string"):
        return 1
    kind = schema.get("type", "")
    size = _MIN_SIZES.get(kind, 1)
    if kind == "string":
        return _MIN_FORMAT_SIZES.get(schema.get("format", ""), size)
    if kind == "object" and not isinstance(schema.get("additionalProperties"), dict):
        properties = schema.get("properties") or {}
        for name in dict.fromkeys(schema.get("required") or ()):
            required = properties.get(name)
            if required is not None and required.get("default") is None and schema_type(required) is not None:
                size += len(name.encode()) + 4 + _min_size(required)
    return size


def cardinality_max(schema: Document) -> int:
    """Return how many values of the schema a request can have at most."""
    return _REQUEST_BYTES_MAX // (_min_size(schema) + 1)


_BUILDERS: Final[Mapping[str, Callable[[Document], Type | None]]] = {
    "object": _object_type,
    "array": _list_type,
    "string": _string_type,
    # Kubernetes declares no size of scalars, so that comparing fields of these types costs nothing.
    "boolean": lambda _: types.BOOL.sized(0),
    "integer": lambda _: types.INT.sized(0),
    "number": lambda _: types.DOUBLE.sized(0),
}


# --- Values.


def converter_of(schema: Document) -> Converter | None:
    """Return the converter from JSON to values of the language, None when none is needed."""
    kind = schema.get("type")
    if kind == "number" and not schema.get("x-kubernetes-int-or-string"):
        return _to_double
    if kind == "string":
        return _STRING_CONVERTERS.get(schema.get("format", ""))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return _list_converter(schema)
    if kind == "object":
        return _object_converter(schema)
    return None


def _object_converter(schema: Document) -> Converter | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        element = converter_of(additional)
        return None if element is None else lambda value: _convert_values(value, element)
    properties = schema.get("properties") or {}
    found = {name: converter_of(inner) for name, inner in properties.items()}
    converters = {name: converter for name, converter in found.items() if converter is not None}
    nullable = tuple(name for name, inner in properties.items() if inner.get("nullable"))
    if nullable:
        return lambda value: _convert_fields(_without_nulls(value, nullable), converters)
    return (lambda value: _convert_fields(value, converters)) if converters else None


def _without_nulls(value: Any, nullable: tuple[str, ...]) -> Any:
    """Return an object without its fields that are null: they count as absent."""
    if not isinstance(value, dict) or all(value.get(name, value) is not None for name in nullable):
        return value
    return {name: item for name, item in value.items() if item is not None}


def _list_converter(schema: Document) -> Converter | None:
    element = converter_of(schema["items"])
    wrap = _wrapper(schema)
    if element is None and wrap is None:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        items = value if element is None else [element(item) for item in value]
        return items if wrap is None else wrap(items)

    return convert


def _wrapper(schema: Document) -> Callable[[list[Any]], list[Any]] | None:
    """Return the constructor of a set or map list."""
    list_type = schema.get("x-kubernetes-list-type")
    if list_type == "set":
        return SetList
    if list_type == "map":
        keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
        return lambda items: MapList(items, keys)
    return None


def _convert_values(value: Any, element: Converter) -> Any:
    return {key: element(item) for key, item in value.items()} if isinstance(value, dict) else value


def _convert_fields(value: Any, converters: Mapping[str, Converter]) -> Any:
    if not isinstance(value, dict):
        return value
    return value | {name: convert(value[name]) for name, convert in converters.items() if name in value}


def _to_double(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _text_converter(parse: Callable[[str], Any], what: str) -> Converter:
    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except (CELRuntimeError, ValueError, binascii.Error):
            raise CELRuntimeError(f"Invalid {what} format") from None

    return convert


_STRING_CONVERTERS: Final[Mapping[str, Converter]] = {
    "date-time": _text_converter(parse_timestamp, "date-time"),
    "date": _text_converter(lambda text: parse_timestamp(f"{text}T00:00:00Z"), "date"),
    "duration": _text_converter(parse_duration, "duration"),
    "byte": _text_converter(lambda text: base64.b64decode(text, validate=True), "byte"),
}
