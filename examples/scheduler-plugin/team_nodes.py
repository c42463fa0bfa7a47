"""Keeps the Pods of a team on the nodes of that team, and prefers nodes with few Pods.

Both sides carry a label, `example.com/team` unless the configuration names another.
"""

from dray.api.types.core_v1 import Pod
from dray.framework.events import NODE, Action, ClusterEvent, EventRegistration
from dray.framework.status import SKIP, SUCCESS, unresolvable

NO = unresolvable("node(s) belonged to another team")


class TeamNodes:
    """Takes part in PreFilter, Filter and Score by having their methods."""

    name = "TeamNodes"

    def __init__(self, args, handle):
        self._label = args.get("label", "example.com/team")

    def pre_filter(self, state, pod: Pod):
        """Pods without a team go anywhere: Filter is then not called."""
        return None, SUCCESS if self._label in pod.metadata.labels else SKIP

    def filter(self, state, pod: Pod, node):
        """The labels must be the same."""
        return SUCCESS if node.labels.get(self._label) == pod.metadata.labels[self._label] else NO

    def score(self, state, pod: Pod, node):
        """From 0 to 100."""
        return max(0, 100 - len(node.pods))

    def events_to_register(self):
        """What could change the answer: another node, or other labels of one."""
        return [EventRegistration(ClusterEvent(NODE, Action.ADD | Action.UPDATE_NODE_LABEL))]
