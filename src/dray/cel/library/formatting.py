"""`format()` of the string extension at the version that Kubernetes uses, which formats for the locale en_US.

Values in lists and maps are printed as literals of the language. Numbers of `%f` have thousands separators; `%e` has
typographic exponents and always six digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from dray.cel import runtime
from dray.cel.errors import CELRuntimeError
from dray.cel.library.standard import double_to_string
from dray.cel.library.times import duration_to_string, timestamp_to_string
from dray.cel.runtime import fail, traversal
from dray.cel.types import Type
from dray.cel.values import Budget, Duration, Timestamp

# More digits than any double has; a larger precision would only use memory.
_PRECISION_DIGITS_MAX: Final = 3
_PRECISION_MAX: Final = 100
_PRECISION_DEFAULT: Final = 6

# The error of a value that a clause cannot format, by clause.
_STRING_ERROR: Final = (
    "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, "
    "and timestamps"
)
ERRORS: Final = {
    "s": _STRING_ERROR,
    "d": "decimal clause can only be used on integers",
    "f": "fixed-point clause can only be used on doubles",
    "e": "scientific clause can only be used on doubles",
    "b": "only integers and bools can be formatted as binary",
    "x": "only integers, byte buffers, and strings can be formatted as hex",
    "X": "only integers, byte buffers, and strings can be formatted as hex",
    "o": "octal clause can only be used on integers",
}


class Clause(NamedTuple):
    """A formatting clause: its verb and precision, and the text before it."""

    before: str
    verb: str
    precision: int | None


def clauses(template: str) -> Iterator[Clause]:
    """Yield the clauses of a format string; the last one has no verb. Raises an error for a malformed clause."""
    position, before = 0, ""
    while True:
        percent = template.find("%", position)
        if percent < 0:
            yield Clause(before + template[position:], "", None)
            return
        before += template[position:percent]
        if template[percent + 1 : percent + 2] == "%":
            before += "%"
            position = percent + 2
            continue
        verb, precision, position = _read_clause(template, percent + 1)
        yield Clause(before, verb, precision)
        before = ""


def _read_clause(template: str, position: int) -> tuple[str, int | None, int]:
    precision: int | None = None
    if template[position : position + 1] == ".":
        end = position + 1
        while template[end : end + 1].isdigit() and template[end].isascii():
            end += 1
        digits = template[position + 1 : end]
        if end >= len(template):
            fail(f"{_PARSE_ERROR}: error while parsing precision: could not find end of precision specifier")
        # One digit more than allowed is enough to see that there are too many.
        precision = int(digits[: _PRECISION_DIGITS_MAX + 1] or 0)
        if len(digits) > _PRECISION_DIGITS_MAX or precision > _PRECISION_MAX:
            fail(f"{_PARSE_ERROR}: precision is larger than {_PRECISION_MAX}")
        position = end
    verb = template[position : position + 1]
    if not verb:
        fail("unexpected end of string")
    if verb not in ERRORS:
        fail(f'{_PARSE_ERROR}: unrecognized formatting clause "{verb}"')
    return verb, precision, position + 1


_PARSE_ERROR: Final = "could not parse formatting clause"


def format_string(budget: Budget, template: str, args: list[Any]) -> str:
    """Evaluate `template.format(args)`."""
    budget.spend(traversal(len(template)))
    out: list[str] = []
    for used, clause in enumerate(clauses(template)):
        out.append(clause.before)
        if not clause.verb:
            break
        if used >= len(args):
            fail(f"index {used} out of range")
        text = _format(budget, clause, args[used])
        budget.spend(traversal(len(text)))
        out.append(text)
    return "".join(out)


def _format(budget: Budget, clause: Clause, value: Any) -> str:
    text = _VERBS[clause.verb](budget, value, clause.precision)
    if text is None:
        fail(f"error during formatting: {ERRORS[clause.verb]}, was given {runtime.type_name(value)}")
    return text


# --- %s


def _as_string(budget: Budget, value: Any, _: int | None) -> str | None:
    budget.spend(1)
    if isinstance(value, (list, tuple, dict)):
        return _literal(budget, value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return double_to_string(value)
    if isinstance(value, bytes):
        return _decoded(value)
    for cls, render in _SCALARS:
        if isinstance(value, cls):
            return render(value)
    return None


_SCALARS: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (str, str),
    (int, lambda value: str(int(value))),
    (type(None), lambda _: "null"),
    (Duration, duration_to_string),
    (Timestamp, timestamp_to_string),
    (Type, lambda value: value.type_name),
)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CELRuntimeError("error during formatting: could not convert argument to string") from None


def _literal(budget: Budget, value: Any) -> str:
    """Return the value as a literal of the language."""
    budget.spend(1)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join([_literal(budget, item) for item in value])}]"
    if isinstance(value, dict):
        pairs = sorted((_literal(budget, runtime.unkey(key)), _literal(budget, item)) for key, item in value.items())
        return f"{{{', '.join([f'{key}:{item}' for key, item in pairs])}}}"
    if isinstance(value, float):
        return f"{value:.6f}" if math.isfinite(value) else go_quoted(double_to_string(value))
    text = _as_string(budget, value, None)
    if text is None:
        fail(f"error during formatting: no formatting function for {runtime.type_name(value)}")
    budget.spend(traversal(len(text)))
    for cls, prefix, suffix in _QUOTED:
        if isinstance(value, cls):
            return f"{prefix}{go_quoted(text)}{suffix}"
    return text


_QUOTED: Final[tuple[tuple[type, str, str], ...]] = (
    (str, "", ""),
    (bytes, "b", ""),
    (Timestamp, "timestamp(", ")"),
    (Duration, "duration(", ")"),
)
_ESCAPES: Final = {
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
_ASCII_MAX: Final = 0x7F
_BMP_MAX: Final = 0xFFFF


def go_quoted(text: str) -> str:
    """Return the text as Go's %q prints it."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    known = _ESCAPES.get(char)
    if known is not None:
        return known
    if char.isprintable():
        return char
    point = ord(char)
    if point <= _ASCII_MAX:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= _BMP_MAX else f"\\U{point:08x}"


