"""The status of definitions, and their table columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dray.api.document import Document, copy_document
from dray.apiserver.custom.columns import printer_columns
from dray.apiserver.custom.status import condition, plan_status, set_condition

NOW = "2026-01-02T03:04:05Z"
LATER = "2026-01-02T03:05:05Z"


def definition(accepted: Document | None = None, **names: Any) -> Document:
    wanted = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList", **names}
    return {
        "spec": {"names": wanted, "versions": [{"name": "v1"}]},
        "status": {"acceptedNames": accepted or {"plural": "", "kind": ""}},
    }


def verdicts(status: Document) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


FREE = definition({"plural": "others", "singular": "other", "kind": "Other", "listKind": "OtherList"})
CONFLICTS: dict[str, tuple[Document, str, str]] = {
    "plural": ({"plural": "things"}, "PluralConflict", '"things" is already in use'),
    "singular": ({"singular": "thing"}, "SingularConflict", '"thing" is already in use'),
    "plural as short name": ({"shortNames": ["things"]}, "PluralConflict", '"things" is already in use'),
    "short name": ({"shortNames": ["th", "x"]}, "ShortNamesConflict", '"th" is already in use'),
    "kind": ({"kind": "Thing"}, "KindConflict", '"Thing" is already in use'),
    "list kind": ({"listKind": "ThingList"}, "ListKindConflict", '"ThingList" is already in use'),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_conflicts(name: str) -> None:
    taken, reason, message = CONFLICTS[name]
    wanted = definition(shortNames=["th"])
    status = plan_status(wanted, [FREE, definition(taken)], NOW)
    assert verdicts(status) == {"NamesAccepted": ("False", reason), "Established": ("False", "NotAccepted")}
    assert status["conditions"][0]["message"] == message
    field = {"PluralConflict": "plural", "KindConflict": "kind"}.get(reason)
    if field is not None:
        assert status["acceptedNames"][field] == ""


def test_no_conflict() -> None:
    wanted = definition(categories=["all"])
    kept = copy_document(wanted)
    status = plan_status(wanted, [FREE], NOW)
    assert verdicts(status) == {
        "NamesAccepted": ("True", "NoConflicts"),
        "Established": ("True", "InitialNamesAccepted"),
    }
    assert status["acceptedNames"] == wanted["spec"]["names"]
    assert wanted == kept
    assert plan_status(wanted | {"status": status}, [FREE], LATER) == status


def test_what_is_established_stays_so() -> None:
    first = plan_status(definition(), [], NOW)
    renamed = definition(shortNames=["taken"]) | {"status": first}
    status = plan_status(renamed, [definition({"shortNames": ["taken"]})], LATER)
    assert verdicts(status)["NamesAccepted"] == ("False", "ShortNamesConflict")
    assert verdicts(status)["Established"] == ("True", "InitialNamesAccepted")


def test_times_of_conditions() -> None:
    status: Document = {}
    set_condition(status, condition("A", "True", "x", ""), NOW)
    set_condition(status, condition("A", "True", "y", ""), LATER)
    assert [item["lastTransitionTime"] for item in status["conditions"]] == [NOW]
    set_condition(status, condition("A", "False", "y", ""), LATER)
    assert [item["lastTransitionTime"] for item in status["conditions"]] == [LATER]


CELLS: dict[str, tuple[str, Any, Any]] = {
    "integer": ("integer", 5, 5),
    "float as integer": ("integer", 5.7, 5),
    "text as integer": ("integer", "5", None),
    "number": ("number", 1.5, 1.5),
    "boolean": ("boolean", True, True),
    "text as boolean": ("boolean", "true", None),
    "string": ("string", "x", "x"),
    "number as string": ("string", 5, "5"),
    "list as string": ("string", ["a", 1], '["a",1]'),
    "null": ("string", None, None),
    "date": ("date", "2026-01-02T03:03:35Z", "30s"),
    "bad date": ("date", "noon", "<invalid>"),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells(name: str) -> None:
    kind, value, cell = CELLS[name]
    columns = printer_columns([{"name": "F", "type": kind, "jsonPath": ".spec.f"}])
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    document = {"metadata": {"name": "x"}, "spec": {"f": value}}
    assert [column.cell(document, now) for column in columns] == ["x", cell]
    assert columns[1].cell({"spec": {}}, now) is None


def test_columns_without_description() -> None:
    assert [(item.name, item.type) for item in printer_columns([])] == [("Name", "string"), ("Age", "date")]
    (_, column) = printer_columns([{"name": "F", "type": "string", "jsonPath": ".spec.f", "priority": 1}])
    assert column.description == "Custom resource definition column (in JSONPath format): .spec.f"
    assert column.priority == 1
