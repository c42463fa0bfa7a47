"""The page of flags, from the settings classes of processes and the parsers of tools."""

from __future__ import annotations

import argparse
import importlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

from tools.reference.markdown import code, page, table

from dray.api.features import FeatureGates
from dray.api.gate_table import Release
from dray.cmd.main import PROCESSES, TOOLS
from dray.runtime.settings import Setting, declared

INTRODUCTION = """Processes read their settings from flags, from environment variables and from a YAML file
(`--config`), in this order of precedence. Write a flag as `--flag=value` or `--flag value`; a boolean flag needs no
value. Examples of durations are `1h30m`, `10s` and `500ms`.

The environment variable of `--event-ttl` is `DRAY_EVENT_TTL`, and its key in the file `eventTtl`; the other names
follow the same rule unless the description names them. Tools read flags only.
[Flags of several commands](#flags-of-several-commands) are described once, at the end."""
SHARED = "Flags of several commands"
# Flags of programs that use the SDK.
SDK = {
    "drivers": ("dray.driver.runner", "Flags of a driver that uses [the SDK](../driver-sdk.md)."),
    "classic controllers": (
        "dray.driver.classic.controller_runner",
        "Flags of the controller of a [classic driver](../classic-claims.md).",
    ),
    "classic nodes": ("dray.driver.classic.node_runner", "Flags of the node plugin of a classic driver."),
}


class _FoundError(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__("found")
        self.parser = parser


class Row(NamedTuple):
    """A flag or an argument, as a row of a table."""

    name: str
    value: str
    default: str
    help: str

    @property
    def key(self) -> str:
        """Return a name by which the rows are in order."""
        return self.name.strip("`-")


@dataclass(frozen=True)
class Section:
    """A command with its flags."""

    heading: str
    text: str
    rows: tuple[Row, ...]


def flags_page() -> str:
    """Return docs/reference/flags.md: the commands with their own flags, then the flags that several of them have."""
    sections = [*_process_sections(), *_tool_sections(), *_sdk_sections()]
    counts = Counter(row for section in sections for row in section.rows if row.name.startswith("`-"))
    shared = {row for row, count in counts.items() if count > 1}
    return page("Flags", INTRODUCTION, *(_section_text(section, shared) for section in sections), _shared_text(shared))


def _section_text(section: Section, shared: Container[Row]) -> str:
    own = [row for row in section.rows if row not in shared]
    others = sorted((row.name for row in section.rows if row in shared), key=lambda name: name.strip("`-"))
    parts = [section.heading, section.text, _table(own) if own else ""]
    if others:
        parts.append(f"{'Also' if own else 'Only'}: {' '.join(others)}")
    return "\n\n".join(part for part in parts if part)


def _shared_text(shared: Iterable[Row]) -> str:
    return f"## {SHARED}\n\n{_table(sorted(shared, key=lambda row: (row.key, row)))}"


def _table(rows: Iterable[Row]) -> str:
    return table(("flag", "value", "default", "description"), rows)


def _process_sections() -> Iterator[Section]:
    for name, process in PROCESSES.items():
        spec = getattr(importlib.import_module("dray.cmd.settings"), process.settings)
        summary = f"{process.summary[0].upper()}{process.summary[1:]}."
        yield Section(f"## dray {name}", summary, settings_rows(spec))


def _tool_sections() -> Iterator[Section]:
    for name, tool in TOOLS.items():
        yield from _tool(name, tool.module)


def _sdk_sections() -> Iterator[Section]:
    for name, (module, text) in SDK.items():
        yield Section(f"## {name[0].upper()}{name[1:]}", text, settings_rows(_settings_of(module)))


def _settings_of(module: str) -> type[Any]:
    members = vars(importlib.import_module(module)).values()
    own = (item for item in members if isinstance(item, type) and item.__module__ == module)
    (spec,) = (item for item in own if hasattr(item, "__dataclass_fields__") and declared(item))
    return spec


def settings_rows(spec: type[Any]) -> tuple[Row, ...]:
    """Return the settings of a settings class."""
    return tuple(
        Row(f"`--{item.flag}`", item.kind.name, code(_default(item)), item.help + _other_names(item))
        for item in declared(spec)
    )


def _other_names(item: Setting) -> str:
    """Return where else the setting can be written, if that does not follow from the flag's name."""
    first, *words = item.flag.split("-")
    names = []
    if item.environment != f"DRAY_{item.flag.replace('-', '_').upper()}":
        names.append(code(item.environment))
    if item.key != first + "".join(word.capitalize() for word in words):
        names.append(code(item.key))
    return f" ({', '.join(names)})" if names else ""


def _default(item: Setting) -> str:
    if item.default in ("", None, ()) or isinstance(item.default, FeatureGates):
        return ""
    if isinstance(item.default, tuple) and not isinstance(item.default, Release):
        return ",".join(item.default)
    if isinstance(item.default, bool):
        return str(item.default).lower()
    return f"{item.default:g}s" if item.kind.name == "duration" else str(item.default)


def _tool(name: str, module: str) -> Iterator[Section]:
    parser = parser_of(module, ["plan"] if name == "migrate" else [])
    yield Section(f"## dray {name}", parser.description or "", _arguments(parser))
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
            for command, below in action.choices.items():
                yield Section(f"### dray {name} {command}", "", _arguments(below))


def parser_of(module: str, argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of a tool, intercepted when it parses its arguments."""

    def intercept(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise _FoundError(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", intercept):
        try:
            importlib.import_module(module).main(argv)
        except _FoundError as found:
            return found.parser
    raise AssertionError(f"{module} has no parser")


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return list(vars(parser)["_actions"])


def _arguments(parser: argparse.ArgumentParser) -> tuple[Row, ...]:
    return tuple(
        Row(_names(action), _value(action), code(_plain_default(action)), _help(action))
        for action in _actions(parser)
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)  # noqa: SLF001
    )


def _names(action: argparse.Action) -> str:
    return ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"


def _value(action: argparse.Action) -> str:
    if action.choices:
        return "|".join(str(item) for item in action.choices)
    if action.nargs == 0:
        return ""
    return str(action.metavar or action.dest) if action.option_strings else ""


def _plain_default(action: argparse.Action) -> str:
    if action.default in ("", None, False, argparse.SUPPRESS) or isinstance(action.default, list | FeatureGates):
        return ""
    return f"{action.default:g}" if isinstance(action.default, float) else str(action.default)


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default, "prog": "dray"}
