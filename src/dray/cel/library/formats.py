"""Named formats of strings: labels, names, URIs and so on."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar, Final

from dray.cel.errors import CELRuntimeError
from dray.cel.library.kubernetes import pattern
from dray.cel.library.network import parse_url
from dray.cel.library.times import parse_timestamp
from dray.cel.runtime import traversal
from dray.cel.signatures import Registry
from dray.cel.values import NONE, Optional

REGISTRY: Final = Registry()

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_OLD_LABEL: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_VALUE: Final = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_NAME: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_OLD_LABEL_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
    "character, and end with an alphanumeric character "
    f"(e.g. 'my-name',  or 'abc-123', regex used for validation is '{_OLD_LABEL}')"
)
_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
)
_NAME_TEXT: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME}')"
)
_QUALIFIED_TEXT: Final = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_NAME}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)
_UUID: Final = re.compile("[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_LABEL_MAX: Final = 63
_SUBDOMAIN_MAX: Final = 253

Check = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True, eq=False)
class NamedFormat:
    """A format; `check` returns the validation messages of a string."""

    type_name: ClassVar[str] = "kubernetes.NamedFormat"

    name: str
    check: Check


def _pattern(expression: str, message: str, length_max: int, *, prefix: bool = False) -> Check:
    compiled = pattern(expression)

    def check(text: str) -> list[str]:
        # A prefix is a name with a suffix still to be appended.
        tested = f"{text[:-1]}a" if prefix and text.endswith("-") else text
        wrong = [f"must be no more than {length_max} bytes"] if len(text.encode()) > length_max else []
        if compiled.fullmatch(tested) is None:
            wrong.append(message)
        return wrong

    return check


_SUBDOMAIN_CHECK: Final = _pattern(_SUBDOMAIN, _SUBDOMAIN_TEXT, _SUBDOMAIN_MAX)
_NAME_PATTERN: Final = pattern(_NAME)


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if text.count("/") > 1:
        return [_QUALIFIED_TEXT]
    wrong: list[str] = []
    if slash:
        wrong = ["prefix part must be non-empty"] if not prefix else []
        wrong += [f"prefix part {message}" for message in (_SUBDOMAIN_CHECK(prefix) if prefix else [])]
    if not name:
        wrong.append("name part must be non-empty")
    elif len(name.encode()) > _LABEL_MAX:
        wrong.append(f"name part must be no more than {_LABEL_MAX} bytes")
    if _NAME_PATTERN.fullmatch(name) is None:
        wrong.append(_NAME_TEXT)
    return wrong


def _parses(parse: Callable[[str], Any], message: str) -> Check:
    def check(text: str) -> list[str]:
        try:
            return [message] if parse(text) is None else []
        except (CELRuntimeError, ValueError, binascii.Error):
            return [message]

    return check


def _parse_date(text: str) -> date:
    if len(text) != len("2006-01-02"):
        raise ValueError(text)
    return date.fromisoformat(text)


_FORMATS: Final[Mapping[str, NamedFormat]] = {
    name: NamedFormat(name, check)
    for name, check in {
        "dns1123Label": _pattern(_LABEL, _LABEL_TEXT, _LABEL_MAX),
        "dns1123Subdomain": _SUBDOMAIN_CHECK,
        "dns1035Label": _pattern(_OLD_LABEL, _OLD_LABEL_TEXT, _LABEL_MAX),
        "qualifiedName": _qualified_name,
        "dns1123LabelPrefix": _pattern(_LABEL, _LABEL_TEXT, _LABEL_MAX, prefix=True),
        "dns1123SubdomainPrefix": _pattern(_SUBDOMAIN, _SUBDOMAIN_TEXT, _SUBDOMAIN_MAX, prefix=True),
        "dns1035LabelPrefix": _pattern(_OLD_LABEL, _OLD_LABEL_TEXT, _LABEL_MAX, prefix=True),
        "labelValue": _pattern(_VALUE, _VALUE_TEXT, _LABEL_MAX),
        "uri": _parses(parse_url, "invalid URI"),
        "uuid": _parses(_UUID.fullmatch, "does not match the UUID format"),
        "byte": _parses(lambda text: base64.b64decode(text, validate=True), "invalid base64"),
        "date": _parses(_parse_date, "invalid date"),
        "datetime": _parses(parse_timestamp, "invalid datetime"),
    }.items()
}


def _named(name: str) -> Optional:
    found = _FORMATS.get(name)
    return NONE if found is None else Optional(found)


def _validate(chosen: NamedFormat, text: str) -> Optional:
    wrong = chosen.check(text)
    return Optional(wrong) if wrong else NONE


REGISTRY.declare("format.named(string) -> optional(format)", _named)
REGISTRY.declare(
    "format::validate(string) -> optional(list(string))",
    _validate,
    # The longest pattern has 60 characters.
    charge=lambda _, text: 15 * traversal(1 + len(text)),
)
for _name, _format in _FORMATS.items():
    REGISTRY.declare(f"format.{_name}() -> format", lambda chosen=_format: chosen)
