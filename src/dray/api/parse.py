"""Parser of request bodies: JSON and YAML, with Go's error texts and the duplicate keys that were dropped.

The fast path is one pass of orjson; the slow path runs only for bodies that orjson rejects. Depth is bounded by
`NESTING_DEPTH_MAX` in every form, and so is what aliases and merge keys of YAML may expand to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable
from typing import Any, Final

import orjson
import yaml

from dray.api.limits import (
    DEPTH_EXCEEDED,
    EXPANDED_BYTES_MAX,
    INTEGER_DIGITS_MAX,
    NESTING_DEPTH_MAX,
    TOO_MANY_VALUES,
    VALUES_MAX,
    is_too_deep,
)
from dray.api.strict_order import duplicate_errors
from dray.lib.processor_time import check, tick, ticking

# From here on Go prints floats with an exponent.
GO_EXPONENT_MIN: Final = 1e21
# Larger whole floats stay floats: integers have 64 bits.
_WHOLE_MAX: Final = 2.0**63

# Matches every string literal of a JSON text, with the colon after it when it is a key.
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?', re.DOTALL)
_STRINGS_TEXT: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

_INT64_MIN: Final = -(2**63)
_UINT64_MAX: Final = 2**64 - 1
# Any number of this many characters fits into 64 bits.
_DIGITS_SAFE: Final = 18

# PyYAML takes some 6 µs per node, during which nothing else is served; the largest definitions have some 70,000.
YAML_NODES_MAX: Final = 100_000
# Entries that merge keys (`<<`) copy, repeated ones included.
YAML_MERGED_MAX: Final = 10_000
# What an alias copies for each value besides its text.
_VALUE_BYTES: Final = 8

_YAML: Final = "error converting YAML to JSON: yaml: "
_TOO_MANY_ALIASES: Final = f"{_YAML}document contains excessive aliasing"


class ParseError(ValueError):
    """A body that is not JSON or YAML; the text is Go's."""


