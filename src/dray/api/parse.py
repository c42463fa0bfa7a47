"""Parser of request bodies: JSON and YAML, with Go's error texts and the duplicate keys that were dropped.

The fast path is one pass of orjson; the slow path runs only for bodies that orjson rejects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable
from typing import Any, Final

import orjson
import yaml

# From here on Go prints floats with an exponent.
GO_EXPONENT_MIN: Final = 1e21

# Matches every string literal of a JSON text, with the colon after it when it is a key.
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?', re.DOTALL)
_STRINGS_TEXT: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

# Aliases can expand a small document without bound; real documents stay far below this.
YAML_NODES_MAX: Final = 1_000_000


class ParseError(ValueError):
    """A body that is not JSON or YAML; the text is Go's."""


def parse_json(body: bytes) -> tuple[Any, list[str]]:
    """Parse JSON; the second result has an error `duplicate field "path"` for every repeated key."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _parse_slow_path(body), []
    if body.count(b":") == (keys := _count_keys(value)):
        return value, []
    written = sum(1 for colon in _STRINGS.findall(body) if colon)
    return value, [] if written == keys else _duplicates(body)


def _count_keys(value: Any) -> int:
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        if type(item) is dict:
            total += len(item)
            stack.extend(child for child in item.values() if type(child) is dict or type(child) is list)
        elif type(item) is list:
            stack.extend(item)
    return total


class _Repeated(dict[str, Any]):
    """An object with repeated keys."""

    repeated: tuple[str, ...] = ()


def _duplicates(body: bytes) -> list[str]:
    value = json.loads(body, object_pairs_hook=_pairs)
    found: list[str] = []
    _collect_duplicates(value, "", found)
    return [f'duplicate field "{path}"' for path in dict.fromkeys(found)]


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = _Repeated(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        made.repeated = tuple(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return made


def _collect_duplicates(value: Any, path: str, found: list[str]) -> None:
    if isinstance(value, _Repeated):
        prefix = f"{path}." if path else ""
        found.extend(prefix + key for key in value.repeated)
        for key, child in value.items():
            _collect_duplicates(child, prefix + key, found)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _collect_duplicates(child, f"{path}[{index}]", found)


def _parse_slow_path(body: bytes) -> Any:
    """Parse what Go accepts and orjson rejects (invalid UTF-8 and surrogates); raises `ParseError`."""
    text = body.decode("utf-8", errors="replace")
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise ParseError(_go_text(text, error)) from None
    except RecursionError:
        raise ParseError("exceeded max depth") from None
    return _without_surrogates(value)


def _reject_constant(name: str) -> Any:
    raise ParseError(f"invalid character '{name.lstrip('-')[0]}' looking for beginning of value")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _go_text(text: str, error: json.JSONDecodeError) -> str:
    position = error.pos
    if error.msg.startswith("Unterminated string") or position >= len(text):
        return "unexpected end of JSON input"
    if error.msg.startswith("Invalid \\"):
        return f"invalid character {_go_rune(text[position + 1 : position + 2])} in string escape code"
    return f"invalid character {_go_rune(text[position])} {_go_context(text, error)}"


def _go_context(text: str, error: json.JSONDecodeError) -> str:
    if error.msg.startswith("Expecting ',' delimiter"):
        return "after object key:value pair" if _innermost(text[: error.pos]) == "{" else "after array element"
    for start, words in _CONTEXTS.items():
        if error.msg.startswith(start):
            return words
    return "looking for beginning of value"


_CONTEXTS: Final = {
    "Expecting property name": "looking for beginning of object key string",
    "Illegal trailing comma before end of object": "looking for beginning of object key string",
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


class _Loader(yaml.CSafeLoader):
    """YAML as sigs.k8s.io/yaml reads it: no timestamps, no base 60, keys are converted to text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.repeated: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001,FBT002
        """Return a mapping with string keys, and record the repeated ones."""
        written = {id(key_node) for key_node, _ in node.value}
        self.flatten_mapping(node)
        made: dict[Hashable, Any] = {}
        own: set[str] = set()
        for key_node, value_node in node.value:
            key = _key_text(self.construct_object(key_node, deep=True))
            # A key may override a merged one; only a repetition within this mapping is an error.
            if id(key_node) in written:
                if key in own:
                    self.repeated.append(f'line {key_node.start_mark.line + 1}: key "{key}" already set in map')
                own.add(key)
            made[key] = self.construct_object(value_node, deep=True)
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


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(node.value).replace("_", "")
    sign = -1 if text[0] == "-" else 1
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567":
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float | int:
    text = str(node.value).replace("_", "").lower()
    if "inf" in text or "nan" in text:
        raise ParseError(f"error converting YAML to JSON: json: unsupported value: {node.value}")
    number = float(text)
    # Go writes whole floats without a fraction, so they arrive as integers.
    return int(number) if number.is_integer() and math.fabs(number) < GO_EXPONENT_MIN else number


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
        ("tag:yaml.org,2002:merge", r"^<<$", "<"),
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


def parse_yaml(body: bytes) -> tuple[Any, list[str]]:
    """Parse the first YAML document; the second result has the errors of repeated keys."""
    loader = _Loader(body.decode("utf-8", errors="replace"))
    try:
        value = loader.get_data() if loader.check_data() else None  # type: ignore[no-untyped-call]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ParseError(f"error converting YAML to JSON: yaml: line {line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, ParseError):
            raise
        raise ParseError(f"error converting YAML to JSON: yaml: {error}") from None
    finally:
        loader.dispose()
    if b"*" in body or b"<<" in body:
        # Aliases share one object; a stored document must be a tree.
        value = _copy_tree(value, [YAML_NODES_MAX])
    repeated = "\n".join(f"  {line}" for line in loader.repeated)
    return value, [f"yaml: unmarshal errors:\n{repeated}"] if repeated else []


def _copy_tree(value: Any, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        raise ParseError("error converting YAML to JSON: yaml: document contains excessive aliasing")
    if isinstance(value, dict):
        return {key: _copy_tree(item, budget) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_tree(item, budget) for item in value]
    return value
