"""What must hold after every write, and what must hold when everything has come to rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence

from dray.api.document import Document
from dray.api.pod_claims import EXTENDED_RESOURCE_ANNOTATION, RESERVED_FOR_MAX
from dray.scheduler.scheduler import Scheduler

_TERMINAL = ("Succeeded", "Failed")


def devices_of(claim: Document) -> list[str]:
    """The devices that a claim has for itself."""
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())
    return [f"{r['driver']}/{r['pool']}/{r['device']}" for r in results if not r.get("adminAccess")]


def users_of(claim: Document) -> list[str]:
    return [user["uid"] for user in (claim.get("status") or {}).get("reservedFor", ())]


def is_bound(pod: Document) -> bool:
    """Whether the Pod may be using its devices."""
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in _TERMINAL


def no_device_allocated_twice(claims: list[Document]) -> None:
    """Admin access excepted, a device is in the status of one claim."""
    holders: dict[str, list[str]] = defaultdict(list)
    for claim in claims:
        for device in devices_of(claim):
            holders[device].append(claim["metadata"]["name"])
    twice = {device: names for device, names in holders.items() if len(names) > 1}
    assert not twice, f"allocated twice: {twice}"


def no_device_used_twice(claims: list[Document], pods: list[Document]) -> None:
    """A device is in the status of one claim that Pods with a node use."""
    bound = {pod["metadata"]["uid"] for pod in pods if is_bound(pod)}
    no_device_allocated_twice([claim for claim in claims if bound & set(users_of(claim))])


def reservations_are_allowed(claims: list[Document]) -> None:
    """A generated claim is for its Pod alone; others for as many as the API allows; users need an allocation."""
    for claim in claims:
        users, owners = users_of(claim), claim["metadata"].get("ownerReferences") or ()
        assert len(users) == len(set(users)) <= RESERVED_FOR_MAX, f"too many users of {claim['metadata']['name']}"
        if owners:
            assert set(users) <= {owners[0]["uid"]}, f"{claim['metadata']['name']} is used by a stranger"
        assert not users or devices_of(claim), f"{claim['metadata']['name']} is reserved and not allocated"


def running_pods_keep_their_devices(
    running: dict[str, dict[str, list[str]]], claims: list[Document], pods: list[Document]
) -> None:
    """What a container has been given is not taken from it while it runs."""
    known = {claim["metadata"]["uid"]: claim for claim in claims}
    names = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
    for pod, held in running.items():
        if pod not in names:
            continue
        for uid, devices in held.items():
            assert uid in known, f"{names[pod]} runs and its claim is gone"
            assert devices_of(known[uid]) == devices, f"{names[pod]} runs and its devices changed"


def one_special_claim_per_pod(claims: list[Document]) -> None:
    """Whatever was sent twice or came late."""
    owners = [claim["metadata"]["ownerReferences"][0]["uid"] for claim in claims if is_extended_resource_claim(claim)]
    assert len(owners) == len(set(owners)), f"two special claims: {owners}"


def is_extended_resource_claim(claim: Document) -> bool:
    """Whether the scheduler made it for extended resources."""
    return EXTENDED_RESOURCE_ANNOTATION in (claim["metadata"].get("annotations") or {})


def special_name(pod: Document) -> str:
    """The claim that the Pod's status names for its extended resources."""
    name: str = (pod["status"].get("extendedResourceClaimStatus") or {}).get("resourceClaimName", "")
    return name


