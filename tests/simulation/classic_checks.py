"""What must hold of classic claims after every write, and what must hold when everything has come to rest.

Each check gives the promises that it found broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dray.api.document import Document
from dray.scheduler.plugins.classic_resources.classic_state import classic_state_of
from dray.scheduler.scheduler import Scheduler

_TERMINAL = ("Succeeded", "Failed")


def name_of(item: Document) -> str:
    return str(item["metadata"]["name"])


def uid_of(item: Document) -> str:
    return str(item["metadata"]["uid"])


def users_of(claim: Document) -> list[str]:
    return [user["uid"] for user in claim["status"].get("reservedFor") or ()]


def is_allocated(claim: Document) -> bool:
    return bool(claim["status"]["phase"] == "Allocated")


def is_reservable(claim: Document) -> bool:
    limit = claim["status"].get("userLimit", 1)
    return bool(limit == -1 or len(users_of(claim)) < limit)


def allocated_claims_have_boards(claims: list[Document], held: Mapping[str, str]) -> Iterator[str]:
    """Nothing is freed, or given to others, as long as the claim says that it is there and to stay."""
    for claim in claims:
        if is_allocated(claim) and not claim["metadata"].get("deletionTimestamp"):
            node = claim["status"]["attributes"]["node"]
            if held.get(uid_of(claim)) != node:
                yield f"{name_of(claim)} is allocated on {node}, where it holds nothing"


def boards_belong_to_claims(claims: list[Document], held: Mapping[str, str]) -> Iterator[str]:
    """A claim with a board cannot be removed without the driver."""
    protected = {uid_of(claim) for claim in claims if claim["metadata"].get("finalizers")}
    for uid in sorted(held.keys() - protected):
        yield f"a board is held for {uid}, which is gone or may go"


def users_are_allowed(claims: list[Document]) -> Iterator[str]:
    """No more than allowed, and only of what is allocated; a generated claim is for its Pod alone."""
    for claim in claims:
        users, limit = users_of(claim), claim["status"].get("userLimit", 1)
        if len(users) > len(set(users)) or (limit != -1 and len(users) > limit):
            yield f"{name_of(claim)} has users {users}, its limit is {limit}"
        owners = claim["metadata"].get("ownerReferences") or ()
        if owners and not set(users) <= {owners[0]["uid"]}:
            yield f"{name_of(claim)} is used by a stranger"
        if users and not is_allocated(claim):
            yield f"{name_of(claim)} is reserved and not allocated"


def running_pods_keep_their_claims(
    running: Mapping[str, frozenset[str]], claims: list[Document], pods: list[Document]
) -> Iterator[str]:
    """What a container was given is not taken from it while it runs."""
    known = {uid_of(claim): claim for claim in claims}
    nodes = {uid_of(pod): pod["spec"].get("nodeName") for pod in pods}
    for pod in sorted(running.keys() & nodes.keys()):
        for uid in running[pod]:
            claim = known.get(uid)
            if claim is None or not is_allocated(claim):
                yield f"Pod {pod} runs and its claim is gone"
            elif claim["status"]["attributes"]["node"] != nodes[pod]:
                yield f"Pod {pod} runs where {name_of(claim)} is not"


def claims_of(pod: Document, claims: list[Document]) -> list[Document | None]:
    by_name = {name_of(claim): claim for claim in claims}
    names = (
        entry.get("resourceClaimName") or f"{name_of(pod)}-{entry['name']}" for entry in pod["spec"]["resourceClaims"]
    )
    return [by_name.get(name) for name in names]


def claims_ready_for(pod: Document, claims: list[Document]) -> list[Document] | None:
    """The Pod's claims if all are reserved for it, as a kubelet demands before it starts containers."""
    found = [claim for claim in claims_of(pod, claims) if claim is not None and uid_of(pod) in users_of(claim)]
    return found if len(found) == len(pod["spec"]["resourceClaims"]) else None


