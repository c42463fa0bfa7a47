"""Validation of names and labels with the messages of apimachinery."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dray.api import names

LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
NOT_CANONICAL = 'must be in canonical form ("2001:db8::1")'
MAPPED = "must not be an IPv4-mapped IPv6 address"
SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
KEY = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
DRIVER = (
    "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'Example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
ROWS = {
    "label": (names.dns1123_label, "gpu-0", []),
    "label, 63": (names.dns1123_label, "a" * 63, []),
    "label, 64": (names.dns1123_label, "a" * 64, ["must be no more than 63 characters"]),
    "label, dots": (names.dns1123_label, "a.b", ["must not contain dots"]),
    "label, upper": (names.dns1123_label, "Gpu", [LABEL]),
    "label, newline": (names.dns1123_label, "gpu\n", [LABEL]),
    "label, empty": (names.dns1123_label, "", [LABEL]),
    "subdomain": (names.dns1123_subdomain, "a.b-c.d", []),
    "subdomain, 254": (names.dns1123_subdomain, "a" * 254, ["must be no more than 253 characters"]),
    "subdomain, dash": (names.dns1123_subdomain, "a.-b", [SUBDOMAIN]),
    "subdomain, long and bad": (
        names.dns1123_subdomain,
        "_" * 254,
        ["must be no more than 253 characters", SUBDOMAIN],
    ),
    "caseless": (names.caseless_subdomain, "GPU.Example.com", []),
    "caseless, bad": (names.caseless_subdomain, "gpu_1", [DRIVER]),
    "caseless, kelvin sign": (names.caseless_subdomain, "\u212a", [DRIVER]),
    "1035": (names.dns1035_label, "a1", []),
    "key": (names.qualified_name, "example.com/My_name", []),
    "key without prefix": (names.qualified_name, "app", []),
    "key, empty prefix": (names.qualified_name, "/a", ["prefix part must be non-empty"]),
    "key, bad prefix": (names.qualified_name, "A/a", [f"prefix part {SUBDOMAIN}"]),
    "key, long prefix": (names.qualified_name, "a" * 254 + "/a", ["prefix part must be no more than 253 bytes"]),
    "key, empty name": (names.qualified_name, "a/", ["name part must be non-empty", f"name part {KEY}"]),
    "key, long name": (names.qualified_name, "a" * 64, ["name part must be no more than 63 bytes"]),
    "key, space": (names.qualified_name, "a b", [f"name part {KEY}"]),
    "key, two slashes": (
        names.qualified_name,
        "a/b/c",
        [f"a valid label key {KEY} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"],
    ),
    "value": (names.label_value, "v1_x.y", []),
    "value, empty": (names.label_value, "", []),
    "value, long": (names.label_value, "a" * 64, ["must be no more than 63 bytes"]),
    "identifier": (names.c_identifier, "_a1", []),
    "config map key": (names.config_map_key, "a.b_C-d", []),
    "config map key, dots": (names.config_map_key, "..", ["must not be '..'"]),
    "config map key, up": (names.config_map_key, "..a", ["must not start with '..'"]),
    "relaxed env": (names.relaxed_env_var_name, "1 a%", []),
    "relaxed env, equals": (
        names.relaxed_env_var_name,
        "a=b",
        ["a valid environment variable name must consist only of printable ASCII characters other than '='"],
    ),
    "relaxed env, empty": (names.relaxed_env_var_name, "", ["environment variable name must be non-empty"]),
    "address": (names.ip_address_name, "192.0.2.1", []),
    "address, IPv6": (names.ip_address_name, "2001:db8::1", []),
    "address, mapped": (names.ip_address_name, "::ffff:192.0.2.1", [MAPPED]),
    "address, upper case": (names.ip_address_name, "2001:DB8::1", [NOT_CANONICAL]),
    "address, long form": (names.ip_address_name, "2001:db8:0::1", [NOT_CANONICAL]),
    "address, mapped in hexadecimal": (names.ip_address_name, "::ffff:c000:201", [MAPPED]),
    "address, leading zero": (names.ip_address_name, "192.0.2.01", ["must not have leading 0s"]),
    "address, none": (names.ip_address_name, "a.b", [names.NO_ADDRESS]),
    "underscored": (names.underscored_subdomain, "_tcp.a_b.example.com", []),
    "underscored, too long": (names.underscored_subdomain, "a" * 254, ["must be no more than 253 characters"]),
    "segment": (names.path_segment_name, "system:node", []),
    "segment, dots": (names.path_segment_name, "..", ["may not be '..'"]),
    "segment, marks": (names.path_segment_name, "a/b%c", ["may not contain '/'", "may not contain '%'"]),
    "port": (names.port_name, "https", []),
    "port, dashes": (
        names.port_name,
        "-a--b",
        ["must not contain consecutive hyphens", "must not begin or end with a hyphen"],
    ),
    "port, no letter": (names.port_name, "80", ["must contain at least one letter (a-z)"]),
}


@pytest.mark.parametrize("row", ROWS)
def test_rule(row: str) -> None:
    rule: Callable[[str], list[str]]
    rule, value, expected = ROWS[row]
    assert rule(value) == expected


@pytest.mark.parametrize(
    ("rule", "value", "start"),
    [
        (names.dns1035_label, "1a", "a DNS-1035 label must consist of"),
        (names.label_value, "-a", "a valid label must be an empty string or consist of"),
        (names.c_identifier, "1a", "a valid C identifier must start with alphabetic character or '_'"),
        (names.config_map_key, "a b", "a valid config key must consist of"),
    ],
)
def test_first_words(rule: Callable[[str], list[str]], value: str, start: str) -> None:
    (message,) = rule(value)
    assert message.startswith(start)


def test_rules_have_the_keys_that_strategies_use() -> None:
    assert {key: rule("a/b") == [] for key, rule in names.NAME_RULES.items()} == {
        "": False,
        "label": False,
        "dns1035": False,
        "path-segment": False,
        "ip-address": False,
    }
    assert names.NAME_RULES["path-segment"]("A:b") == []
