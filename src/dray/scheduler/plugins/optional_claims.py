"""OptionalClaims: prefers nodes where a Pod gets more of its optional claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.api.types.core_v1 import Pod
from dray.framework.cycle_state import CycleState
from dray.framework.node_info import NodeInfo
from dray.framework.plugins import SCORE_MAX
from dray.framework.status import SKIP, SUCCESS, Status
from dray.scheduler.plugins.classic_resources.classic_state import NAME as CLASSIC
from dray.scheduler.plugins.classic_resources.pod_state import PodState as ClassicState
from dray.scheduler.plugins.dynamic_resources.device_filter import NAME as STRUCTURED
from dray.scheduler.plugins.dynamic_resources.pod_state import PodState as StructuredState
from dray.scheduler.plugins.dynamic_resources.pod_state import has_optional_claims

NAME: Final = "OptionalClaims"


class OptionalClaims:
    """Reads the results of both claim plugins for each node."""

    name = NAME

    def pre_score(self, _state: CycleState, pod: Pod, _nodes: Sequence[NodeInfo]) -> Status:
        """Skip Pods without optional claims."""
        return SUCCESS if has_optional_claims(pod) else SKIP

    def score(self, state: CycleState, _pod: Pod, node: NodeInfo) -> int:
        """Return two for each available claim, and one for each that a driver has yet to allocate."""
        structured: StructuredState | None = state.get(STRUCTURED)
        classic: ClassicState | None = state.get(CLASSIC)
        worth = 0
        if structured is not None:
            worth += 2 * len(structured.on_node(node.name).claims.all)
        if classic is not None:
            worth += sum(2 if item.allocated else 1 for item in classic.optional if item.may_be_on(node))
        return worth

    def normalize_scores(self, _state: CycleState, _pod: Pod, scores: list[int]) -> None:
        """The worst node gets 0 and the best 100; when all are the same, all get 100."""
        least, most = min(scores), max(scores)
        spread = most - least
        scores[:] = [(score - least) * SCORE_MAX // spread if spread else SCORE_MAX for score in scores]
