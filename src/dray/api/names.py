"""Kubernetes' rules for names, label keys and label values.

Each rule returns the validation messages of a text, with the wording of apimachinery; none means that it is valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from dray.lib.ip_addresses import parse_address

LABEL_LENGTH_MAX: Final = 63
SUBDOMAIN_LENGTH_MAX: Final = 253

DNS1123_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS1123_SUBDOMAIN: Final = rf"{DNS1123_LABEL}(\.{DNS1123_LABEL})*"
_DNS1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_LABEL_KEY = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_LABEL_KEY})?"
_C_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_CONFIG_MAP_KEY = "[-._a-zA-Z0-9]+"

_matches_label = re.compile(DNS1123_LABEL).fullmatch
_matches_subdomain = re.compile(DNS1123_SUBDOMAIN).fullmatch
# As in search paths of the resolver: labels may begin with an underscore and have some within.
_UNDERSCORED_LABEL = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_UNDERSCORED_SUBDOMAIN = rf"{_UNDERSCORED_LABEL}(\.{_UNDERSCORED_LABEL})*"
_matches_underscored_subdomain = re.compile(_UNDERSCORED_SUBDOMAIN).fullmatch
_matches_dns1035 = re.compile(_DNS1035).fullmatch
_matches_label_key = re.compile(_LABEL_KEY).fullmatch
_matches_c_identifier = re.compile(_C_IDENTIFIER).fullmatch
_matches_config_map_key = re.compile(_CONFIG_MAP_KEY).fullmatch
_matches_relaxed_env_var = re.compile(r"[ -<>-~]*").fullmatch
_matches_port_name = re.compile("[-a-z0-9]+").fullmatch
_has_letter = re.compile("[a-z]").search


def too_long(length_max: int, unit: str = "characters") -> str:
    """Return the message for a text that is too long; label keys and values count bytes, the older rules characters."""
    return f"must be no more than {length_max} {unit}"


def pattern_message(what: str, pattern: str, *examples: str) -> str:
    """Return the message for a text that does not match a pattern."""
    if not examples:
        return f"{what} (regex used for validation is '{pattern}')"
    listed = " or ".join(f"'{example}', " for example in examples)
    return f"{what} (e.g. {listed}regex used for validation is '{pattern}')"


_BAD_LABEL = pattern_message(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character",
    DNS1123_LABEL,
    "my-name",
    "123-abc",
)
_BAD_SUBDOMAIN = pattern_message(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character",
    DNS1123_SUBDOMAIN,
    "example.com",
)
_BAD_UNDERSCORED_SUBDOMAIN = pattern_message(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', "
    "and must start and end with an alphanumeric character",
    _UNDERSCORED_SUBDOMAIN,
    "example.com",
)
_BAD_CASELESS_SUBDOMAIN = pattern_message(
    "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character",
    DNS1123_SUBDOMAIN,
    "Example.com",
)
_BAD_DNS1035 = pattern_message(
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character",
    _DNS1035,
    "my-name",
    "abc-123",
)
_BAD_LABEL_KEY = pattern_message(
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    _LABEL_KEY,
    "MyName",
    "my.name",
    "123-abc",
)
_BAD_LABEL_VALUE = pattern_message(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character",
    _LABEL_VALUE,
    "MyValue",
    "my_value",
    "12345",
)
_BAD_C_IDENTIFIER = pattern_message(
    "a valid C identifier must start with alphabetic character or '_', "
    "followed by a string of alphanumeric characters or '_'",
    _C_IDENTIFIER,
    "my_name",
    "MY_NAME",
    "MyName",
)
_BAD_CONFIG_MAP_KEY = pattern_message(
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    _CONFIG_MAP_KEY,
    "key.name",
    "KEY_NAME",
    "key-name",
)
_BAD_RELAXED_ENV_VAR = (
    "a valid environment variable name must consist only of printable ASCII characters other than '='"
)


def _byte_length(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())


def dns1123_label(value: str) -> list[str]:
    """Validate a DNS-1123 label: lower case, at most 63 bytes, no dots."""
    if len(value) <= LABEL_LENGTH_MAX and _matches_label(value):
        return []
    messages = [] if _byte_length(value) <= LABEL_LENGTH_MAX else [too_long(LABEL_LENGTH_MAX)]
    if not _matches_label(value):
        # A valid subdomain can be invalid as a label only because of its dots.
        messages.append("must not contain dots" if _matches_subdomain(value) else _BAD_LABEL)
    return messages


def dns1123_subdomain(value: str) -> list[str]:
    """Validate a DNS-1123 subdomain: lower-case labels joined by dots, at most 253 bytes."""
    if len(value) <= SUBDOMAIN_LENGTH_MAX and _matches_subdomain(value):
        return []
    messages = [] if _byte_length(value) <= SUBDOMAIN_LENGTH_MAX else [too_long(SUBDOMAIN_LENGTH_MAX)]
    if not _matches_subdomain(value):
        messages.append(_BAD_SUBDOMAIN)
    return messages


def underscored_subdomain(value: str) -> list[str]:
    """Validate a subdomain whose labels may have underscores, such as a search path of the resolver."""
    messages = [] if _byte_length(value) <= SUBDOMAIN_LENGTH_MAX else [too_long(SUBDOMAIN_LENGTH_MAX)]
    if not _matches_underscored_subdomain(value):
        messages.append(_BAD_UNDERSCORED_SUBDOMAIN)
    return messages


def caseless_subdomain(value: str) -> list[str]:
    """Validate a subdomain that may have upper-case letters, such as a driver name."""
    if len(value) <= SUBDOMAIN_LENGTH_MAX and _matches_subdomain(value.lower()) and value.isascii():
        return []
    messages = [] if _byte_length(value) <= SUBDOMAIN_LENGTH_MAX else [too_long(SUBDOMAIN_LENGTH_MAX, "bytes")]
    if not (value.isascii() and _matches_subdomain(value.lower())):
        messages.append(_BAD_CASELESS_SUBDOMAIN)
    return messages


def dns1035_label(value: str) -> list[str]:
    """Validate a DNS-1035 label, which starts with a letter."""
    messages = [] if _byte_length(value) <= LABEL_LENGTH_MAX else [too_long(LABEL_LENGTH_MAX)]
    if not _matches_dns1035(value):
        messages.append(_BAD_DNS1035)
    return messages


def qualified_name(value: str) -> list[str]:
    """Validate a label key: a name with an optional `domain/` prefix."""
    prefix, separator, name = value.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_BAD_LABEL_KEY} "
            "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    messages = [f"prefix part {problem}" for problem in _prefix_problems(prefix)] if separator else []
    if not name:
        messages.append("name part must be non-empty")
    elif _byte_length(name) > LABEL_LENGTH_MAX:
        messages.append(f"name part {too_long(LABEL_LENGTH_MAX, 'bytes')}")
    if not _matches_label_key(name):
        messages.append(f"name part {_BAD_LABEL_KEY}")
    return messages


def _prefix_problems(prefix: str) -> list[str]:
    if not prefix:
        return ["must be non-empty"]
    return [
        message.replace("characters", "bytes", 1) if message.startswith("must be no more") else message
        for message in dns1123_subdomain(prefix)
    ]


def label_value(value: str) -> list[str]:
    """Validate a label value; it may be empty."""
    if not value:
        return []
    messages = [] if _byte_length(value) <= LABEL_LENGTH_MAX else [too_long(LABEL_LENGTH_MAX, "bytes")]
    if not _matches_label_key(value):
        messages.append(_BAD_LABEL_VALUE)
    return messages


def c_identifier(value: str) -> list[str]:
    """Validate a C identifier of any length."""
    return [] if _matches_c_identifier(value) else [_BAD_C_IDENTIFIER]


def config_map_key(value: str) -> list[str]:
    """Validate a key of a ConfigMap or Secret; it becomes a file name."""
    messages = [] if _byte_length(value) <= SUBDOMAIN_LENGTH_MAX else [too_long(SUBDOMAIN_LENGTH_MAX)]
    if not _matches_config_map_key(value):
        messages.append(_BAD_CONFIG_MAP_KEY)
    return messages + _directory_change(value)


def relaxed_env_var_name(value: str) -> list[str]:
    """Validate the name of an environment variable as Pods may use it: any printable ASCII except `=`."""
    if not value:
        return ["environment variable name must be non-empty"]
    return [] if _matches_relaxed_env_var(value) else [_BAD_RELAXED_ENV_VAR]


def port_name(value: str) -> list[str]:
    """Validate the name of a container or service port (RFC 6335, lower case)."""
    messages = [] if len(value) <= _PORT_NAME_LENGTH_MAX else [too_long(_PORT_NAME_LENGTH_MAX)]
    if not _matches_port_name(value):
        messages.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not _has_letter(value):
        messages.append("must contain at least one letter (a-z)")
    if "--" in value:
        messages.append("must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        messages.append("must not begin or end with a hyphen")
    return messages


_PORT_NAME_LENGTH_MAX: Final = 15


def path_segment_name(value: str) -> list[str]:
    """Validate a name that is one segment of a URL path, such as the name of an RBAC object."""
    if value in (".", ".."):
        return [f"may not be '{value}'"]
    return [f"may not contain '{mark}'" for mark in ("/", "%") if mark in value]


def _directory_change(value: str) -> list[str]:
    if not value.startswith("."):
        return []
    if value in (".", ".."):
        return [f"must not be '{value}'"]
    return ["must not start with '..'"] if value.startswith("..") else []


# Rules of `metadata.name` by the key that a strategy uses.
_IPV4: Final = 4
_DOTS: Final = 3
_BYTE: Final = 256
NO_ADDRESS: Final = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def ip_address_name(value: str) -> list[str]:
    """Validate a name that is an IP address in its canonical form."""
    address = parse_address(value)
    if address is None:
        zeros = all(part.isdecimal() and int(part) < _BYTE for part in value.split(".")) and value.count(".") == _DOTS
        return ["must not have leading 0s" if zeros else NO_ADDRESS]
    if ":" in value and address.version == _IPV4:
        return ["must not be an IPv4-mapped IPv6 address"]
    return [] if value == str(address) else [f'must be in canonical form ("{address}")']


NAME_RULES: Final[Mapping[str, Callable[[str], list[str]]]] = {
    "": dns1123_subdomain,
    "label": dns1123_label,
    "dns1035": dns1035_label,
    "path-segment": path_segment_name,
    "ip-address": ip_address_name,
}
