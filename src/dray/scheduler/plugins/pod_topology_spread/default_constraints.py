"""The constraints of Pods that have none of their own: from the profile, with the selector of the Pod's workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dray.api.document import Document
from dray.api.names import qualified_name
from dray.api.selectors import LabelSelector, SelectorError
from dray.api.types.core_v1 import Pod, TopologySpreadConstraint
from dray.client.objects import controller_of
from dray.client.resources import REPLICA_SETS, REPLICATION_CONTROLLERS, SERVICES, STATEFUL_SETS
from dray.framework.pod_affinity import parse_selector
from dray.scheduler.handle import Handle
from dray.scheduler.plugins.arguments import Arguments
from dray.scheduler.plugins.pod_topology_spread.constraints import (
    DO_NOT_SCHEDULE,
    HONOR,
    HOSTNAME,
    IGNORE,
    SCHEDULE_ANYWAY,
    Constraint,
)

SYSTEM: Final = "System"
LIST: Final = "List"
ZONE: Final = "topology.kubernetes.io/zone"
SYSTEM_CONSTRAINTS: Final = (
    TopologySpreadConstraint(topology_key=HOSTNAME, when_unsatisfiable=SCHEDULE_ANYWAY, max_skew=3),
    TopologySpreadConstraint(topology_key=ZONE, when_unsatisfiable=SCHEDULE_ANYWAY, max_skew=5),
)
_SHARED: Final = "WorkloadSelectors"


def parse_arguments(args: Mapping[str, Any]) -> tuple[tuple[TopologySpreadConstraint, ...], bool]:
    """Return the default constraints, and whether they are the built-in ones; raises `ValueError` or `TypeError`."""
    given = Arguments(args)
    listed = given.items("defaultConstraints")
    kind = given.choice("defaultingType", SYSTEM, (SYSTEM, LIST))
    given.end()
    if kind == SYSTEM:
        if listed:
            raise ValueError(f'defaultingType: Invalid value: "{kind}": when .defaultConstraints are not empty')
        return SYSTEM_CONSTRAINTS, True
    found = tuple(_parse(item, f"defaultConstraints[{index}]") for index, item in enumerate(listed))
    pairs = [(item.topology_key, item.when_unsatisfiable) for item in found]
    for index, (key, action) in enumerate(pairs):
        if (key, action) in pairs[:index]:
            raise ValueError(f'defaultConstraints[{index}]: Duplicate value: "{{{key}, {action}}}"')
    return found, False


def _parse(item: Mapping[str, Any], path: str) -> TopologySpreadConstraint:
    given = Arguments(item, path)
    skew = given.value("maxSkew")
    if isinstance(skew, bool) or not isinstance(skew, int) or skew <= 0:
        raise ValueError(f"{path}.maxSkew: Invalid value: {skew}: not in valid range (0, inf)")
    key = given.value("topologyKey")
    if not isinstance(key, str) or not key:
        raise ValueError(f"{path}.topologyKey: Required value: can not be empty")
    if problems := qualified_name(key):
        raise ValueError(*(f'{path}.topologyKey: Invalid value: "{key}": {problem}' for problem in problems))
    if given.value("labelSelector") is not None:
        text = "constraint must not define a selector, as they deduced for each pod"
        raise ValueError(f"{path}.labelSelector: Forbidden: {text}")
    action = given.choice("whenUnsatisfiable", "", (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY))
    if not action:
        raise ValueError(f"{path}.whenUnsatisfiable: Required value: can not be empty")
    affinity, taints = (given.choice(name, "", (HONOR, IGNORE)) for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"))
    least = given.integer("minDomains", 0, 1, None)
    given.end()
    if least and action != DO_NOT_SCHEDULE:
        text = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        raise ValueError(f"{path}.minDomains: Invalid value: {least}: {text}")
    return TopologySpreadConstraint(
        max_skew=skew,
        topology_key=key,
        when_unsatisfiable=action,
        min_domains=least or None,
        node_affinity_policy=affinity or None,
        node_taints_policy=taints or None,
    )


class WorkloadSelectors:
    """Finds the selector of a Pod's Services and of the workload that controls it."""

    def __init__(self, handle: Handle) -> None:
        informers = handle.informers
        self._replica_sets = informers.informer(REPLICA_SETS).lister
        self._stateful_sets = informers.informer(STATEFUL_SETS.unstructured).lister
        self._replication_controllers = informers.informer(REPLICATION_CONTROLLERS.unstructured).lister
        # Namespace -> name -> selector; Services without a selector are left out.
        self._services: dict[str, dict[str, Mapping[str, str]]] = {}
        informers.informer(SERVICES).add_handler(self._service_changed)

    def of(self, pod: Pod) -> LabelSelector | None:
        """Return the selector; None if nothing selects the Pod."""
        labels = pod.metadata.labels
        services = self._services.get(pod.metadata.namespace or "")
        if not services and not pod.metadata.owner_references:
            # Most Pods without constraints, where workloads are not used.
            return None
        found: dict[str, str] = {}
        for selector in (services or {}).values():
            if all(labels.get(key) == value for key, value in selector.items()):
                found.update(selector)
        requirements = LabelSelector.from_labels(found).requirements + self._of_controller(pod)
        return LabelSelector(requirements) if requirements else None

    def _of_controller(self, pod: Pod) -> tuple[Any, ...]:
        owner = controller_of(pod)
        if owner is None:
            return ()
        namespace = pod.metadata.namespace or ""
        try:
            if (owner.kind, owner.api_version) == ("ReplicaSet", "apps/v1"):
                replica_set = self._replica_sets.get(owner.name, namespace)
                return parse_selector(replica_set.spec.selector).requirements if replica_set is not None else ()
            if (owner.kind, owner.api_version) == ("StatefulSet", "apps/v1"):
                selector = _spec(self._stateful_sets.get(owner.name, namespace)).get("selector")
                return LabelSelector.from_document(selector).requirements
        except SelectorError:
            return ()
        if (owner.kind, owner.api_version) == ("ReplicationController", "v1"):
            labels = _spec(self._replication_controllers.get(owner.name, namespace)).get("selector") or {}
            return LabelSelector.from_labels(labels).requirements
        return ()

    def _service_changed(self, old: Document | None, new: Document | None) -> None:
        present = new if new is not None else old
        assert present is not None
        namespace, name = present["metadata"].get("namespace") or "", present["metadata"]["name"]
        selector = _spec(new).get("selector")
        if selector:
            self._services.setdefault(namespace, {})[name] = selector
        else:
            self._services.get(namespace, {}).pop(name, None)


def _spec(document: Document | None) -> Document:
    return (document or {}).get("spec") or {}


def workload_selectors_of(handle: Handle) -> WorkloadSelectors:
    """Return the selectors that the plugins of all profiles share."""
    selectors: WorkloadSelectors | None = handle.shared.get(_SHARED)
    if selectors is None:
        selectors = handle.shared[_SHARED] = WorkloadSelectors(handle)
    return selectors


class DefaultConstraints:
    """The default constraints of a profile."""

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        constraints, self.are_system = parse_arguments(args)
        self._by_action = {
            action: [item for item in constraints if item.when_unsatisfiable == action]
            for action in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY)
        }
        self._selectors = workload_selectors_of(handle) if constraints else None

    def of(self, pod: Pod, action: str) -> tuple[Constraint, ...]:
        """Return the constraints with the action for a Pod without any of its own."""
        wanted = self._by_action[action]
        if not wanted or self._selectors is None:
            return ()
        selector = self._selectors.of(pod)
        return () if selector is None else tuple(Constraint(item, selector) for item in wanted)
