"""StatefulSets: the texts of `Warning` headers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dray.api.features import FeatureGates
from dray.apiserver.registry.stateful_sets import STATEFUL_SETS
from dray.apiserver.registry.strategy import WriteContext
from dray.apiserver.request import UserInfo

CONTEXT = WriteContext(now=datetime(2026, 11, 15, tzinfo=UTC), gates=FeatureGates({}), user=UserInfo("alice"))
KEEPS_ALL = "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"


def stateful_set(generation: int, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "pause", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}
    template = {"metadata": {}, "spec": {"containers": [container]}}
    return {"metadata": {"name": "db.0", "generation": generation}, "spec": {"template": template, **spec}}


def test_the_template_is_warned_of_when_it_is_new_or_changed() -> None:
    warn = STATEFUL_SETS.strategy.warnings
    in_template = warn(stateful_set(1), None, CONTEXT)
    assert [text.partition(":")[0] for text in in_template] == ["spec.template.spec.containers[0].env[1]"]
    assert warn(stateful_set(2), stateful_set(1), CONTEXT) == in_template
    assert warn(stateful_set(1), stateful_set(1), CONTEXT) == []


def test_a_negative_history_is_warned_of_each_time() -> None:
    negative = stateful_set(1, revisionHistoryLimit=-1)
    assert STATEFUL_SETS.strategy.warnings(negative, negative, CONTEXT) == [KEEPS_ALL]
