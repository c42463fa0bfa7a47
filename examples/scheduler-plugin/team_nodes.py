"""A scheduler plugin that restricts the Pods of a team to its nodes and prefers nodes with few Pods.

Pods and nodes have the same label, `example.com/team` by default.
"""

from dray.api.types.core_v1 import Pod
from dray.framework.events import NODE, Action, ClusterEvent, EventRegistration
from dray.framework.status import SKIP, SUCCESS, unresolvable

OTHER_TEAM = unresolvable("node(s) belonged to another team")


class TeamNodes:
    """Implements PreFilter, Filter and Score."""

    name = "TeamNodes"

    def __init__(self, args, handle):
        self._label = args.get("label", "example.com/team")

    def pre_filter(self, state, pod: Pod):
        """Skip Filter for Pods without a team."""
        return None, SUCCESS if self._label in pod.metadata.labels else SKIP

    def filter(self, state, pod: Pod, node):
        """Reject nodes with another label value."""
        return SUCCESS if node.labels.get(self._label) == pod.metadata.labels[self._label] else OTHER_TEAM

    def score(self, state, pod: Pod, node):
        """Return a score from 0 to 100."""
        return max(0, 100 - len(node.pods))

    def events_to_register(self):
        """Return the events that can make a rejected Pod schedulable: a new node, or changed node labels."""
        return [EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL))]
