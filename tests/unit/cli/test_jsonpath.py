"""Templates of -o jsonpath, as kubectl evaluates them."""

from __future__ import annotations

import pytest

from dray.cli.jsonpath import JSONPathError, evaluate

LIST = {
    "kind": "List",
    "items": [
        {"name": "a", "state": "free", "capacity": {"example.com/memory": "40Gi"}, "tags": ["x", "y", "z"], "count": 2},
        {"name": "b", "state": "held", "capacity": {}, "tags": [], "ok": True, "nothing": None},
    ],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.items[*].name}", "a b"),
        ("{.items[0].name}: {.items[-1].name}", "a: b"),
        ("{$.items[0].count}", "2"),
        ("{.items[0].tags}", '["x","y","z"]'),
        ("{.items[0].tags[1:]}", "y z"),
        ("{.items[0].tags[0:2]}", "x y"),
        ("{.items[0].capacity['example.com/memory']}", "40Gi"),
        ('{.items[?(@.state=="held")].name}', "b"),
        ("{.items[?(@.state!='held')].name}", "a"),
        ('{range .items[*]}{.name}{"\\t"}{.state}{"\\n"}{end}', "a\tfree\nb\theld\n"),
        ("{range .none[*]}{.name}{end}", ""),
        ("{.items[1].ok}{.items[1].nothing}{.items[9].name}{.items[*].absent}", "true"),
        ("no expression", "no expression"),
    ],
)
def test_templates(template: str, text: str) -> None:
    assert evaluate(template, LIST) == text


@pytest.mark.parametrize("template", ["{.items", "{range .items[*]}", "{end}", "{..name}", "{.items[a]}"])
def test_templates_that_cannot_be_read(template: str) -> None:
    with pytest.raises(JSONPathError):
        evaluate(template, LIST)
