"""Validation of custom resource definitions, with the messages of kube-apiserver 1.36."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.defaults.other_groups import DEFAULTERS
from dray.api.document import Document, GroupVersionKind, copy_document
from dray.api.field_errors import FieldErrors
from dray.api.validation.apiextensions_v1 import validate_definition, validate_definition_update
from dray.apiserver.custom.rule_checks import validate_rules

NOW = datetime(2026, 1, 2, tzinfo=UTC)
KIND = GroupVersionKind("apiextensions.k8s.io", "v1", "CustomResourceDefinition")
STRING = {"type": "string"}


def version(name: str = "v1", *, storage: bool = True, schema: Document | None = None, **fields: Any) -> Document:
    schema = {"type": "object"} if schema is None else schema
    return {"name": name, "served": True, "storage": storage, "schema": {"openAPIV3Schema": schema}, **fields}


def definition(*versions: Document, **spec: Any) -> Document:
    names = {"plural": "things", "kind": "Thing"}
    document: Document = {
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": names,
            "versions": list(versions or (version(),)),
            **spec,
        },
    }
    DEFAULTERS[KIND](document, NOW)
    return document


def with_spec(schema: Document, **more: Any) -> Document:
    return definition(version(schema={"type": "object", "properties": {"spec": schema}, **more}))


def texts(errors: FieldErrors) -> list[str]:
    return [str(error) for error in errors]


def test_defaults() -> None:
    made = definition()["spec"]
    assert made["names"] == {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"}
    assert made["conversion"] == {"strategy": "None"}


def test_valid() -> None:
    assert validate_definition(definition()) == []


def change(**spec: Any) -> Callable[[], Document]:
    return lambda: definition(**spec)


DNS_1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
NAMED = {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"}
SPEC_ROWS: dict[str, tuple[Callable[[], Document], list[str]]] = {
    "scope": (change(scope=""), ["spec.scope: Required value"]),
    "unknown scope": (
        change(scope="Galaxy"),
        ['spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced"'],
    ),
    "no storage version": (
        lambda: definition(version(storage=False)),
        [
            'spec.versions: Invalid value: [{"name":"v1","served":true,"storage":false}]: must have exactly one '
            "version marked as storage version"
        ],
    ),
    "two storage versions": (
        lambda: definition(version(), version("v2")),
        [
            'spec.versions: Invalid value: [{"name":"v1","served":true,"storage":true},{"name":"v2","served":true,'
            '"storage":true}]: must have exactly one version marked as storage version'
        ],
    ),
    "same version twice": (
        lambda: definition(version(), version(storage=False)),
        [
            'spec.versions: Invalid value: [{"name":"v1","served":true,"storage":true},{"name":"v1","served":true,'
            '"storage":false}]: must contain unique version names'
        ],
    ),
    "version name": (
        lambda: definition(version("V1")),
        [f'spec.versions[0].name: Invalid value: "V1": {DNS_1035}'],
    ),
    "no schema": (
        lambda: definition({"name": "v1", "served": True, "storage": True}),
        ["spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required"],
    ),
    "kind as list kind": (
        change(names=NAMED | {"listKind": "Thing"}),
        ['spec.names.listKind: Invalid value: "Thing": kind and listKind may not be the same'],
    ),
    "short name": (
        change(names=NAMED | {"shortNames": ["T"]}),
        [f'spec.names.shortNames[0]: Invalid value: "T": {DNS_1035}'],
    ),
    "warning without deprecation": (
        lambda: definition(version(deprecationWarning="gone soon")),
        [
            'spec.versions[0].deprecationWarning: Invalid value: "gone soon": can only be set for deprecated versions',
        ],
    ),
    "pruning off": (
        change(preserveUnknownFields=True),
        [
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set "
            "x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        ],
    ),
    "webhook without client": (
        change(conversion={"strategy": "Webhook"}),
        [
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            "spec.conversion.conversionReviewVersions: Required value",
        ],
    ),
    "scale paths": (
        lambda: definition(version(subresources={"scale": {"specReplicasPath": ".status.n"}})),
        [
            'spec.subresources.scale.specReplicasPath: Invalid value: ".status.n": should be a json path under .spec',
            "spec.subresources.scale.statusReplicasPath: Required value",
        ],
    ),
    "column": (
        lambda: definition(version(additionalPrinterColumns=[{"name": "N", "type": "odd", "jsonPath": "spec"}])),
        [
            'spec.additionalPrinterColumns[0].type: Invalid value: "odd": must be one of '
            "boolean,date,integer,number,string",
            'spec.additionalPrinterColumns[0].JSONPath: Invalid value: "spec": must be a simple json path starting '
            "with .",
        ],
    ),
    "parts that differ are named by version": (
        lambda: definition(
            version(additionalPrinterColumns=[{"name": "N", "type": "string"}]), version("v2", storage=False)
        ),
        ["spec.versions[0].additionalPrinterColumns[0].JSONPath: Required value"],
    ),
}


@pytest.mark.parametrize("name", SPEC_ROWS)
def test_spec(name: str) -> None:
    made, errors = SPEC_ROWS[name]
    document = made()
    kept = copy_document(document)
    assert texts(validate_definition(document)) == errors
    assert document == kept


def test_name_is_plural_and_group() -> None:
    document = definition() | {"metadata": {"name": "wrong"}}
    assert texts(validate_definition(document)) == [
        'metadata.name: Invalid value: "wrong": must be spec.names.plural+"."+spec.group'
    ]


@pytest.mark.parametrize("approval", [None, "yes", "https://github.com/kubernetes/kubernetes/pull/1", "unapproved, x"])
def test_protected_groups_need_an_approval(approval: str | None) -> None:
    document = definition(group="example.k8s.io")
    annotations = {} if approval is None else {"api-approved.kubernetes.io": approval}
    document["metadata"] = {"name": "things.example.k8s.io", "annotations": annotations}
    start = "metadata.annotations[api-approved.kubernetes.io]: "
    words = {None: "Required value: protected groups must", "yes": 'Invalid value: "yes": protected groups must'}
    errors = texts(validate_definition(document))
    if approval in words:
        assert [error[: len(start + words[approval])] for error in errors] == [start + words[approval]]
    else:
        assert errors == []


ROOT = "spec.validation.openAPIV3Schema"
SPEC = f"{ROOT}.properties[spec]"
SCHEMA_ROWS: dict[str, tuple[Document, list[str]]] = {
    "no type": ({}, [f"{SPEC}.type: Required value: must not be empty for specified object fields"]),
    "no item type": (
        {"type": "array", "items": {}},
        [f"{SPEC}.items.type: Required value: must not be empty for specified array items"],
    ),
    "no items": ({"type": "array"}, [f"{SPEC}.items: Required value: must be specified"]),
    "unknown type": (
        {"type": "text"},
        [
            f'{SPEC}.type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number", '
            '"object", "string"'
        ],
    ),
    "type inside an alternative": (
        {"type": "object", "anyOf": [{"type": "object"}]},
        [f"{SPEC}.anyOf[0].type: Forbidden: must be empty to be structural"],
    ),
    # Completeness is required only of the root's alternatives.
    "field inside a nested alternative alone": (
        {"type": "object", "oneOf": [{"properties": {"a": {"minLength": 1}}}]},
        [],
    ),
    "int or string": (
        {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        [],
    ),
    "pattern": (
        {"type": "string", "pattern": "a("},
        [
            f'{SPEC}.pattern: Invalid value: "a(": must be a valid regular expression, but isn\'t: error parsing '
            "regexp: missing ): a("
        ],
    ),
    "unique items": (
        {"type": "array", "items": STRING, "uniqueItems": True},
        [
            f"{SPEC}.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes "
            "quadratic"
        ],
    ),
    "properties of both sorts": (
        {"type": "object", "properties": {"a": STRING}, "additionalProperties": STRING},
        [f"{SPEC}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
    ),
    "reference": (
        {"type": "object", "$ref": "#/x"},
        [f"{SPEC}.$ref: Forbidden: $ref is not supported"],
    ),
    "preserve nothing": (
        {"type": "object", "x-kubernetes-preserve-unknown-fields": False},
        [f"{SPEC}.x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined"],
    ),
    "list type of a string": (
        {"type": "string", "x-kubernetes-list-type": "set"},
        [f'{SPEC}.type: Invalid value: "string": must be array if x-kubernetes-list-type is specified'],
    ),
    "map list without keys": (
        {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}},
        [f"{SPEC}.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"],
    ),
    "map list with optional key": (
        {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": STRING}},
        },
        [
            f"{SPEC}.items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so "
            "it must have a default or be a required property"
        ],
    ),
    "set of objects": (
        {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}},
        [
            f"{SPEC}.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with "
            "x-kubernetes-list-type=set"
        ],
    ),
    "embedded without fields": (
        {"type": "object", "x-kubernetes-embedded-resource": True},
        [
            f"{SPEC}.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without "
            "x-kubernetes-preserve-unknown-fields"
        ],
    ),
    "default of the wrong type": (
        {"type": "object", "properties": {"n": {"type": "integer", "default": "x"}}},
        [
            f'{SPEC}.properties[n].default: Invalid value: "string": default in body must be of type integer: "string"',
        ],
    ),
    "default with its own defaults": (
        {
            "type": "object",
            "properties": {
                "o": {
                    "type": "object",
                    "default": {},
                    "required": ["n"],
                    "properties": {"n": {"type": "integer", "default": 1}},
                }
            },
        },
        [],
    ),
    "rule without text": (
        {"type": "object", "x-kubernetes-validations": [{"rule": " "}]},
        [f"{SPEC}.x-kubernetes-validations[0].rule: Required value: rule is not specified"],
    ),
    "message with a line break": (
        {"type": "object", "x-kubernetes-validations": [{"rule": "true", "message": "a\nb"}]},
        [f'{SPEC}.x-kubernetes-validations[0].message: Invalid value: "a\\nb": message must not contain line breaks'],
    ),
}


@pytest.mark.parametrize("name", SCHEMA_ROWS)
def test_schema(name: str) -> None:
    schema, errors = SCHEMA_ROWS[name]
    assert texts(validate_definition(with_spec(schema))) == errors


def test_alternatives_speak_of_declared_fields_only() -> None:
    root = {"type": "object", "properties": {"spec": {"type": "object"}}}
    alternative = {"properties": {"spec": {"properties": {"a": {"minLength": 1}}}}}
    assert texts(validate_definition(definition(version(schema=root | {"anyOf": [alternative]})))) == [
        f"{SPEC}.properties[a]: Required value: because it is defined in {ROOT}.anyOf[0].properties[spec].properties[a]"
    ]


ROOT_ROWS: dict[str, tuple[Document, list[str]]] = {
    "no type": ({"properties": {}}, [f"{ROOT}.type: Required value: must not be empty at the root"]),
    "list": ({"type": "string"}, [f'{ROOT}.type: Invalid value: "string": must be object at the root']),
    "additional properties": (
        {"type": "object", "additionalProperties": STRING},
        [f"{ROOT}.additionalProperties: Forbidden: must not be used at the root"],
    ),
    "metadata name": (
        {"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": STRING}}}},
        [],
    ),
    "metadata labels": (
        {
            "type": "object",
            "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}},
        },
        [
            f"{ROOT}.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but "
            "metadata is implicitly specified"
        ],
    ),
    "default in metadata": (
        {
            "type": "object",
            "properties": {"metadata": {"type": "object", "properties": {"name": STRING | {"default": "x"}}}},
        },
        [
            f"{ROOT}.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata",
        ],
    ),
}


@pytest.mark.parametrize("name", ROOT_ROWS)
def test_root_schema(name: str) -> None:
    schema, errors = ROOT_ROWS[name]
    assert texts(validate_definition(definition(version(schema=schema)))) == errors


def test_root_beside_a_status_endpoint() -> None:
    schema = {"type": "object", "anyOf": [{"required": ["spec"]}]}
    (error,) = validate_definition(definition(version(schema=schema, subresources={"status": {}})))
    assert error.path == ROOT
    assert error.detail.startswith("only [Description Type Format ")
    assert error.detail.endswith("fields are allowed at the root of the schema if the status subresource is enabled")


SELECTABLE: dict[str, str | None] = {
    ".spec.s": None,
    ".spec.missing": "is an invalid path: does not refer to a valid field",
    ".spec.l[0]": "is an invalid path: array notation is not allowed",
    ".metadata.name": "must not point to fields in metadata",
    ".spec.l": "must point to a field of type string, boolean or integer. Enum string fields and strings with formats "
    "are allowed.",
}


@pytest.mark.parametrize("path", SELECTABLE)
def test_selectable_fields(path: str) -> None:
    fields = {"s": STRING, "l": {"type": "array", "items": STRING}}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}
    errors = texts(validate_definition(definition(version(schema=schema, selectableFields=[{"jsonPath": path}]))))
    problem = SELECTABLE[path]
    expected = f'spec.selectableFields[0].jsonPath: Invalid value: "{path}": {problem}'
    assert errors == ([] if problem is None else [expected])


ESTABLISHED = {"conditions": [{"type": "Established", "status": "True"}], "storedVersions": ["v1"]}
IMMUTABLE = "field is immutable"


@pytest.mark.parametrize(
    ("spec", "established", "errors"),
    [
        pytest.param({"scope": "Cluster"}, True, [f'spec.scope: Invalid value: "Cluster": {IMMUTABLE}'], id="scope"),
        pytest.param({"scope": "Cluster"}, False, [], id="scope before it is established"),
        pytest.param(
            {"names": NAMED | {"kind": "Other"}},
            True,
            [f'spec.names.kind: Invalid value: "Other": {IMMUTABLE}'],
            id="kind",
        ),
        pytest.param(
            {"versions": [version("v2")]},
            True,
            ['status.storedVersions[0]: Invalid value: "v1": must appear in spec.versions'],
            id="stored version goes",
        ),
    ],
)
def test_update(spec: Document, established: bool, errors: list[str]) -> None:
    status = ESTABLISHED if established else {"storedVersions": ["v1"]}
    old = definition() | {"status": status}
    new = definition(**spec) | {"status": status}
    if "versions" in spec:
        new = definition(*spec["versions"]) | {"status": status}
    assert texts(validate_definition_update(new, old)) == errors


RULE = f"{SPEC}.x-kubernetes-validations[0]"


def test_rules_that_do_not_compile() -> None:
    (error,) = validate_rules(with_spec({"type": "object", "x-kubernetes-validations": [{"rule": "self.x == 1"}]}))
    assert error.path == f"{RULE}.rule"
    assert error.detail.startswith("compilation failed: ERROR: <input>:1:5: undefined field 'x'")


RULE_ROWS: dict[str, tuple[Document, str, str]] = {
    "not a condition": (
        {"type": "object", "x-kubernetes-validations": [{"rule": "1 + 1"}]},
        f"{RULE}.rule",
        "cel expression must evaluate to a bool",
    ),
    "field path": (
        {"type": "object", "x-kubernetes-validations": [{"rule": "true", "fieldPath": ".nowhere"}]},
        f"{RULE}.fieldPath",
        "fieldPath must be a valid path",
    ),
    "message": (
        {"type": "object", "x-kubernetes-validations": [{"rule": "true", "messageExpression": "1"}]},
        f"{RULE}.messageExpression",
        "messageExpression must evaluate to a string",
    ),
    # As Kubernetes: the length of a converted number is not known.
    "expensive message": (
        {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "true", "messageExpression": "'n is ' + string(self.n)"}],
        },
        f"{RULE}.messageExpression",
        "estimated messageExpression cost exceeds budget by factor of more than 100x (try simplifying the rule, or "
        "adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
    ),
    "optional old value that is not used": (
        {"type": "object", "x-kubernetes-validations": [{"rule": "true", "optionalOldSelf": True}]},
        f"{RULE}.optionalOldSelf",
        "may not be set if oldSelf is not used in rule",
    ),
    "old value of a list item": (
        {
            "type": "array",
            "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]},
            "maxItems": 5,
        },
        f"{SPEC}.items.x-kubernetes-validations[0].rule",
        f"oldSelf cannot be used on the uncorrelatable portion of the schema within {SPEC}",
    ),
    "too expensive": (
        {
            "type": "array",
            "items": {"type": "string"},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}],
        },
        f"{RULE}.rule",
        "estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, "
        "maxProperties, and maxLength where arrays, maps, and strings are declared)",
    ),
}


@pytest.mark.parametrize("name", RULE_ROWS)
def test_rules(name: str) -> None:
    schema, path, detail = RULE_ROWS[name]
    assert (path, detail) in [(error.path, error.detail) for error in validate_rules(with_spec(schema))]


def test_rule_and_message_are_both_reported() -> None:
    rule = {"rule": "1", "messageExpression": "2", "optionalOldSelf": False}
    errors = validate_rules(with_spec({"type": "object", "x-kubernetes-validations": [rule]}))
    assert [error.path.removeprefix(RULE) for error in errors] == [".rule", ".messageExpression", ".optionalOldSelf"]


def test_an_update_validates_only_what_it_changes() -> None:
    def definition(*rules: str, **fields: Any) -> Document:
        validations = [{"rule": rule} for rule in rules]
        items = {"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": validations}
        return with_spec({"type": "object", "properties": {"items": items}, **fields})

    expensive, medium = "self.all(x, self.all(y, x == y))", "self.all(x, x.size() < 3)"
    old = definition(expensive)
    assert len(validate_rules(old)) > 1
    assert validate_rules(old, old) == []
    # A changed schema may keep a rule that is too expensive alone, but not exceed the total.
    described = validate_rules(definition(expensive, medium), old)
    assert described
    assert all("total" in error.detail for error in described)
    assert validate_rules(definition(medium), old) == []


GOOD_RULES = (
    {"rule": "self.n > 0", "messageExpression": "self.short + ' is wrong'", "fieldPath": ".n"},
    # Without bounds, as in published definitions.
    {"rule": "self == oldSelf", "message": "fixed"},
    {"rule": "self.port == oldSelf.port || string(self.port) == 'http'"},
    {"rule": "!has(oldSelf.n) || has(self.n)"},
    {"rule": "self.names.all(name, name != '')"},
)


@pytest.mark.parametrize("rule", GOOD_RULES, ids=lambda rule: rule["rule"])
def test_good_rules(rule: Document) -> None:
    properties = {
        "n": {"type": "integer"},
        "short": {"type": "string", "maxLength": 10},
        "port": {"x-kubernetes-int-or-string": True},
        "names": {"type": "array", "items": STRING},
    }
    schema = {"type": "object", "properties": properties, "x-kubernetes-validations": [rule]}
    assert validate_rules(with_spec(schema)) == []