def parse_json(body: bytes) -> tuple[Any, list[str]]:
    """Parse JSON; the second result has an error `duplicate field "path"` for every repeated key."""
    check_values(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _parse_slow_path(body), []
    keys = _count_keys(value)
    if body.count(b":") == keys:
        return value, []
    return value, [] if _written_keys(body) == keys else duplicate_errors(body)


def _written_keys(body: bytes) -> int:
    """Count the keys of a JSON text, repeated ones included."""
    count = 0
    for match in _STRINGS.finditer(body):
        tick()
        count += match[1] is not None
    return count


def check_values(body: bytes) -> None:
    """Raise `ParseError` if a JSON body has too many values: whatever follows takes time for each."""
    check()
    count = _separators(body)
    if count <= VALUES_MAX:
        return
    for text in _STRINGS.finditer(body):
        tick()
        count -= _separators(text[0])
    if count > VALUES_MAX:
        raise ParseError(TOO_MANY_VALUES)


def _separators(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _count_keys(value: Any) -> int:
    """Count the keys of all objects, level by level; raises `ParseError` below the deepest allowed level."""
    total = 0
    level = [value]
    for _ in range(NESTING_DEPTH_MAX):
        # The parser cannot be suspended, and neither can the levels below one object.
        check()
        below: list[Any] = []
        for item in ticking(level):
            if type(item) is dict:
                total += len(item)
                below.extend([child for child in item.values() if type(child) is dict or type(child) is list])
            elif type(item) is list:
                below.extend([child for child in item if type(child) is dict or type(child) is list])
        if not below:
            return total
        level = below
    raise ParseError(DEPTH_EXCEEDED)


def _parse_slow_path(body: bytes) -> Any:
    """Parse what Go accepts and orjson rejects (invalid UTF-8 and surrogates); raises `ParseError`."""
    text = body.decode("utf-8", errors="replace")
    try:
        value = json.loads(text, parse_constant=_reject_constant, parse_int=parse_integer, parse_float=parse_float)
    except json.JSONDecodeError as error:
        raise ParseError(_go_text(text, error)) from None
    except RecursionError:
        raise ParseError(DEPTH_EXCEEDED) from None
    if is_too_deep(value):
        raise ParseError(DEPTH_EXCEEDED)
    return without_surrogates(value)


def parse_integer(text: str) -> int | float:
    """Convert the digits of a JSON number as Go does: what 64 bits cannot hold is a float, within its range."""
    if len(text) <= _DIGITS_SAFE or (len(text) <= INTEGER_DIGITS_MAX and _INT64_MIN <= int(text) <= _UINT64_MAX):
        return int(text)
    return parse_float(text)


def parse_float(text: str) -> float:
    """Convert a JSON number; raises `ParseError` for one beyond the range of floats."""
    number = float(text)
    if math.isinf(number):
        shown = text if len(text) <= INTEGER_DIGITS_MAX else f"{text[:INTEGER_DIGITS_MAX]}..."
        raise ParseError(f"json: cannot unmarshal number {shown} into Go value of type float64")
    return number


def _reject_constant(name: str) -> Any:
    raise ParseError(f"invalid character '{name.lstrip('-')[0]}' looking for beginning of value")


def without_surrogates(value: Any) -> Any:
    """Return the value with lone surrogates replaced, which Go does and no UTF-8 can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value


def _go_text(text: str, error: json.JSONDecodeError) -> str:
    position = error.pos
    if error.msg.startswith("Unterminated string") or position >= len(text):
        return "unexpected end of JSON input"
    if error.msg.startswith("Invalid \\"):
        return f"invalid character {_go_rune(text[position + 1 : position + 2])} in string escape code"
    if error.msg in _TRAILING_COMMA:
        return f"invalid character {_TRAILING_COMMA[error.msg]}"
    return f"invalid character {_go_rune(text[position])} {_go_context(text, error)}"


def _go_context(text: str, error: json.JSONDecodeError) -> str:
    if error.msg.startswith("Expecting ',' delimiter"):
        return "after object key:value pair" if _innermost(text[: error.pos]) == "{" else "after array element"
    for start, words in _CONTEXTS.items():
        if error.msg.startswith(start):
            return words
    return "looking for beginning of value"


# From Python 3.13 on these errors point at the comma; Go names what follows it.
_TRAILING_COMMA: Final = {
    "Illegal trailing comma before end of object": "'}' looking for beginning of object key string",
    "Illegal trailing comma before end of array": "']' looking for beginning of value",
}
_CONTEXTS: Final = {
    "Expecting property name": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Extra data": "after top-level value",
    "Invalid control character": "in string literal",
}


def _innermost(text: str) -> str:
    """Return the innermost bracket that is still open at the end of the text."""
    opened: list[str] = []
    for character in _STRINGS_TEXT.sub("", text):
        if character in "{[":
            opened.append(character)
        elif character in "}]" and opened:
            opened.pop()
    return opened[-1] if opened else ""


def _go_rune(character: str) -> str:
    if character == "'":
        return r"'\''"
    if character == '"':
        return "'\"'"
    return "'" + json.dumps(character, ensure_ascii=False)[1:-1] + "'"


_MERGE: Final = "tag:yaml.org,2002:merge"
_TEXT: Final = "tag:yaml.org,2002:str"


def _scalar(node: yaml.Node) -> Any:
    """Return the text of a scalar; other keys are identical only to themselves, and are rejected later."""
    return node.value if isinstance(node, yaml.ScalarNode) else id(node)


class _Loader(yaml.CSafeLoader):
    """YAML as sigs.k8s.io/yaml reads it: no timestamps, no base 60, keys are converted to text."""

    def __init__(self, text: str, nodes_max: float) -> None:
        super().__init__(text)
        self.repeated: list[str] = []
        self._nodes_max = nodes_max
        self._depth = 0
        self._nodes = 0
        self._merged = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        """Count a node; the composer, which recurses in C, calls this before each."""
        tick()
        self._depth += 1
        self._nodes += 1
        # Exact for objects and lists is the check of the value; this one counts scalars as well.
        if self._depth > NESTING_DEPTH_MAX + 1:
            raise ParseError(f"{_YAML}{DEPTH_EXCEEDED}")
        if self._nodes > self._nodes_max:
            raise ParseError(f"{_YAML}exceeded max number of {YAML_NODES_MAX} values")

    def ascend_resolver(self) -> None:
        """Leave a node."""
        self._depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001,FBT002
        """Convert a node."""
        tick()
        return super().construct_object(node, deep=deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace merge keys by what they merge, each key once; the mapping's own keys win, then the earlier ones."""
        own = [(key, value) for key, value in node.value if key.tag != _MERGE]
        if len(own) == len(node.value):
            return
        merging = [value for key, value in node.value if key.tag == _MERGE]
        # A mapping that merges itself finds nothing to merge.
        node.value = own
        merged: dict[tuple[str, Any], tuple[yaml.Node, yaml.Node]] = {}
        for value in merging:
            for source in self._merge_sources(node, value):
                self.flatten_mapping(source)
                self._merged += len(source.value)
                if self._merged > YAML_MERGED_MAX:
                    raise ParseError(_TOO_MANY_ALIASES)
                for entry in source.value:
                    merged.setdefault((entry[0].tag, _scalar(entry[0])), entry)
        node.value = [*merged.values(), *own]

    @staticmethod
    def _merge_sources(node: yaml.MappingNode, value: yaml.Node) -> list[yaml.MappingNode]:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                raise yaml.constructor.ConstructorError(
                    "while constructing a mapping",
                    node.start_mark,
                    "map merge requires map or sequence of maps as the value",
                    source.start_mark,
                )
        return list(sources)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001,FBT002
        """Return a mapping with string keys, and record the repeated ones."""
        written = {id(key_node) for key_node, _ in node.value}
        self.flatten_mapping(node)
        made: dict[Hashable, Any] = {}
        own: set[str] = set()
        for key_node, value_node in node.value:
            key = _key_text(self.construct_object(key_node, deep=True))
            made[key] = self.construct_object(value_node, deep=True)
            # A key may override a merged one; only a repetition within this mapping is an error.
            if id(key_node) in written:
                if key in own:
                    # Go's decoder has read the value when it finds the key, and names the value's line.
                    shown = f'"{key}"' if key_node.tag == _TEXT else key
                    self.repeated.append(f"line {value_node.start_mark.line + 1}: key {shown} already set in map")
                own.add(key)
        return made


# Without PyYAML's own resolvers; those of sigs.k8s.io/yaml are added below.
_Loader.yaml_implicit_resolvers = {}


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int | float):
        return str(key)
    raise ParseError(f"error converting YAML to JSON: unsupported map key of type: {type(key).__name__}")


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int | float | str:
    text = str(node.value).replace("_", "")
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567"
    if not octal and digits[:2].lower() not in ("0b", "0o", "0x"):
        return parse_integer(text.lstrip("+"))
    # Powers of two convert in linear time; what 64 bits cannot hold stays text.
    number = int(digits, 8 if octal else 0)
    if number > _UINT64_MAX:
        return str(node.value)
    return -number if text[0] == "-" else number


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float | int:
    text = str(node.value).replace("_", "").lower()
    return _whole(float(text.replace(".inf", "inf").replace(".nan", "nan")), str(node.value))


def _whole(number: float, text: str) -> float | int:
    """Return a whole float as an integer, since Go writes it without a fraction."""
    if not math.isfinite(number):
        raise ParseError(f"error converting YAML to JSON: json: unsupported value: {text[:INTEGER_DIGITS_MAX]}")
    return int(number) if number.is_integer() and abs(number) < _WHOLE_MAX else number


_BOOLS: Final = {
    "y": True,
    "yes": True,
    "on": True,
    "true": True,
    "n": False,
    "no": False,
    "off": False,
    "false": False,
}


def _construct_map(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    return loader.construct_mapping(node)


def _construct_bool(loader: _Loader, node: yaml.ScalarNode) -> bool:
    return _BOOLS[str(node.value).lower()]


def _set_up_loader() -> None:
    words = "|".join(f"{word}|{word.capitalize()}|{word.upper()}" for word in _BOOLS)
    resolvers = (
        ("tag:yaml.org,2002:bool", rf"^(?:{words})$", "yYnNtTfFoO"),
        ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
        (_MERGE, r"^<<$", "<"),
        (
            "tag:yaml.org,2002:int",
            r"^[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$",
            "-+0123456789",
        ),
        (
            "tag:yaml.org,2002:float",
            r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
            "-+.0123456789",
        ),
    )
    for tag, pattern, first in resolvers:
        _Loader.add_implicit_resolver(tag, re.compile(pattern), list(first))
    _Loader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)
    _Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
    _Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
    _Loader.add_constructor("tag:yaml.org,2002:map", _construct_map)


_set_up_loader()


# A number with a fraction or an exponent, or text that looks like one.
_FRACTION: Final = re.compile(rb"[:\[,\s]-?[0-9]+[.eE]")


def parse_yaml(body: bytes) -> tuple[Any, list[str]]:
    """Parse the first YAML document; the second result has the errors of repeated keys."""
    if body[:1] == b"{" and not _FRACTION.search(body):
        check_values(body)
        # Most clients write JSON, which is YAML; what only YAML says differently is left to it.
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            pass
        else:
            keys = _count_keys(value)
            if body.count(b":") == keys or _written_keys(body) == keys:
                return value, []
    return _parse_yaml(body, YAML_NODES_MAX)


def parse_own_yaml(body: bytes) -> Any:
    """Parse the first document of a file of the user's own, which may be as large as memory."""
    if body[:1] == b"{":
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            # What only YAML allows, as comments.
            pass
    return _parse_yaml(body, math.inf)[0]


def _parse_yaml(body: bytes, nodes_max: float) -> tuple[Any, list[str]]:
    loader = _Loader(body.decode("utf-8", errors="replace"), nodes_max)
    try:
        value = loader.get_data() if loader.check_data() else None  # type: ignore[no-untyped-call]
        if b"*" in body or b"<<" in body:
            # Aliases share one object; a stored document must be a tree.
            value = _Expansion(nodes_max, EXPANDED_BYTES_MAX if nodes_max == YAML_NODES_MAX else math.inf).copy(value)
        elif is_too_deep(value):
            raise ParseError(f"{_YAML}{DEPTH_EXCEEDED}")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ParseError(f"{_YAML}line {line}: {error.problem}") from None
    except RecursionError:
        raise ParseError(f"{_YAML}{DEPTH_EXCEEDED}") from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, ParseError):
            raise
        raise ParseError(f"{_YAML}{error}") from None
    finally:
        loader.dispose()
    repeated = "\n".join(f"  {line}" for line in loader.repeated)
    return value, [f"yaml: unmarshal errors:\n{repeated}"] if repeated else []


class _Expansion:
    """One copy of a document in which aliases share objects; bounded in values, bytes and depth."""

    def __init__(self, values_max: float, bytes_max: float) -> None:
        self._values_max = values_max
        self._bytes_max = bytes_max
        self._values = 0
        self._bytes = 0

    def copy(self, value: Any, depth: int = 0) -> Any:
        """Return the value as a tree."""
        self._values += 1
        self._bytes += len(value) if isinstance(value, str) else _VALUE_BYTES
        if self._values > self._values_max or self._bytes > self._bytes_max:
            raise ParseError(_TOO_MANY_ALIASES)
        if not isinstance(value, dict | list):
            return value
        if depth == NESTING_DEPTH_MAX:
            raise ParseError(f"{_YAML}{DEPTH_EXCEEDED}")
        if isinstance(value, list):
            return [self.copy(item, depth + 1) for item in value]
        self._bytes += sum(map(len, value))
        return {key: self.copy(item, depth + 1) for key, item in value.items()}