# --- Numbers


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_decimal(_: Budget, value: Any, __: int | None) -> str | None:
    return str(int(value)) if _is_integer(value) else None


_NON_FINITE_TEXTS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _as_double(value: Any) -> float | None:
    if isinstance(value, str):
        return _NON_FINITE_TEXTS.get(value)
    return value if isinstance(value, float) else None


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "∞" if value > 0 else "-∞"


def _as_fixed(_: Budget, value: Any, precision: int | None) -> str | None:
    number = _as_double(value)
    if number is None or not math.isfinite(number):
        return None if number is None else _non_finite(number)
    return f"{number:,.{_PRECISION_DEFAULT if precision is None else precision}f}"


_SUPERSCRIPTS: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _as_scientific(_: Budget, value: Any, precision: int | None) -> str | None:
    number = _as_double(value)
    if number is None or not math.isfinite(number):
        return None if number is None else _non_finite(number)
    mantissa, exponent = f"{number:.{_PRECISION_DEFAULT}e}".split("e")
    text = f"{mantissa}\u202f×\u202f10{exponent.removeprefix('+').translate(_SUPERSCRIPTS)}"  # noqa: RUF001 - as Go
    # Go takes the precision for the width.
    return text.rjust(precision or 0)


def _as_binary(_: Budget, value: Any, __: int | None) -> str | None:
    return f"{int(value):b}" if isinstance(value, int) else None


def _as_octal(_: Budget, value: Any, __: int | None) -> str | None:
    return f"{int(value):o}" if _is_integer(value) else None


def _as_hex(budget: Budget, value: Any, __: int | None) -> str | None:
    if _is_integer(value):
        return f"{int(value):x}"
    if isinstance(value, (str, bytes)):
        data = value.encode() if isinstance(value, str) else value
        budget.spend(traversal(len(data), 0.2))
        return data.hex()
    return None


def _as_upper_hex(budget: Budget, value: Any, precision: int | None) -> str | None:
    text = _as_hex(budget, value, precision)
    return None if text is None else text.upper()


_VERBS: Final[dict[str, Callable[[Budget, Any, int | None], str | None]]] = {
    "s": _as_string,
    "d": _as_decimal,
    "f": _as_fixed,
    "e": _as_scientific,
    "b": _as_binary,
    "o": _as_octal,
    "x": _as_hex,
    "X": _as_upper_hex,
}
