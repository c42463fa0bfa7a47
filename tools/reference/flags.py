"""The page of flags, from the settings classes of processes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from tools.reference.markdown import code, page, table

from dray.api.features import FeatureGates
from dray.api.gate_table import Release
from dray.cmd.main import PROCESSES
from dray.runtime.settings import Setting, declared

INTRODUCTION = """Processes read their settings from flags, from environment variables and from a YAML file
(`--config`), in this order of precedence. Write a flag as `--flag=value` or `--flag value`; a boolean flag needs no
value. Examples of durations are `1h30m`, `10s` and `500ms`.

The environment variable of `--event-ttl` is `DRAY_EVENT_TTL`, and its key in the file `eventTtl`; the other names
follow the same rule unless the description names them. A flag of several processes is listed once, under all their
names. [Tools](../cli.md) read flags only; `dray help COMMAND` prints them."""
# Flags of programs that use the SDK.
SDK = {
    "Drivers": ("dray.driver.runner", "Flags of a driver that uses [the SDK](../driver-sdk.md)."),
    "Classic controllers": (
        "dray.driver.classic.controller_runner",
        "Flags of the controller of a [classic driver](../classic-claims.md).",
    ),
    "Classic nodes": ("dray.driver.classic.node_runner", "Flags of the node plugin of a classic driver."),
}


class Row(NamedTuple):
    """A flag, as a row of a table; one without a default has the type of its values there."""

    name: str
    default: str
    help: str


def flags_page() -> str:
    """Return docs/reference/flags.md: the flags of each process, then those of each set of processes."""
    owners: dict[Row, list[str]] = {}
    for name, rows in _programs():
        for row in rows:
            owners.setdefault(row, []).append(name)
    sections: dict[tuple[str, ...], list[Row]] = {}
    for row, names in owners.items():
        sections.setdefault(tuple(names), []).append(row)
    # What a process has alone comes first.
    ordered = sorted(sections.items(), key=lambda item: len(item[0]))
    return page("Flags", INTRODUCTION, *(_section(names, rows) for names, rows in ordered))


def _section(names: tuple[str, ...], rows: list[Row]) -> str:
    text = SDK[names[0]][1] if names[0] in SDK and len(names) == 1 else ""
    rows = sorted(rows, key=lambda row: row.name.strip("`-"))
    parts = [f"## {', '.join(names)}", text, table(("flag", "default", "description"), rows)]
    return "\n\n".join(part for part in parts if part)


def _programs() -> Iterator[tuple[str, tuple[Row, ...]]]:
    for name, process in PROCESSES.items():
        yield f"dray {name}", settings_rows(getattr(importlib.import_module("dray.cmd.settings"), process.settings))
    for name, (module, _) in SDK.items():
        yield name, settings_rows(_settings_of(module))


def _settings_of(module: str) -> type[Any]:
    members = vars(importlib.import_module(module)).values()
    own = (item for item in members if isinstance(item, type) and item.__module__ == module)
    (spec,) = (item for item in own if hasattr(item, "__dataclass_fields__") and declared(item))
    return spec


def settings_rows(spec: type[Any]) -> tuple[Row, ...]:
    """Return the settings of a settings class."""
    return tuple(
        Row(f"`--{item.flag}`", code(_default(item)) or item.kind.name, item.help + _other_names(item))
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
