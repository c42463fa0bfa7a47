"""Why a node was preferred to others: the scores of all feasible nodes, plugin by plugin.

The scores are those of now: they may differ from those when the Pod was placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.framework.evaluation import NodeScore
from dray.framework.node_info import NodeInfo
from dray.scheduler.cycle import run_pre_score, weighted_scores
from dray.scheduler.filter_runner import AttemptError
from dray.scheduler.profile import Profile
from dray.sim.explain.filters import Filters

# The best nodes that are shown; the Pod's own is always among them.
SHOWN_MAX: Final = 4


def node_scores(profile: Profile, filters: Filters, nodes: Sequence[NodeInfo], chosen: str) -> tuple[NodeScore, ...]:
    """Return the nodes with the highest scores, the best first, and the chosen one; nothing if no plugin scores."""
    state = filters.state.clone()
    try:
        run_pre_score(profile, state, nodes)
        by_plugin = {
            scorer.name: weighted_scores(scorer, state, nodes)
            for scorer in profile.scorers
            if scorer.name not in state.skip_score
        }
    except AttemptError:
        return ()
    found = [
        NodeScore(
            node.name,
            sum(scores[position] for scores in by_plugin.values()),
            {name: scores[position] for name, scores in by_plugin.items()},
        )
        for position, node in enumerate(nodes)
    ]
    ranked = sorted(found, key=lambda item: -item.total)
    best = ranked[:SHOWN_MAX]
    return tuple(best + [item for item in ranked[SHOWN_MAX:] if item.node == chosen])
