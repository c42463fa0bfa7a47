"""Which decisions a user sees."""

from __future__ import annotations

from dray.apiserver.handlers.decisions import without_other_nodes


def test_names_of_other_nodes_are_hidden_and_scores_kept() -> None:
    score = {"node": "x", "total": 3, "byPlugin": {"A": 3}}
    evaluation = {
        "scores": [score, {**score, "node": "y", "total": 2}],
        "rejections": [{"count": 2, "plugin": "A", "reasons": ["full"], "example": "z"}],
    }
    found = without_other_nodes({"node": "x", "evaluation": evaluation})["evaluation"]
    assert [(item["node"], item["total"]) for item in found["scores"]] == [("x", 3), ("", 2)]
    assert found["rejections"] == [{"count": 2, "plugin": "A", "reasons": ["full"], "example": ""}]


def test_a_decision_without_an_evaluation_is_left_as_it_is() -> None:
    assert without_other_nodes({"node": "", "evaluation": None}) == {"node": "", "evaluation": None}
