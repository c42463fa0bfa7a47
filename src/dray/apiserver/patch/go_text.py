"""Values in the format of Go's `fmt` and `encoding/json`, which the messages of failed patches quote."""

from __future__ import annotations

import json
from typing import Any

import orjson

from dray.api.errors import BadRequestError
from dray.api.limits import DEPTH_EXCEEDED, is_too_deep
from dray.api.parse import GO_EXPONENT_MIN, ParseError, check_values, parse_float, parse_integer, without_surrogates


class GoJSONError(ValueError):
    """JSON that cannot be read; the message is that of Go's decoder."""


def loads(body: bytes) -> Any:
    """Decode JSON within the depth of any document; raises 400 for text that is not JSON."""
    try:
        check_values(body)
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = _loads_slowly(body)
    except ParseError as error:
        raise GoJSONError(str(error)) from None
    if is_too_deep(value):
        raise GoJSONError(DEPTH_EXCEEDED)
    return value


def _loads_slowly(body: bytes) -> Any:
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text, parse_int=parse_integer, parse_float=parse_float, parse_constant=_reject_constant)
        return value if is_too_deep(value) else without_surrogates(value)
    except json.JSONDecodeError:
        raise BadRequestError("invalid JSON patch") from None
    except ParseError as error:
        raise GoJSONError(str(error)) from None
    except RecursionError:
        raise GoJSONError(DEPTH_EXCEEDED) from None


def _reject_constant(name: str) -> Any:
    raise ParseError(f"invalid character '{name.lstrip('-')[0]}' looking for beginning of value")


def json_kind(value: Any) -> str:
    """Return the kind of a JSON value in `json: cannot unmarshal …`."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def type_name(value: Any) -> str:
    """Return the `%T` format of a decoded JSON value."""
    if isinstance(value, bool):
        return "bool"
    for kind, name in (
        (int, "int64"),
        (float, "float64"),
        (str, "string"),
        (list, "[]interface {}"),
        (dict, "map[string]interface {}"),
    ):
        if isinstance(value, kind):
            return name
    return "<nil>"


def plain(value: Any) -> str:
    """Return the `%v` format of a decoded JSON value."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{' '.join(map(plain, value))}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{plain(value[key])}' for key in sorted(value))}]"
    return _float(value) if isinstance(value, float) else str(value)


def syntax(value: Any) -> str:
    """Return the `%#v` format of a decoded JSON value."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[]interface {{}}{{{', '.join(map(syntax, value))}}}"
    if isinstance(value, dict):
        items = ", ".join(f"{syntax(key)}:{syntax(value[key])}" for key in sorted(value))
        return f"map[string]interface {{}}{{{items}}}"
    return "interface {}(nil)" if value is None else plain(value)


def _float(value: float) -> str:
    # Python prints exponents from 1e16 on. Exact for the numbers that occur in objects.
    return str(int(value)) if value.is_integer() and abs(value) < GO_EXPONENT_MIN else repr(value)
