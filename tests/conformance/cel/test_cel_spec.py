"""The CEL specification's conformance cases, except where Kubernetes' environment differs."""

from __future__ import annotations

import pytest

from tests.conformance.cel.spec_cases import SpecCase, outcome, spec_cases

pytestmark = pytest.mark.api_cel

_ESCAPED = "Kubernetes does not enable names in backticks"
_QUALIFIED = "Kubernetes declares no variable with a dotted name"
_DECLARED = "the case declares functions and types of its own"
_FORMAT = "Kubernetes uses version 2 of the string extension, which formats for a locale and prints literals in lists"
_OFFSET = "cel-go returns -1 for an offset beyond the end"

SKIPPED = {
    **dict.fromkeys(
        (
            "fields/quoted_map_fields/field_access_slash",
            "fields/quoted_map_fields/field_access_dash",
            "fields/quoted_map_fields/field_access_dot",
            "fields/quoted_map_fields/has_field_slash",
            "fields/quoted_map_fields/has_field_dash",
            "fields/quoted_map_fields/has_field_dot",
        ),
        _ESCAPED,
    ),
    **dict.fromkeys(
        (
            "fields/qualified_identifier_resolution/qualified_ident",
            "fields/qualified_identifier_resolution/map_field_select",
            "fields/qualified_identifier_resolution/qualified_identifier_resolution_unchecked",
            "fields/qualified_identifier_resolution/ident_with_longest_prefix_check",
            "namespace/qualified/self_eval_qualified_lookup",
        ),
        _QUALIFIED,
    ),
    **dict.fromkeys(
        (
            "type_deductions/functions/function_result_type",
            "type_deductions/type_parameters/multiple_parameters_generality",
            "type_deductions/type_parameters/multiple_parameters_generality_2",
            "type_deductions/type_parameters/multiple_parameters_parameterized_ovl",
            "type_deductions/type_parameters/multiple_parameters_parameterized_ovl_2",
        ),
        _DECLARED,
    ),
    **dict.fromkeys(
        (
            "string_ext/format/scientific notation formatting clause",
            "string_ext/format/default precision for scientific notation",
            "string_ext/format/positive infinity support for scientific notation",
            "string_ext/format/negative infinity support for scientific notation",
            "string_ext/format/NaN support for decimal",
            "string_ext/format/positive infinity support for decimal",
            "string_ext/format/negative infinity support for decimal",
            "string_ext/format/positive infinity support for fixed-point",
            "string_ext/format/negative infinity support for fixed-point",
            "string_ext/format/list support for string",
            "string_ext/format/map support for string",
            "string_ext/format/map support (all key types)",
            "string_ext/format/dyntype support for scientific notation",
            "string_ext/format/dyntype NaN/infinity support",
            "string_ext/format/dyntype support for lists",
            "string_ext/format/dyntype support for maps",
            "string_ext/format/scientific notation formatting clause in a string variable",
        ),
        _FORMAT,
    ),
    "string_ext/value_errors/indexof_out_of_range": _OFFSET,
    "string_ext/value_errors/lastindexof_out_of_range": _OFFSET,
    "conversions/type/dyn_no_denotation": "cel-go knows `dyn` as the name of a type",
    "type_deductions/legacy_nullable_types/null_assignable_to_abstract_parameter_candidate": (
        "null is not an optional value"
    ),
}

CASES = list(spec_cases())


def by_section() -> dict[str, list[SpecCase]]:
    sections: dict[str, list[SpecCase]] = {}
    for case in CASES:
        if case.name not in SKIPPED:
            sections.setdefault(case.name.rpartition("/")[0], []).append(case)
    return sections


# One test per section, so that fourteen hundred cases do not take fourteen hundred fixtures.
@pytest.mark.parametrize("cases", [pytest.param(cases, id=name) for name, cases in by_section().items()])
def test_section(cases: list[SpecCase]) -> None:
    wrong = {case.name: f"{case.test['expr']}: {found}" for case in cases if (found := outcome(case)) is not None}
    assert not wrong


def test_skipped_cases_exist_and_differ() -> None:
    found = {case.name: case for case in CASES}
    assert SKIPPED.keys() <= found.keys()
    runnable = [name for name, reason in SKIPPED.items() if reason is not _QUALIFIED]
    assert [name for name in runnable if outcome(found[name]) is None] == []


def test_how_many_cases_there_are() -> None:
    # 37 of 1,420 are skipped.
    assert (len(CASES), len(SKIPPED)) == (1420, 37)