def bound_pods_are_reserved(claims: list[Document], pods: list[Document]) -> Iterator[str]:
    """Nobody has a node before its claims are reserved for it."""
    for pod in pods:
        alive = uid_of(pod) in _alive(pods) and not pod["metadata"].get("deletionTimestamp")
        if alive and pod["spec"].get("nodeName") and claims_ready_for(pod, claims) is None:
            yield f"{name_of(pod)} is bound and not reserved"


# --- At rest. ---


def _alive(pods: list[Document]) -> set[str]:
    return {uid_of(pod) for pod in pods if pod["status"].get("phase") not in _TERMINAL}


def unsettled_claims(claims: list[Document], pods: list[Document]) -> Iterator[str]:
    """Nothing is kept for those who are gone, and nothing is half done."""
    alive = _alive(pods)
    for claim in claims:
        name, status, users = name_of(claim), claim["status"], users_of(claim)
        owners = claim["metadata"].get("ownerReferences") or ()
        if not set(users) <= alive:
            yield f"{name} is reserved for Pods that are done"
        if owners and owners[0]["uid"] not in alive:
            yield f"{name} outlives its Pod"
        if claim["metadata"].get("deletionTimestamp") and not users:
            yield f"{name} stays"
        if status["phase"] == "Reallocate":
            yield f"{name} is still to be freed"
        if status["phase"] == "Pending" and ((status.get("scheduling") or {}).get("scheduler") or {}).get(
            "selectedNode"
        ):
            yield f"{name} is still to be allocated"


def leaked_boards(claims: list[Document], held: Mapping[str, str]) -> Iterator[str]:
    """Every board that is held is that of an allocated claim."""
    used = {uid_of(claim) for claim in claims if is_allocated(claim)}
    for uid in sorted(held.keys() ^ used):
        yield f"{uid} is held and not allocated, or the other way round"


def needless_waits(claims: list[Document], pods: list[Document], free: Mapping[str, int]) -> Iterator[str]:
    """Nobody waits for what is there."""
    alive = _alive(pods)
    for pod in pods:
        if uid_of(pod) not in alive or pod["spec"].get("nodeName"):
            continue
        wanted = claims_of(pod, claims)
        named = "resourceClaimName" in pod["spec"]["resourceClaims"][0]
        if named and (wanted[0] is None or wanted[0]["metadata"].get("deletionTimestamp")):
            continue
        if named and wanted[0] is not None and is_allocated(wanted[0]):
            if is_reservable(wanted[0]):
                yield f"{name_of(pod)} waits although its claim has room"
        elif max(free.values()) >= len(wanted):
            yield f"{name_of(pod)} waits although boards are free: {free}"
        elif any(claim is not None and is_allocated(claim) for claim in wanted):
            yield f"{name_of(pod)} waits and keeps a board from others"


def bound_pods_that_never_ran(
    running: Mapping[str, frozenset[str]], claims: list[Document], pods: list[Document]
) -> Iterator[str]:
    """Nobody has a node and waits there for ever, unless its user took its claim away."""
    for pod in pods:
        if uid_of(pod) not in _alive(pods) or not pod["spec"].get("nodeName") or uid_of(pod) in running:
            continue
        wanted = claims_of(pod, claims)
        if all(claim is not None and not claim["metadata"].get("deletionTimestamp") for claim in wanted):
            yield f"{name_of(pod)} is bound and was never started"


def leaks_of(scheduler: Scheduler, claims: list[Document]) -> Iterator[str]:
    """The scheduler's account of claims is the cluster's: nothing is kept of attempts that have ended."""
    tracker = classic_state_of(scheduler.handle).tracker
    selected = {
        uid_of(claim): node
        for claim in claims
        if not is_allocated(claim)
        and (node := ((claim["status"].get("scheduling") or {}).get("scheduler") or {}).get("selectedNode"))
    }
    for what, kept in (
        ("assumed claims", tracker._assumed),
        ("announced users", tracker._meant),
        ("watchers", tracker._watchers),
        ("assumed Pods", scheduler.cache.assumed_count()),
    ):
        if kept:
            yield f"{what} are left: {kept}"
    if tracker._selected != selected:
        yield f"selected nodes are {selected}, the scheduler has {tracker._selected}"
