"""The page of flags, from the settings classes of processes and the parsers of tools."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from tools.reference.markdown import code, page, table

from dray.api.features import FeatureGates
from dray.cmd.main import PROCESSES, TOOLS
from dray.runtime.settings import Setting, declared

INTRODUCTION = """Processes read their settings from flags, from environment variables and from a YAML file
(`--config`), in this order of precedence. Write a flag as `--flag=value` or `--flag value`; a boolean flag needs no
value. Examples of durations are `1h30m`, `10s` and `500ms`."""
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


def flags_page() -> str:
    """Return docs/reference/flags.md."""
    parts: list[str] = []
    for name, process in PROCESSES.items():
        spec = getattr(importlib.import_module("dray.cmd.settings"), process.settings)
        parts += [f"## dray {name}", f"{process.summary[0].upper()}{process.summary[1:]}.", settings_table(spec)]
    for name, tool in TOOLS.items():
        parts += [f"## dray {name}", *_tool(name, tool.module)]
    for name, (module, text) in SDK.items():
        parts += [f"## {name[0].upper()}{name[1:]}", text, settings_table(_settings_of(module))]
    return page("Flags", INTRODUCTION, *parts)


def _settings_of(module: str) -> type[Any]:
    members = vars(importlib.import_module(module)).values()
    own = (item for item in members if isinstance(item, type) and item.__module__ == module)
    (spec,) = (item for item in own if hasattr(item, "__dataclass_fields__") and declared(item))
    return spec


def settings_table(spec: type[Any]) -> str:
    """Return a table of the settings of a settings class."""
    rows = [
        (f"`--{item.flag}`", item.kind.name, code(_default(item)), code(item.environment), code(item.key), item.help)
        for item in declared(spec)
    ]
    return table(("flag", "value", "default", "environment", "key in the file", "description"), rows)


def _default(item: Setting) -> str:
    if item.default in ("", None, ()) or isinstance(item.default, FeatureGates):
        return ""
    if isinstance(item.default, tuple):
        return ",".join(item.default)
    if isinstance(item.default, bool):
        return str(item.default).lower()
    return f"{item.default:g}s" if item.kind.name == "duration" else str(item.default)


def _tool(name: str, module: str) -> Iterator[str]:
    parser = parser_of(module, ["plan"] if name == "migrate" else [])
    yield parser.description or ""
    yield _arguments(parser)
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - it has no public name
            for command, below in action.choices.items():
                yield f"### dray {name} {command}"
                yield _arguments(below)


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


def _arguments(parser: argparse.ArgumentParser) -> str:
    rows = []
    for action in _actions(parser):
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):  # noqa: SLF001
            continue
        rows.append((_names(action), _value(action), code(_plain_default(action)), _help(action)))
    return table(("flag or argument", "value", "default", "description"), rows) if rows else ""


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
