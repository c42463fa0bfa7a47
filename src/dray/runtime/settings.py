"""A process's settings, declared once: flag, environment variable, YAML key, type, default, help, check.

A settings class is a frozen dataclass whose fields are made by `setting(...)`. `load` fills it with the
precedence flag > environment > YAML file > default, and names the source of whatever it refuses. Nothing here
reads argv, the environment or a file: the caller passes them.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final, TypeVar

from dray.api.features import FeatureGates, RequestedGates, parse_emulated_version
from dray.api.field_errors import quote
from dray.api.gate_table import CURRENT, Release
from dray.api.timestamps import parse_duration

S = TypeVar("S")

_METADATA: Final = "setting"
# One address for the API server, and some for others.
_NETWORK_SIZE_MIN: Final = 8
# Go's strconv.ParseBool, as Kubernetes' flags read booleans.
_TRUE: Final = frozenset({"1", "t", "true"})
_FALSE: Final = frozenset({"0", "f", "false"})


class SettingsError(ValueError):
    """An invalid setting; the message includes its source."""


class HelpRequested(Exception):  # noqa: N818 - not an error: the user asked for `--help`
    """`--help` was given; `text` is the help page."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of values; `parse` raises ValueError with the expected format."""

    name: str
    parse: Callable[[str], Any]
    # A flag of this type without a value means "true".
    bare: bool = False
    # The flag may be repeated, and the YAML value may be a list.
    many: bool = False
    # Makes the setting's value of what was parsed and of all other settings; raises ValueError as well.
    complete: Callable[[Any, Mapping[str, Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A declared setting; `field` is its attribute."""

    field: str
    flag: str
    environment: str
    key: str
    kind: Kind
    default: Any
    help: str
    short: str = ""


def _text(value: str) -> str:
    return value


def _boolean(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError("must be true or false")
    return lowered in _TRUE


def _items(value: str) -> tuple[str, ...]:
    return tuple(item for item in (part.strip() for part in value.split(",")) if item)


def _gates(requested: RequestedGates, settings: Mapping[str, Any]) -> FeatureGates:
    """Return the gates as the emulated release has them."""
    release: Release = settings.get(EMULATED_VERSION_FIELD, CURRENT)
    return requested.at(release)


def number(low: int, high: int) -> Kind:
    """Return the type of integers within bounds."""

    def parse(value: str) -> int:
        try:
            result = int(value.strip())
        except ValueError:
            result = low - 1
        if not low <= result <= high:
            raise ValueError(f"must be a number from {low} to {high}")
        return result

    return Kind("int", parse)


def decimal(low: float, high: float) -> Kind:
    """Return the type of decimal numbers within bounds."""

    def parse(value: str) -> float:
        try:
            result = float(value.strip())
        except ValueError:
            result = low - 1
        if not low <= result <= high:
            raise ValueError(f"must be a number from {low:g} to {high:g}")
        return result

    return Kind("float", parse)


def _seconds(value: str) -> float:
    try:
        return parse_duration(value.strip()).total_seconds()
    except ValueError as error:
        raise ValueError('must be a duration such as "1h30m", "10s" or "500ms"') from error


def choice(*allowed: str) -> Kind:
    """Return the type of an enumeration."""

    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return value

    return Kind("|".join(allowed), parse)


def _network(value: str) -> str:
    try:
        network = ip_network(value.strip())
    except ValueError as error:
        raise ValueError("must be a range of addresses, as in 10.96.0.0/16") from error
    if network.num_addresses < _NETWORK_SIZE_MIN:
        raise ValueError(f"must have at least {_NETWORK_SIZE_MIN} addresses")
    return str(network)


def _networks(value: str) -> tuple[str, ...]:
    try:
        return tuple(str(ip_network(item)) for item in _items(value))
    except ValueError as error:
        raise ValueError("must be ranges of addresses, as in 192.0.2.0/24,192.0.2.7/32") from error


STRING: Final = Kind("string", _text)
NETWORK: Final = Kind("string", _network)
BOOLEAN: Final = Kind("bool", _boolean, bare=True)
STRINGS: Final = Kind("strings", _items, many=True)
NETWORKS: Final = Kind("strings", _networks, many=True)
DURATION: Final = Kind("duration", _seconds)
EMULATED_VERSION_FIELD: Final = "emulated_version"
EMULATED_VERSION: Final = Kind("strings", parse_emulated_version, many=True)
FEATURE_GATES: Final = Kind("mapStringBool", RequestedGates.parse, many=True, complete=_gates)
PORT: Final = number(0, 65535)


def setting(  # noqa: PLR0913 - a declaration; each is a word the reader needs
    kind: Kind,
    default: Any,
    text: str,
    *,
    flag: str = "",
    short: str = "",
    environment: str = "",
    key: str = "",
) -> Any:
    """Declare a field; names not given follow from the field's own (`data_dir`: --data-dir DRAY_DATA_DIR dataDir)."""
    declared = Setting(
        field="", flag=flag, environment=environment, key=key, kind=kind, default=default, help=text, short=short
    )
    return dataclasses.field(default=default, metadata={_METADATA: declared})


def declared(spec: type[Any]) -> tuple[Setting, ...]:
    """Return the settings of a settings class in order, with all names filled in."""
    return tuple(_named(field) for field in dataclasses.fields(spec) if _METADATA in field.metadata)


def _named(field: dataclasses.Field[Any]) -> Setting:
    raw: Setting = field.metadata[_METADATA]
    words = field.name.split("_")
    return dataclasses.replace(
        raw,
        field=field.name,
        flag=raw.flag or "-".join(words),
        environment=raw.environment or f"DRAY_{field.name.upper()}",
        key=raw.key or words[0] + "".join(word.capitalize() for word in words[1:]),
    )


def load(
    spec: type[S], argv: Sequence[str], environ: Mapping[str, str], file_text: str = "", *, file_name: str = ""
) -> S:
    """Fill a settings class; raises `SettingsError`, or `HelpRequested` for `--help`."""
    settings = declared(spec)
    given = _from_file(settings, file_text, file_name or "configuration file")
    given |= _from_environment(settings, environ)
    given |= _from_flags(spec, settings, argv)
    values = {field: item.value for field, item in given.items()}
    for item in settings:
        if item.kind.complete is not None:
            found = given.get(item.field) or _parse(item, "", f"--{item.flag}")
            values[item.field] = _completed(item, found, values)
    return spec(**values)


def _completed(item: Setting, given: _Given, values: Mapping[str, Any]) -> Any:
    assert item.kind.complete is not None
    try:
        return item.kind.complete(given.value, values)
    except ValueError as error:
        raise _invalid(given, error) from error


def flag_value(spec: type[Any], argv: Sequence[str], environ: Mapping[str, str], field: str) -> Any:
    """Return one setting from flags and environment only, for the name of the settings file."""
    settings = declared(spec)
    merged = _from_environment(settings, environ) | _from_flags(spec, settings, argv)
    default = next(item.default for item in settings if item.field == field)
    return merged[field].value if field in merged else default


@dataclass(frozen=True, slots=True)
class _Given:
    """A parsed value, with its text and where that is from."""

    source: str
    text: str
    value: Any


def _parse(item: Setting, text: str, source: str) -> _Given:
    try:
        return _Given(source, text, item.kind.parse(text))
    except ValueError as error:
        raise _invalid(_Given(source, text, None), error) from error


def _invalid(given: _Given, error: ValueError) -> SettingsError:
    return SettingsError(f"{given.source}: invalid value {quote(given.text)}: {error}")


def _from_environment(settings: Sequence[Setting], environ: Mapping[str, str]) -> dict[str, _Given]:
    return {
        item.field: _parse(item, environ[item.environment], item.environment)
        for item in settings
        if item.environment in environ
    }


def _from_flags(spec: type[Any], settings: Sequence[Setting], argv: Sequence[str]) -> dict[str, _Given]:
    by_name = {name: item for item in settings for name in _flag_names(item)}
    texts: dict[str, list[str]] = {}
    sources: dict[str, tuple[Setting, str]] = {}
    remaining = list(argv)
    while remaining:
        argument = remaining.pop(0)
        if argument in ("--help", "-h", "--help-all"):
            raise HelpRequested(help_text(spec, everything=argument == "--help-all"))
        name, separator, text = argument.partition("=")
        item = by_name.get(name)
        if item is None:
            raise SettingsError(_unknown_flag(argument, name, by_name))
        if not separator:
            text = _separate_value(item, name, remaining)
        sources[item.field] = (item, name)
        texts.setdefault(item.field, []).append(text)
    return {field: _parse(item, _joined(item, texts[field]), name) for field, (item, name) in sources.items()}


def _flag_names(item: Setting) -> tuple[str, ...]:
    """Return the spellings of a flag; flags of one letter also have the form `-v=2`, as in klog."""
    short = item.short or (item.flag if len(item.flag) == 1 else "")
    return (f"--{item.flag}", f"-{short}") if short else (f"--{item.flag}",)


def _separate_value(item: Setting, name: str, remaining: list[str]) -> str:
    if item.kind.bare:
        return "true"
    if not remaining:
        raise SettingsError(f"{name}: needs a value")
    return remaining.pop(0)


def _joined(item: Setting, texts: Sequence[str]) -> str:
    return ",".join(texts) if item.kind.many else texts[-1]


def _unknown_flag(argument: str, name: str, known: Mapping[str, Any]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {quote(argument)}"
    return f"unknown flag: {name}{_did_you_mean(name, known)}"


def _did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    # Imported only for this error message.
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def _from_file(settings: Sequence[Setting], text: str, name: str) -> dict[str, _Given]:
    document = _read_yaml(text, name)
    by_key = {item.key: item for item in settings}
    values: dict[str, _Given] = {}
    for key, value in document.items():
        if key in ("apiVersion", "kind"):
            continue
        item = by_key.get(str(key))
        if item is None:
            raise SettingsError(f"{name}: unknown key {quote(str(key))}{_did_you_mean(str(key), by_key)}")
        values[item.field] = _parse(item, _yaml_text(item, value, f"{name}: {key}"), f"{name}: {key}")
    return values


def _read_yaml(text: str, name: str) -> Mapping[Any, Any]:
    if not text:
        return {}
    # Imported only if there is a file: the library takes a megabyte.
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{name}: not valid YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(f"{name}: must be a map of settings")
    return document


def _yaml_text(item: Setting, value: Any, source: str) -> str:
    """Return a YAML value as text, which every type parses."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if item.kind.many and isinstance(value, list):
        return ",".join(str(part) for part in value)
    if item.kind.many and isinstance(value, dict):
        return ",".join(f"{name}={_yaml_text(item, part, source)}" for name, part in value.items())
    raise SettingsError(f"{source}: invalid value {quote(str(value))}: must be a {item.kind.name}")


def help_text(spec: type[Any], *, everything: bool = True) -> str:
    """Return the `--help` page: flags with their type, description, default and environment variable.

    A settings class may name those that people use in `FREQUENT`; `--help` shows these, `--help-all` every flag.
    """
    settings = declared(spec)
    frequent: Sequence[str] = getattr(spec, "FREQUENT", ())
    by_name = {item.field: item for item in settings}
    shown = settings if everything or not frequent else tuple(by_name[name] for name in frequent)
    paragraphs = [(spec.__doc__ or "").strip(), "", "Flags:"]
    for item in shown:
        short = f"-{item.short}, " if item.short else "    "
        kind = "" if item.kind.bare else f" {item.kind.name}"
        paragraphs.append(f"  {short}--{item.flag}{kind}")
        note = f"{item.help}{_default_note(item)} [env {item.environment}, key {item.key}]"
        paragraphs.append(textwrap.fill(note, 110, initial_indent=" " * 10, subsequent_indent=" " * 10))
    paragraphs += ["  -h, --help", " " * 10 + "Show this page."]
    if len(shown) < len(settings):
        paragraphs += ["      --help-all", f"{' ' * 10}Show {len(settings) - len(shown)} more flags."]
    return "\n".join(paragraphs) + "\n"


def _default_note(item: Setting) -> str:
    if item.default in ("", None, False, ()) or isinstance(item.default, FeatureGates):
        return ""
    if isinstance(item.default, Release):
        return f" (default {item.default})"
    shown = ",".join(item.default) if isinstance(item.default, tuple) else item.default
    return f" (default {quote(shown) if isinstance(shown, str) else str(shown).lower()})"
