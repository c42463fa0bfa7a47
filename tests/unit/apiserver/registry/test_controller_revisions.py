"""ControllerRevisions: immutable data."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dray.api.document import Document
from dray.api.features import FeatureGates
from dray.apiserver.registry.controller_revisions import CONTROLLER_REVISIONS
from dray.apiserver.registry.strategy import WriteContext
from dray.apiserver.request import UserInfo

pytestmark = pytest.mark.behaviour("ST-30")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CONTEXT = WriteContext(NOW, FeatureGates(), UserInfo("u"))
OLD: Document = {"metadata": {"name": "r"}, "data": {"spec": {}}, "revision": 1}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"data": None}, ["data: Required value: data is mandatory"]),
        ({"revision": -1}, ["revision: Invalid value: -1: must be greater than or equal to 0"]),
    ],
)
def test_create(change: Document, expected: list[str]) -> None:
    errors = CONTROLLER_REVISIONS.strategy.validate_create({**OLD, **change}, CONTEXT)
    assert [str(error) for error in errors] == expected


def test_update() -> None:
    strategy = CONTROLLER_REVISIONS.strategy
    assert strategy.validate_update({**OLD, "revision": 7}, OLD, CONTEXT) == []
    (error,) = strategy.validate_update({**OLD, "data": {"spec": {"a": 1}}}, OLD, CONTEXT)
    assert str(error).endswith("field is immutable")


@pytest.mark.parametrize(
    ("owners", "cell"),
    [
        ([], "<none>"),
        ([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent"}], "<none>"),
        ([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "controller": True}], "daemonset.apps/agent"),
        ([{"apiVersion": "v1", "kind": "Thing", "name": "t", "controller": True}], "thing/t"),
    ],
)
def test_columns(owners: list[Document], cell: str) -> None:
    document = {**OLD, "metadata": {"name": "r", "ownerReferences": owners}}
    cells = {column.name: column.cell(document, NOW) for column in CONTROLLER_REVISIONS.columns[:3]}
    assert cells == {"Name": "r", "Controller": cell, "Revision": 1}