def group_of(pod: Document) -> str:
    """The name of the Pod's group; empty if it is alone."""
    return str((pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or "")


def is_extended(pod: Document) -> bool:
    """Whether the Pod asks for an extended resource rather than with claims."""
    return not pod["spec"].get("resourceClaims")


def claims_ready_for(pod: Document, claims: list[Document]) -> list[Document] | None:
    """The Pod's claims if all are allocated and reserved for it, as a kubelet demands before it starts containers."""
    by_name = {claim["metadata"]["name"]: claim for claim in claims}
    statuses = {item["name"]: item.get("resourceClaimName") for item in pod["status"].get("resourceClaimStatuses", ())}
    wanted = [
        entry.get("resourceClaimName") or statuses.get(entry["name"]) or ""
        for entry in pod["spec"].get("resourceClaims", ())
    ]
    if special_name(pod):
        wanted.append(special_name(pod))
    found = []
    for name in wanted:
        claim = by_name.get(name)
        if claim is None or not devices_of(claim) or pod["metadata"]["uid"] not in users_of(claim):
            return None
        found.append(claim)
    return found


def bound_pods_are_reserved(claims: list[Document], pods: list[Document]) -> None:
    """Nobody has a node before its claims are allocated and reserved for it, or keeps it longer than them."""
    for pod in pods:
        if is_bound(pod) and (special_name(pod) or not is_extended(pod)):
            assert claims_ready_for(pod, claims) is not None, f"{pod['metadata']['name']} is bound and not reserved"


def everything_is_settled(
    claims: list[Document], pods: list[Document], device_count: int, plugin_room: int = 0
) -> None:
    """Nobody waits for what is there, and nothing is kept for those who are gone."""
    used = {device for claim in claims for device in devices_of(claim)}
    by_name = {claim["metadata"]["name"]: claim for claim in claims}
    alive = {pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") not in _TERMINAL}
    for pod in pods:
        if pod["metadata"]["uid"] not in alive or pod["spec"].get("nodeName") or group_of(pod):
            continue
        name = pod["metadata"]["name"]
        if is_extended(pod):
            assert not plugin_room, f"{name} waits although a device plugin has room"
        elif "resourceClaimName" in pod["spec"]["resourceClaims"][0]:
            entry = pod["spec"]["resourceClaims"][0]
            claim = by_name.get(entry["resourceClaimName"])
            if claim is None:
                continue
            going = claim["metadata"].get("deletionTimestamp")
            assert going or not devices_of(claim), f"{name} waits although its claim is allocated"
            if going:
                continue
        assert len(used) == device_count, f"{name} waits although devices are free: {used}"
    for claim in claims:
        stale = [uid for uid in users_of(claim) if uid not in alive]
        assert not stale, f"{claim['metadata']['name']} is reserved for Pods that are done"
        owners = claim["metadata"].get("ownerReferences") or ()
        assert not owners or owners[0]["uid"] in alive, f"{claim['metadata']['name']} outlives its Pod"
        assert not claim["metadata"].get("deletionTimestamp") or users_of(claim), f"{claim['metadata']['name']} stays"
    named = {special_name(pod) for pod in pods if is_bound(pod)}
    for claim in claims:
        held = is_extended_resource_claim(claim) and devices_of(claim)
        assert not held or claim["metadata"]["name"] in named, f"{claim['metadata']['name']} has devices for nobody"


def running_pods_are_reserved(running: dict[str, dict[str, list[str]]], claims: list[Document]) -> None:
    """A Pod that uses a claim is in its reservedFor."""
    users = {claim["metadata"]["uid"]: users_of(claim) for claim in claims}
    for pod, held in running.items():
        assert all(pod in users[uid] for uid in held), f"Pod {pod} runs without a reservation"


def bound_pods_run(running: Container[str], claims: list[Document], pods: list[Document]) -> None:
    """Nobody has a node and waits there for a claim that it will never get; unless its user took the claim away."""
    usable = {claim["metadata"]["name"] for claim in claims if not claim["metadata"].get("deletionTimestamp")}
    for pod in pods:
        entries: Sequence[Document] = pod["spec"].get("resourceClaims") or ({},)
        wanted = entries[0].get("resourceClaimName")
        if is_bound(pod) and (wanted is None or wanted in usable):
            assert pod["metadata"]["uid"] in running, f"{pod['metadata']['name']} is bound and was never started"


def scheduler_agrees(scheduler: Scheduler, claims: list[Document]) -> None:
    """The scheduler's account of devices is the cluster's: nothing leaked, nothing forgotten."""
    cluster = scheduler.handle.shared["DynamicResources"]
    allocations = cluster.allocations
    used = {key for pool in cluster.inventory.pools() for key in allocations.keys_in_use(pool.key)}
    assert used == {device for claim in claims for device in devices_of(claim)}
    assert not scheduler.cache.assumed_count()
    assert not cluster.tracker._assumed
    assert not cluster.tracker.in_flight_pods
    assert not cluster.tracker._watchers
    assert not cluster.tracker._removed
