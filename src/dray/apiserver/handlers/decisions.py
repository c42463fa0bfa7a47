"""`/debug/decisions`: the decisions of a scheduler in the same process, with the rights of the caller.

A decision is visible to those who may list the Pods of its namespace. The names of nodes that were not chosen are
visible to those who may list nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dray.api.document import Document
from dray.apiserver.authorization.authorizer import Authorizer
from dray.apiserver.call import Call, DocumentResult
from dray.apiserver.handlers.debug_access import check_reader, may_list


class DecisionSource(Protocol):
    """The record of a scheduler."""

    def documents(self) -> Sequence[Document]:
        """Return the decisions as JSON data, the newest first."""


class DecisionsHandler:
    """Answers with the decisions that the caller may see."""

    def __init__(self, authorizer: Authorizer, source: DecisionSource | None) -> None:
        self._authorizer = authorizer
        self._source = source

    @property
    def is_served(self) -> bool:
        """Return whether there is a scheduler in this process."""
        return self._source is not None

    def serve(self, call: Call) -> DocumentResult:
        """Return the decisions, with the number of those that are hidden."""
        check_reader(call)
        assert self._source is not None, "not served without a source"
        kept = self._source.documents()
        namespaces = {item["namespace"] for item in kept}
        visible = {name for name in namespaces if may_list(self._authorizer, call, "pods", namespace=name)}
        with_nodes = may_list(self._authorizer, call, "nodes")
        found = [item if with_nodes else without_other_nodes(item) for item in kept if item["namespace"] in visible]
        return DocumentResult({"decisions": found, "hidden": len(kept) - len(found)})


def without_other_nodes(decision: Document) -> Document:
    """Return a decision without the names of nodes that were not chosen."""
    evaluation = decision.get("evaluation")
    if not evaluation:
        return decision
    scores = [item if item["node"] == decision["node"] else {**item, "node": ""} for item in evaluation["scores"]]
    rejections = [{**item, "example": ""} for item in evaluation["rejections"]]
    return {**decision, "evaluation": {**evaluation, "scores": scores, "rejections": rejections}}
