"""The JSON paths of custom resource definitions: dotted names, quoted names, indices, wildcards, filters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dray.api.limits import INTEGER_DIGITS_MAX
from dray.lib.processor_time import ticking

Finder: TypeAlias = Callable[[Any], list[Any]]


class PathSyntaxError(ValueError):
    """A path of an unsupported form."""


@dataclass(frozen=True, slots=True)
class _Name:
    name: str

    def find(self, value: Any) -> list[Any]:
        return [value[self.name]] if isinstance(value, dict) and self.name in value else []


@dataclass(frozen=True, slots=True)
class _Index:
    index: int

    def find(self, value: Any) -> list[Any]:
        inside = isinstance(value, list) and -len(value) <= self.index < len(value)
        return [value[self.index]] if inside else []


class _All:
    def find(self, value: Any) -> list[Any]:
        if isinstance(value, dict):
            return list(value.values())
        return list(value) if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class _Filter:
    steps: tuple[_Step, ...]
    wanted: Any
    equal: bool

    def find(self, value: Any) -> list[Any]:
        return [item for item in value if self._keeps(item)] if isinstance(value, list) else []

    def _keeps(self, item: Any) -> bool:
        found = _walk(item, self.steps)
        return bool(found) and (found[0] == self.wanted) is self.equal


_Step: TypeAlias = _Name | _Index | _All | _Filter

_TOKEN: Final = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+)
      | \.?\[(?P<index>-?\d+)\]
      | \.?\['(?P<quoted>(?:\\.|[^'\\])*)'\]
      | \.?\["(?P<double>(?:\\.|[^"\\])*)"\]
      | \.?\[(?P<all>\*)\]
      | \.?\[\?\(\s*@(?P<field>[^=!<>)]*?)\s*(?P<op>==|!=)\s*(?P<literal>"[^"]*"|'[^']*'|[^)\s]+)\s*\)\]
    """,
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(.)")
_WORDS: Final = {"true": True, "false": False}


def compile_path(text: str) -> Finder:
    """Return a function that finds every value at the path, in order."""
    steps = _parse(text)
    return lambda value: _walk(value, steps)


def simple_names(text: str) -> tuple[str, ...]:
    """Return the field names of a path in plain dot notation, such as `.spec.replicas`."""
    return tuple(text.removeprefix(".").split("."))


def _parse(text: str) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PathSyntaxError(f"unexpected text {text[position:]!r}")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> _Step:
    if match["index"] is not None:
        if len(match["index"]) > INTEGER_DIGITS_MAX:
            raise PathSyntaxError(f"index {match['index'][:INTEGER_DIGITS_MAX]}... out of range")
        return _Index(int(match["index"]))
    if match["all"] is not None or match["name"] == "*":
        return _All()
    if match["op"] is not None:
        return _Filter(_parse(match["field"]), _literal(match["literal"]), match["op"] == "==")
    name = next(match[group] for group in ("name", "quoted", "double") if match[group] is not None)
    return _Name(_ESCAPE.sub(r"\1", name))


def _literal(text: str) -> Any:
    if text[0] in "\"'":
        return text[1:-1]
    if text in _WORDS:
        return _WORDS[text]
    try:
        return float(text) if "." in text else int(text)
    except ValueError as error:
        raise PathSyntaxError(f"unexpected text {text!r}") from error


def _walk(value: Any, steps: Sequence[_Step]) -> list[Any]:
    found = [value]
    for step in steps:
        found = [inner for item in ticking(found) for inner in step.find(item)]
    return found
