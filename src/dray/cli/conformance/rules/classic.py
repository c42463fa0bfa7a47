"""Rules for claims of cdi.k8s.io that a classic driver has written."""

from __future__ import annotations

from collections.abc import Iterator

from dray.api import classic_claims as classic
from dray.api.types.cdi_v1alpha1 import ResourceClaim
from dray.api.types.core_v1 import Node
from dray.cli.conformance.rules.registration import Info
from dray.framework.node_info import NodeInfo
from dray.framework.node_selectors import compile_selector
from dray.rpc.dra_services import RESOURCE_PLUGIN

VERSION = "v1alpha1"


def info_problems(info: Info) -> Iterator[str]:
    """The node agent selects the handler by the type."""
    if info.type != RESOURCE_PLUGIN:
        yield f'type is "{info.type}"'
    if VERSION not in info.versions:
        yield f"supported_versions is [{', '.join(info.versions)}]"


def allocated_problems(claim: ResourceClaim, driver: str) -> Iterator[str]:
    """What scheduler, node agent and claim controller rely on."""
    status = classic.status_of(claim)
    if status.phase != classic.ALLOCATED_PHASE:
        yield f'phase is "{status.phase or ""}"'
    if status.driver_name != driver:
        yield f'driverName is "{status.driver_name or ""}"'
    if not any(name.startswith(f"{driver}/") for name in claim.metadata.finalizers):
        yield f"finalizers are [{', '.join(claim.metadata.finalizers)}]"
    if status.user_limit is not None and status.user_limit != classic.UNLIMITED and status.user_limit < 1:
        yield f"userLimit is {status.user_limit}"
    scheduler = classic.scheduler_status(claim)
    if scheduler.selected_node:
        yield f"selectedNode is {scheduler.selected_node}"
    if scheduler.potential_nodes:
        yield f"potentialNodes are {', '.join(scheduler.potential_nodes)}"
    if unsuitable := classic.driver_status(claim).unsuitable_nodes:
        yield f"unsuitableNodes are {', '.join(unsuitable)}"


def unsuitable_problems(claim: ResourceClaim, potential: str) -> Iterator[str]:
    """The driver excludes nodes among those that the scheduler asked about."""
    others = sorted(set(classic.driver_status(claim).unsuitable_nodes) - {potential})
    if others:
        yield f"unsuitableNodes has {', '.join(others)}, which the scheduler did not ask about"


def place_problems(claim: ResourceClaim, node: Node) -> Iterator[str]:
    """The Pod is bound to the selected node."""
    selector = classic.driver_status(claim).available_on_nodes
    if selector is not None and not compile_selector(selector)(NodeInfo(node, {})):
        yield f"availableOnNodes does not match node {node.metadata.name}, which was selected"


def refusal_problems(claim: ResourceClaim, node: str) -> Iterator[str]:
    """Otherwise the scheduler selects the same node again."""
    if node not in classic.driver_status(claim).unsuitable_nodes:
        yield f"selectedNode was cleared, but unsuitableNodes does not have {node}"


def pending_problems(claim: ResourceClaim) -> Iterator[str]:
    """A deallocated claim can be allocated anywhere."""
    status = classic.status_of(claim)
    if status.phase not in (None, classic.PENDING_PHASE):
        yield f'phase is "{status.phase}"'
    if status.attributes:
        yield f"attributes are {dict(status.attributes)}"
    if classic.driver_status(claim).available_on_nodes is not None:
        yield "availableOnNodes is set"


def untouched_problems(before: ResourceClaim, after: ResourceClaim | None) -> Iterator[str]:
    """Another driver handles the claim."""
    if after is None:
        yield "the claim is gone"
    elif after.metadata.resource_version != before.metadata.resource_version:
        yield "the claim was changed"
