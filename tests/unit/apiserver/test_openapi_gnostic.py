"""The protobuf form of the v2 document, decoded field by field."""

from __future__ import annotations

from typing import Any

import pytest

from dray.api.protobuf.wire import read_fields
from dray.apiserver.openapi.gnostic import encode_v2

POD = {
    "description": "A pod.",
    "type": "object",
    "required": ["spec"],
    "properties": {"spec": {"$ref": "#/definitions/Spec"}},
    "x-kubernetes-group-version-kind": [{"group": "", "kind": "Pod", "version": "v1"}],
}
PATCH_POD = {
    "operationId": "patchPod",
    "parameters": [
        {"name": "dryRun", "in": "query", "type": "string"},
        {"name": "body", "in": "body", "schema": {"$ref": "#/definitions/Patch"}},
    ],
    "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Pod"}}},
    "x-kubernetes-action": "patch",
}
DOCUMENT: dict[str, Any] = {
    "swagger": "2.0",
    "info": {"title": "Kubernetes", "version": "v1"},
    "paths": {"/api/v1/pods/{name}": {"patch": PATCH_POD}},
    "definitions": {"Pod": POD},
    "securityDefinitions": {"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization"}},
    "security": [{"BearerToken": []}],
}


def at(message: bytes, *numbers: int) -> bytes:
    """Return the last field of each number, going inwards."""
    for number in numbers:
        message = read_fields(message)[number]
    return message


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        pytest.param((1,), b"2.0", id="swagger"),
        pytest.param((2, 1), b"Kubernetes", id="info title"),
        pytest.param((9, 1, 1), b"Pod", id="definition name"),
        pytest.param((9, 1, 2, 4), b"A pod.", id="definition description"),
        pytest.param((9, 1, 2, 19), b"spec", id="required"),
        pytest.param((9, 1, 2, 22, 1), b"object", id="type"),
        pytest.param((9, 1, 2, 25, 1, 2, 1), b"#/definitions/Spec", id="property reference"),
        pytest.param((9, 1, 2, 31, 1), b"x-kubernetes-group-version-kind", id="extension name"),
        pytest.param((9, 1, 2, 31, 2, 2), b'[{"group":"","kind":"Pod","version":"v1"}]', id="extension value"),
        pytest.param((8, 2, 1), b"/api/v1/pods/{name}", id="path"),
        pytest.param((8, 2, 2, 8, 5), b"patchPod", id="operation id"),
        pytest.param((8, 2, 2, 8, 8, 1, 1, 2), b"body", id="body parameter"),
        pytest.param((8, 2, 2, 8, 9, 1, 1), b"200", id="response code"),
        pytest.param((8, 2, 2, 8, 9, 1, 2, 1, 2, 1, 1), b"#/definitions/Pod", id="response schema"),
        pytest.param((8, 2, 2, 8, 13, 2, 2), b'"patch"', id="action"),
        pytest.param((12, 1, 1), b"BearerToken", id="security requirement"),
        pytest.param((13, 1, 2, 2, 2), b"authorization", id="security definition"),
    ],
)
def test_every_field_is_where_the_message_has_it(numbers: tuple[int, ...], expected: bytes) -> None:
    assert at(encode_v2(DOCUMENT), *numbers) == expected


def test_query_parameters_are_found_inside_their_unions() -> None:
    operation = PATCH_POD | {"parameters": [{"name": "dryRun", "in": "query", "type": "string"}]}
    encoded = encode_v2({"paths": {"/p": {"patch": operation}}})
    assert at(encoded, 8, 2, 2, 8, 8, 1, 2, 3, 4) == b"dryRun"


def test_additional_properties_are_a_schema_or_a_boolean() -> None:
    of_schema = encode_v2({"definitions": {"M": {"additionalProperties": {"type": "string"}}}})
    assert at(of_schema, 9, 1, 2, 21, 1, 22, 1) == b"string"
    of_boolean = encode_v2({"definitions": {"M": {"additionalProperties": True}}})
    assert at(of_boolean, 9, 1, 2, 21) == b"\x10\x01"
