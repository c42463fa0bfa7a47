"""The string extension, version 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from dray.cel import runtime
from dray.cel.library.standard import double_to_string
from dray.cel.library.times import duration_to_string, timestamp_to_string
from dray.cel.runtime import fail, traversal
from dray.cel.signatures import Registry
from dray.cel.types import Type
from dray.cel.values import Budget, Duration, Timestamp

REGISTRY: Final = Registry()
_declare = REGISTRY.declare

# More digits than any double has; a larger precision would only use memory.
_PRECISION_DIGITS_MAX: Final = 3
_PRECISION_MAX: Final = 100
_PRECISION_DEFAULT: Final = 6
_ASCII_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_ASCII_UPPER: Final = {lower: lower - 32 for lower in range(ord("a"), ord("z") + 1)}
# The characters that Go's strings.TrimSpace removes: those with Unicode's White_Space property.
_SPACES: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        fail(f"index out of range: {position}")
    return text[position : position + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not part:
        return _checked_offset(text, start)
    _checked_offset(text, start)
    return text.find(part, start)


def _checked_offset(text: str, start: int) -> int:
    if not 0 <= start <= len(text):
        fail(f"index out of range: {start}")
    return start


def _last_index_of(text: str, part: str, end: int | None = None) -> int:
    if end is None:
        return text.rfind(part)
    _checked_offset(text, end)
    return text.rfind(part, 0, end + len(part))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    return text.replace(old, new, count)


def _replace_cost(text: str, old: str, new: str, count: int = -1) -> int:
    """Return the cost of reading the text and of the result, whose size is known in advance."""
    found = text.count(old) if count < 0 else min(count, text.count(old))
    return traversal(len(text), 0.2) + traversal(max(0, found * (len(new) - len(old))))


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if limit == 1:
        return [text]
    pieces = -1 if limit < 0 else limit - 1
    if separator:
        return text.split(separator, pieces)
    return list(text) if pieces < 0 or len(text) <= limit else [*text[:pieces], text[pieces:]]


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is None:
        if not 0 <= start <= len(text):
            fail(f"index out of range: {start}")
        return text[start:]
    if start > end:
        fail(f"invalid substring range. start: {start}, end: {end}")
    if not 0 <= start <= len(text) or end > len(text):
        fail(f"index out of range: {start if not 0 <= start <= len(text) else end}")
    return text[start:end]


def _join(budget: Budget, values: list[Any], separator: str = "") -> str:
    total = len(separator) * max(0, len(values) - 1)
    for value in values:
        if not isinstance(value, str):
            fail()
        total += len(value)
    budget.spend(traversal(total))
    return separator.join(values)


_QUOTED: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def _quote(text: str) -> str:
    return f'"{text.translate(_QUOTED)}"'


# --- format().


def _format(budget: Budget, template: str, args: list[Any]) -> str:
    budget.spend(traversal(len(template)))
    out: list[str] = []
    position = used = 0
    while True:
        percent = template.find("%", position)
        if percent < 0:
            out.append(template[position:])
            break
        out.append(template[position:percent])
        if template[percent + 1 : percent + 2] == "%":
            out.append("%")
            position = percent + 2
            continue
        verb, precision, position = _read_clause(template, percent + 1)
        if used >= len(args):
            fail(f"index {used} out of range")
        text = _VERBS[verb](budget, args[used], precision)
        budget.spend(traversal(len(text)))
        out.append(text)
        used += 1
    return "".join(out)


def _read_clause(template: str, position: int) -> tuple[str, int | None, int]:
    precision: int | None = None
    if template[position : position + 1] == ".":
        end = position + 1
        while template[end : end + 1].isdigit():
            end += 1
        digits = template[position + 1 : end]
        # One digit more than allowed is enough to see that there are too many.
        precision = int(digits[: _PRECISION_DIGITS_MAX + 1] or 0)
        if len(digits) > _PRECISION_DIGITS_MAX or precision > _PRECISION_MAX:
            fail(f"could not parse formatting clause: precision is larger than {_PRECISION_MAX}")
        position = end
    verb = template[position : position + 1]
    if not verb:
        fail("unexpected end of string")
    if verb not in _VERBS:
        fail(f'could not parse formatting clause: unrecognized formatting clause "{verb}"')
    return verb, precision, position + 1


def _format_string(budget: Budget, value: Any, _: int | None) -> str:
    budget.spend(1)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_format_string(budget, item, None) for item in value)}]"
    if isinstance(value, dict):
        return _format_map(budget, value)
    text = _scalar_text(value)
    if text is None:
        fail(
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, "
            f"and timestamps, was given {runtime.type_name(value)}"
        )
    budget.spend(traversal(len(text)))
    return text


def _format_map(budget: Budget, value: dict[Any, Any]) -> str:
    entries = sorted(
        (_format_string(budget, runtime.unkey(key), None), _format_string(budget, item, None))
        for key, item in value.items()
    )
    return f"{{{', '.join(f'{key}: {item}' for key, item in entries)}}}"


def _scalar_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return double_to_string(value)
    for cls, render in _SCALARS:
        if isinstance(value, cls):
            return render(value)
    return None


_SCALARS: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (str, str),
    (int, lambda value: str(int(value))),
    (type(None), lambda _: "null"),
    (bytes, lambda value: value.decode("utf-8", "replace")),
    (Duration, duration_to_string),
    (Timestamp, timestamp_to_string),
    (Type, lambda value: value.type_name),
)


def _format_decimal(_: Budget, value: Any, __: int | None) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return double_to_string(value)
    if isinstance(value, bool) or not isinstance(value, int):
        fail(f"decimal clause can only be used on integers, was given {runtime.type_name(value)}")
    return str(int(value))


def _format_fixed(_: Budget, value: Any, precision: int | None) -> str:
    number = _number("fixed-point", value)
    if not math.isfinite(number):
        return _non_finite(number)
    return f"{number:.{_PRECISION_DEFAULT if precision is None else precision}f}"


def _format_scientific(_: Budget, value: Any, precision: int | None) -> str:
    number = _number("scientific", value)
    if not math.isfinite(number):
        return _non_finite(number)
    return f"{number:.{_PRECISION_DEFAULT if precision is None else precision}e}"


def _number(clause: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        fail(f"{clause} clause can only be used on doubles, was given {runtime.type_name(value)}")
    return float(value)


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _format_binary(_: Budget, value: Any, __: int | None) -> str:
    if isinstance(value, int):
        return f"{int(value):b}"
    return fail(f"only integers and bools can be formatted as binary, was given {runtime.type_name(value)}")


def _format_octal(_: Budget, value: Any, __: int | None) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{int(value):o}"
    return fail(f"octal clause can only be used on integers, was given {runtime.type_name(value)}")


def _format_hex(budget: Budget, value: Any, __: int | None) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{int(value):x}"
    if isinstance(value, (str, bytes)):
        data = value.encode() if isinstance(value, str) else value
        budget.spend(traversal(len(data), 0.2))
        return data.hex()
    return fail(
        f"only integers, byte buffers, and strings can be formatted as hex, was given {runtime.type_name(value)}"
    )


_VERBS: Final[dict[str, Callable[[Budget, Any, int | None], str]]] = {
    "s": _format_string,
    "d": _format_decimal,
    "f": _format_fixed,
    "e": _format_scientific,
    "b": _format_binary,
    "o": _format_octal,
    "x": _format_hex,
    "X": lambda budget, value, precision: _format_hex(budget, value, precision).upper(),
}


def _walk(text: str, *_: Any) -> int:
    return traversal(len(text))


def _walk_and_build(text: str, *_: Any) -> int:
    return traversal(len(text), 0.2)


_declare("string::charAt(int) -> string", _char_at)
_declare("string::indexOf(string) -> int", _index_of, charge=_walk)
_declare("string::indexOf(string, int) -> int", _index_of, charge=_walk)
_declare("string::lastIndexOf(string) -> int", _last_index_of, charge=_walk)
_declare("string::lastIndexOf(string, int) -> int", _last_index_of, charge=_walk)
_declare("string::lowerAscii() -> string", lambda text: text.translate(_ASCII_LOWER), charge=_walk)
_declare("string::upperAscii() -> string", lambda text: text.translate(_ASCII_UPPER), charge=_walk)
_declare("string::replace(string, string) -> string", _replace, charge=_replace_cost)
_declare("string::replace(string, string, int) -> string", _replace, charge=_replace_cost)
_declare("string::split(string) -> list(string)", _split, charge=_walk_and_build)
_declare("string::split(string, int) -> list(string)", _split, charge=_walk_and_build)
_declare("string::substring(int) -> string", _substring, charge=_walk)
_declare("string::substring(int, int) -> string", _substring, charge=_walk)
_declare("string::trim() -> string", lambda text: text.strip(_SPACES), charge=_walk)
_declare("list(string)::join() -> string", _join, budgeted=True)
_declare("list(string)::join(string) -> string", _join, budgeted=True)
_declare("string::format(list(dyn)) -> string", _format, budgeted=True)
_declare("strings.quote(string) -> string", _quote, charge=lambda text: traversal(len(text), 0.2))
